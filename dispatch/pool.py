"""The pool of brokers: what may be sent is handed over, and every message handed over comes back.

The hard place is order. A partition is one queue, but its messages can be stopped in three ways: its
broker's window is full, it has no leader, or librdkafka does not take the message. If later messages
went on meanwhile, a message with the same key would overtake. So whatever stops a message holds its
partition from that sequence on (`PartitionTable.rows`), and the live path skips a held
partition without looking at anything else. The router reads the log again from there, sends with
`catching_up=True`, and calls `release` when it has come to where the live path is.

Rejected: a queue per partition in memory (the spool is the only queue), and stopping the whole batch
(one stuck broker would stop all). One case remains: a message that *fails* after it was handed over may have
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

from dispatch.client import Cluster, KafkaClient
from dispatch.errors import Code
from dispatch.handover import Envelope, Producer, hand_over
from dispatch.header_names import REPLAY_NAME
from dispatch.options import DispatchOptions
from dispatch.records import ROW, LetterEnvelope, Letters, Reader, collect, post, reader
from dispatch.tables import NONE, BrokerTable, Flight, PartitionTable
from spool.format.batch import Batch, Topics

REPORTS_AT_ONCE = 1 << 16


class HandedOver(NamedTuple):
    """The result of one `send`, by rows."""

    sent: int
    held: int
    """Not sent; their partitions are held from the first of them on."""
    refused: int
    """librdkafka will never take them; their outcomes come with the next `collect`."""
    error: int
    """The last code with which librdkafka itself declined (QUEUE_FULL, FATAL, ...); 0 for none."""


class Outcomes(NamedTuple):
    """The outcomes of messages, each message once."""

    rows: npt.NDArray[Any]
    """dispatch.records.ROW[n]. Those that `collect` returned are valid until the next call."""
    more: bool
    """The queue was not read to its end, and no wake-up will come for the rest: collect again."""

    @property
    def sequence(self) -> npt.NDArray[np.int64]:
        """int64[n]: numbers in the log."""
        return np.ascontiguousarray(self.rows["sequence"])

    @property
    def code(self) -> npt.NDArray[np.int32]:
        """int32[n]; 0: acknowledged; else an error for `dispatch.retry.decide`."""
        return np.ascontiguousarray(self.rows["code"])

    @property
    def flat(self) -> npt.NDArray[np.int32]:
        """int32[n]: partition."""
        return np.ascontiguousarray(self.rows["flat_number"])

    @property
    def offset(self) -> npt.NDArray[np.int64]:
        """int64[n]: in it, of what was acknowledged; -1 when it is not known."""
        return np.ascontiguousarray(self.rows["offset"])

    @property
    def received_ns(self) -> npt.NDArray[np.int64]:
        """int64[n]: when bruce had the message, ns since the epoch; 0: the record is not the message."""
        return np.ascontiguousarray(self.rows["received_ns"])

    def only(self, rows: npt.NDArray[np.bool_]) -> Outcomes:
        """Some of the rows."""
        return self if rows.all() else self._replace(rows=self.rows[rows])

    def join(self, other: Outcomes) -> Outcomes:
        """These, and behind them others; a copy."""
        return Outcomes(np.concatenate([self.rows, other.rows]), self.more or other.more)


NO_OUTCOMES = Outcomes(np.empty(0, ROW), more=False)


class Pool:
    """Windows and hand-over for all brokers of one cluster. For one thread."""

    last_reports_s = 5.0
    """How long the reports of a producer that is finished are worth waiting for."""

    at_once = True
    """Whether a report is the outcome; else it is known later."""

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
        self.flight.make_room(len(batch))
        refused = np.empty(len(batch), ROW)
        sent, held, refusals, error = hand_over(
            self._envelope.producer,
            batch.data_at,
            batch.wide,
            batch.narrow,
            flat,
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
        self.note_sent(refused[:refusals], held=held > 0 or catching_up)
        return HandedOver(sent, held, refusals, error)

    def post(self, letters: Letters, flats: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Hand over dead letters, to partitions: of each 0, or why not. Outcomes come as messages' do.

        `flats` int32[letters]; returns int32[letters].
        """
        batch, rows, reasons, first_ms, last_ms = letters
        envelope = self._letter_envelope
        self.flight.make_room(len(rows))
        codes = np.zeros(len(rows), np.int32)
        post(
            envelope.producer,
            batch.data_at,
            batch.wide,
            batch.narrow,
            rows,
            reasons,
            first_ms,
            last_ms,
            envelope.names,
            envelope.digits,
            flats,
            self.partitions.rows,
            self.brokers.rows,
            self.flight.rows,
            self.flight.free,
            self.flight.free_count,
            self._window,
            time.monotonic_ns(),
            # Not a message's own timestamp: that may be what it was refused for.
            time.time_ns() // 1_000_000,
            codes,
        )
        return codes

    @property
    def lane(self) -> tuple[Reader, Producer, tuple[int, int]]:
        """The ends that compiled loops collect from and hand over by, and hand_over's `window`."""
        return self._reader, self._envelope.producer, self._window

    def note_sent(self, refused: npt.NDArray[Any], *, held: bool) -> None:
        """A loop has handed messages over; librdkafka will never take the `refused` ROW[n]."""
        if len(refused):
            self._refused.append(refused)
        if held:
            self.partitions.note_held()

    def orphan(self, topic: int) -> None:
        """A topic is gone: none of its partitions has a leader."""
        self.partitions.orphan(topic)

    def collect(self) -> Outcomes:
        """The outcomes since the last time; does not wait. Events of other kinds go to the client."""
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
        rows = self._reports[:filled]
        if self._refused:
            rows, self._refused = np.concatenate([*self._refused, rows]), []
        # Most steps find no reports.
        return Outcomes(rows, filled == len(self._reports)) if len(rows) else NO_OUTCOMES

    @property
    def closed(self) -> bool:
        """Whether nothing can be handed over at the moment."""
        return False

    @property
    def busy(self) -> bool:
        """Whether the producer must be left as it is."""
        return False

    @property
    def ended(self) -> bool:
        """Whether nothing will ever be handed over again."""
        return False

    @property
    def trouble(self) -> str:
        """Why nothing is delivered, in one sentence; empty when all is well."""
        return ""

    def in_flight(self) -> int:
        """Messages handed over whose outcome was not returned yet."""
        return int(self.brokers.rows["messages"].sum()) if len(self.brokers.rows) else 0

    def close(self) -> bool:
        """Let go of the client; False when that must be left as it is, since a thread still waits in it."""
        return True

    def unsettled(self) -> npt.NDArray[np.int64]:
        """int64 by flat number: messages whose outcome was not returned yet."""
        count = self.partitions.count
        refused = np.concatenate([*self._refused, np.empty(0, ROW)])["flat_number"]
        return np.asarray(self.partitions.rows["messages"][:count] + np.bincount(refused, minlength=count))

    def lowest_in_flight(self) -> npt.NDArray[np.int64]:
        """int64 by flat number: the lowest sequence in flight; NO_SEQUENCE where there is none."""
        return self.flight.lowest(self.partitions.count)

    def observe(self) -> None:
        """Bring the brokers' states up to date, from reports and from librdkafka's statistics."""
        states = self._client.broker_states()
        down = {broker for broker, state in states.items() if state == "DOWN"}
        self.brokers.observe(time.monotonic_ns(), down)

    def rebuild(self) -> Outcomes:
        """Go on with another producer in place of one that is finished. Collect from that one before.

        All that was in flight is returned with PURGE_INFLIGHT: it may or may not be in Kafka, and no report
        will say. Hold its partitions from the lowest of these sequences, and catch up. Raises DispatchError.
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
        return Outcomes(told, more=False)

    def serve(self, spool_uuid: bytes) -> None:
        """Go on with the messages of another spool. Nothing may be in flight: its numbers begin at 0."""
        assert not self.in_flight()
        self._uuid = spool_uuid
        self._attach()

    def note_replay(self, since_ms: int) -> None:
        """Let each record say that it was asked for again, and when: ms since the epoch. Before the first."""
        self._replayed_ms = since_ms
        self._attach()

    def _attach(self) -> None:
        client = self._client
        whose = client.library, client.handle, self._uuid
        replay = [(REPLAY_NAME, b"%d" % self._replayed_ms)] if self._replayed_ms else []
        self._envelope = Envelope(*whose, stamp=self._stamp, headers=replay)
        self._letter_envelope = LetterEnvelope(*whose, stamp=self._stamp)
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
