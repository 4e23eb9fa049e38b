"""The pool of brokers: what may be sent is handed over, and every message handed over comes back.

The hard place is order. A partition is one queue, but its messages can be stopped in three ways: its
broker's window is full, it has no leader, or librdkafka does not take the message. If later messages
went on meanwhile, a message with the same key would overtake. So whatever stops a message holds its
partition from that sequence on (`PartitionTable.rows`), and the live path skips a held
partition without looking at anything else. The router reads the log again from there, sends with
`catching_up=True`, and calls `release` when it has come to where the live path is.

Rejected: a queue per partition in memory (the spool is the only queue), and stopping the whole batch
(one stuck broker would stop all). What remains: a message that *fails* after it was handed over may have
successors in flight that succeed; the router holds the partition, waits until it is empty, and sends
again what has no outcome. With idempotence that happens only after a permanent refusal or a fatal error.
Kafka 4.4 refuses a whole batch for one record's timestamp, all with the same code, so a refusal is to be
believed only of a message that was sent by itself.

Timestamps go out as they are, negative ones too, with one exception: librdkafka takes 0 for "now", so a
message that says 0 goes out with 1, the nearest that can be said.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.brokers import BrokerTable
from dispatch.client import KafkaClient
from dispatch.cluster import Cluster
from dispatch.codes import Code
from dispatch.flight import Flight
from dispatch.handover import HEADER_NAME, Envelope, Rows, hand_over, may_send
from dispatch.letters import Letter, charge, produce
from dispatch.options import DispatchOptions
from dispatch.partitions import NONE, PartitionTable, order_by_partition
from dispatch.reports import ROW, collect, reader
from spool.kernel import address_of
from spool.record import Batch, Topics

REPORTS_AT_ONCE = 1 << 16


class HandedOver(NamedTuple):
    """What became of the rows of one `send`."""

    sent: int
    held: int
    """Not sent; their partitions are held from the first of them on."""
    refused: int
    """librdkafka will never take them; their outcomes come with the next `collect`."""
    error: int
    """The last code with which librdkafka itself declined (QUEUE_FULL, FATAL, ...); 0 for none."""


class Outcomes(NamedTuple):
    """What became of messages; columns of one length, each message once."""

    sequence: npt.NDArray[np.int64]
    code: npt.NDArray[np.int32]
    """0: acknowledged; else an error for `dispatch.retry.decide`."""
    flat: npt.NDArray[np.int32]
    """Partition."""
    offset: npt.NDArray[np.int64]
    """In it, of what was acknowledged; -1 when it is not known."""
    received_ns: npt.NDArray[np.int64]
    """When bruce had the message, ns since the epoch; 0: the record is not the message itself."""
    more: bool
    """The queue was not read to its end, and no wake-up will come for the rest: collect again."""

    def only(self, rows: npt.NDArray[np.bool_]) -> Outcomes:
        """Some of the rows."""
        if rows.all():
            return self
        return self._replace(
            sequence=self.sequence[rows],
            code=self.code[rows],
            flat=self.flat[rows],
            offset=self.offset[rows],
            received_ns=self.received_ns[rows],
        )


class Pool:
    """Windows and hand-over for all brokers of one cluster. For one thread."""

    last_reports_s = 5.0
    """How long the reports of a producer that is finished are worth waiting for."""

    gives_back = True
    """Whether `rebuild` gives what is in flight back without asking Kafka."""

    def __init__(
        self,
        client: KafkaClient,
        topics: Topics,
        options: DispatchOptions,
        *,
        spool_uuid: bytes,
        reports_at_once: int = REPORTS_AT_ONCE,
    ) -> None:
        self.partitions = PartitionTable()
        self.brokers = BrokerTable()
        self.flight = Flight()
        self._topics = topics
        self._window = (options.window_messages, options.window_bytes)
        self._stamp = options.stamp
        self._uuid, self._replayed_ms = spool_uuid, 0
        self._refused: list[npt.NDArray[Any]] = []
        self._reports = np.zeros(reports_at_once, ROW)
        self._client = client
        self._attach()

    def set_cluster(self, cluster: Cluster) -> None:
        """Take over brokers and leaders; in-flight messages are charged to the new leader of their partition.

        A topic that the cluster has an error for stays as it was.
        Raises BadProperty when a topic's own properties are wrong.
        """
        for broker in cluster.brokers:
            self.brokers.index(broker)
        for name, leaders in cluster.topics.items():
            if (topic := self._topics.admit(name)) >= 0:
                handle = self._client.topic_handle(name)
                self._lead(self.partitions.extend(topic, len(leaders), handle), leaders)

    def send(self, batch: Batch, flat: npt.NDArray[np.int32], *, catching_up: bool = False) -> HandedOver:
        """Hand over what may go now. librdkafka copies it before this returns.

        `flat` int32[len(batch)]: partition by row, from `partitions.flats`; negative rows are left out.
        `catching_up`: send to held partitions, from `held_from` on; it moves along with what was sent.
        """
        order = np.empty(len(batch), np.int32)
        starts = np.empty(self.partitions.count + 1, np.int64)
        order = order[: order_by_partition(flat, starts, order)]
        self.flight.make_room(len(order))
        refused = np.empty(len(order), ROW)
        sent, held, refusals, error = hand_over(
            self._envelope.producer,
            _rows(batch, flat),
            order,
            self.partitions.rows,
            self.brokers.rows,
            self.flight.rows,
            self.flight.free,
            self.flight.free_count,
            self._window,
            refused,
            time.monotonic_ns(),
            catching_up,
        )
        if refusals:
            self._refused.append(refused[:refusals])
        return HandedOver(sent, held, refusals, error)

    def post(self, letter: Letter, flat: int) -> int:
        """Hand over one record to a partition: 0, or why not. Its outcome comes as those of messages do."""
        partition, brokers = self.partitions.rows[flat], self.brokers.rows
        if not may_send(int(partition.leader), letter.size, brokers, self._window):
            return int(Code.QUEUE_FULL)
        if self._stamp:
            stamp = (HEADER_NAME, self._uuid + letter.sequence.to_bytes(8, "big"))
            letter = letter._replace(headers=[*letter.headers, stamp])
        self.flight.make_room(1)
        number = int(self.flight.free[int(self.flight.free_count[0]) - 1])
        code = produce(self._client, partition, number, letter)
        if code == 0:
            self.flight.free_count[0] -= 1
            charge(self.flight.rows[number], letter, flat, self.partitions, brokers)
        return code

    def orphan(self, topic: int) -> None:
        """A topic is gone: none of its partitions has a leader."""
        if topic < len(self.partitions.partitions_of):
            flats = self.partitions.flats[topic, : self.partitions.partitions_of[topic]]
            self.partitions.rows["leader"][flats] = NONE

    def collect(self) -> Outcomes:
        """What became known since the last time; does not wait. Events of other kinds go to the client."""
        filled = 0
        while True:
            filled, event = collect(
                self._reader,
                self.partitions.rows,
                self.brokers.rows,
                self.flight.rows,
                self.flight.free,
                self.flight.free_count,
                self._reports,
                filled,
                time.monotonic_ns(),
            )
            if not event:
                break
            self._client.take_event(event)
        found = np.concatenate([*self._refused, self._reports[:filled]])
        self._refused = []
        return _outcomes(found, more=filled == len(self._reports))

    @property
    def closed(self) -> bool:
        """Whether nothing can be handed over at the moment."""
        return False

    @property
    def busy(self) -> bool:
        """Whether the producer must be left as it is."""
        return False

    @property
    def trouble(self) -> str:
        """Why nothing is delivered, in one sentence; empty when all is well."""
        return ""

    def in_flight(self) -> int:
        """Messages handed over whose outcome is not told."""
        return int(self.brokers.rows["messages"].sum()) if len(self.brokers.rows) else 0

    def close(self) -> bool:
        """Let go of the client; False when that must be left as it is, since a thread still waits in it."""
        return True

    def unsettled(self) -> npt.NDArray[np.int64]:
        """int64 by flat number: messages whose outcome is not told yet."""
        count = self.partitions.count
        refused = np.concatenate([*self._refused, np.empty(0, ROW)])["flat_number"]
        return np.asarray(self.partitions.rows["messages"][:count] + np.bincount(refused, minlength=count))

    def lowest_in_flight(self) -> npt.NDArray[np.int64]:
        """int64 by flat number: the lowest sequence in flight; `flight.NOBODY` where there is none."""
        return self.flight.lowest(self.partitions.count)

    def observe(self) -> None:
        """Bring the brokers' states up to date, from reports and from librdkafka's statistics."""
        states = self._client.broker_states()
        down = {broker for broker, state in states.items() if state == "DOWN"}
        self.brokers.observe(time.monotonic_ns(), down)

    def rebuild(self) -> Outcomes:
        """Go on with another producer in place of one that is finished. Collect from that one before.

        What was in flight is returned with PURGE_INFLIGHT: it may or may not be in Kafka, and nobody will
        say. Hold its partitions from the lowest of these sequences, and catch up. Raises DispatchError.
        """
        client = self._client
        client.renew()
        lost = self.flight.clear()
        for table in (self.partitions.rows, self.brokers.rows):
            table["messages"] = 0
            table["bytes"] = 0
        self._attach()
        for topic in np.flatnonzero(self.partitions.partitions_of).tolist():
            known = int(self.partitions.partitions_of[topic])
            self.partitions.extend(topic, known, client.topic_handle(self._topics.names[topic]))
        told = np.zeros(len(lost), ROW)
        for name in ("sequence", "flat_number", "received_ns"):
            told[name] = lost[name]
        told["code"], told["offset"] = Code.PURGE_INFLIGHT, -1
        return _outcomes(told, more=False)

    def serve(self, spool_uuid: bytes) -> None:
        """Go on with the messages of another spool. Nothing may be in flight: its numbers begin anew."""
        assert not self.in_flight()
        self._uuid = spool_uuid
        self._attach()

    def note_replay(self, since_ms: int) -> None:
        """Let each record say that it was asked for again, and when: ms since the epoch. Before the first."""
        self._replayed_ms = since_ms
        self._attach()

    def _attach(self) -> None:
        client = self._client
        self._envelope = Envelope(
            client.library, client.handle, self._uuid, stamp=self._stamp, replayed_ms=self._replayed_ms
        )
        self._reader = reader(client.library, client.queue, client.open_event)

    def _lead(self, flats: npt.NDArray[np.int32], leaders: npt.NDArray[np.int32]) -> None:
        """Set the leaders (broker ids) of a topic's partitions and move what is in flight with them."""
        rows, brokers = self.partitions.rows, self.brokers.rows
        indexes = np.full(len(flats), NONE, np.int32)
        indexes[: len(leaders)] = [self.brokers.indexes.get(leader, NONE) for leader in leaders.tolist()]
        rows["leader"][flats] = indexes
        moves = (indexes != NONE) & (indexes != rows["charged"][flats])
        moved, after = flats[moves], indexes[moves]
        before = rows["charged"][moved]
        known = before != NONE
        for load in ("messages", "bytes"):
            parts = rows[load][moved]
            np.subtract.at(brokers[load], before[known], parts[known])
            np.add.at(brokers[load], after, parts)
        rows["charged"][moved] = after


def _outcomes(found: npt.NDArray[Any], *, more: bool) -> Outcomes:
    return Outcomes(
        found["sequence"].copy(),
        found["code"].copy(),
        found["flat_number"].copy(),
        found["offset"].copy(),
        found["received_ns"].copy(),
        more,
    )


def _rows(batch: Batch, flat: npt.NDArray[np.int32]) -> Rows:
    return Rows(
        address_of(batch.data),
        batch.sequence,
        batch.timestamp,
        batch.key_at,
        batch.key_bytes,
        batch.value_at,
        batch.value_bytes,
        batch.received_ns,
        flat,
    )
