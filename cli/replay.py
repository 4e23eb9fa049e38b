"""Sending messages again that the spool still keeps: the router's own way to Kafka, without its marks.

What is not asked for counts as resolved as soon as it is read, so that the router passes over it. Nothing
is written down: the daemon beside it takes no notice, and a replay that is interrupted begins anew.
"""

from __future__ import annotations

import dataclasses
import os
import select
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from cli.config import EMBEDDED, Config
from cli.errors import BadArgument
from dispatch.brokers import State
from dispatch.client import KafkaClient, check
from dispatch.pool import Pool
from router.acks import Acks
from router.ends import Kafka, Log, Rules
from router.limits import Limits, Rate
from router.metadata import Metadata
from router.partition import Partitioners
from router.rejects import Rejection
from router.room import Room
from router.router import Router
from spool.catalogue import Catalogue, SegmentInfo
from spool.changes import Changes
from spool.files import Span
from spool.identity import read_identity
from spool.layout import Layout
from spool.marks import Marks
from spool.record import Batch, Topics
from spool.selection import Selection
from spool.wire import Reason, reason_name

IDLE_S = 0.05
FLUSH_S = 5.0
"""When the time is over, acknowledgements of what is in flight are waited for so long."""

_DAMAGED = reason_name(Reason.DAMAGED)

Show = Callable[[int, int], None]
"""Is told how many messages are done, of how many."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it."""

    topics: dict[str, int]
    """Messages asked for, by the topic that they were sent to at first."""
    messages: int
    sent: int
    """Acknowledged."""
    refused: dict[str, int]
    """By reason."""
    left: int
    seconds: float
    reachable: bool
    """At the end there was a broker that takes messages."""
    kept_from: int
    """The first sequence number that is kept: what was asked for below it is gone."""


class NoMarks(Marks):
    """What `Acks` asks of marks, in memory; those of the spool stay as they are."""

    def __init__(self, start: int) -> None:
        self._start = start
        self.refused: Counter[int] = Counter()
        """By reason."""

    def floor(self) -> tuple[int, int]:
        return self._start, 0

    def chunks(self) -> Iterator[tuple[SegmentInfo, int, npt.NDArray[np.uint8]]]:
        return iter(())

    def partitions(self) -> dict[bytes, list[tuple[int, int]]]:
        return {}

    def generation(self) -> int:
        return 0

    def progress(self) -> None:
        return None

    def commit(self, changes: Changes) -> int:
        for discard in changes.discarded:
            self.refused[discard.reason] += len(discard.sequences)
        return 0


class _Turned(Selection):
    """A selection for the router: what is not asked for is resolved, the rest perhaps of another topic."""

    acks: Acks | None = None
    target: int | None = None
    """The topic that all go to."""

    def next(self) -> Batch | None:
        batch = super().next()
        if batch is None:
            return None
        if self.acks is not None:
            self.acks.resolve(batch.sequence[~self.span.rows(batch)])
        if self.target is None:
            return batch
        return dataclasses.replace(batch, topic=np.full(len(batch), self.target, np.int32))


class Replay:
    """One replay of one spool. Nothing of it outlives the process."""

    def __init__(self, config: Config, span: Span, to_topic: str | None = None) -> None:
        """Raises NoSpool, BadSpool."""
        self._config, self._span = config, span
        self._layout = Layout(config.spool.directory)
        self._spool = read_identity(self._layout)
        self._to_topic = to_topic.encode(errors="surrogateescape") if to_topic else None
        self._counts: Counter[bytes] = Counter()

    def count(self, show: Show) -> Replayed:
        """Read everything that is asked for, and send nothing. Raises SegmentsGone, OSError."""
        started, topics = time.monotonic(), Topics()
        reader = Selection(Catalogue(self._layout), topics, self._span)
        while batch := reader.next():
            found = np.bincount(batch.topic[self._span.rows(batch)], minlength=len(topics.names))
            for topic in np.flatnonzero(found).tolist():
                self._counts[topics.names[topic]] += int(found[topic])
            total = self._counts.total()
            show(total, total)
        reader.close()
        return self._result(started, reader.kept_from, sent=0, refused={}, reachable=True)

    def send(self, show: Show, timeout_s: float | None) -> Replayed:
        """Count, then send, until everything is acknowledged or refused, or the time is over.

        Raises BadArgument when there is no Kafka to send to, BadPartitioner, BadProperty, DispatchError.
        """
        if self._config.dispatch.kafka.get("bootstrap.servers") == EMBEDDED:
            raise BadArgument(
                "the embedded Kafka is known to `bruce run` alone: "
                'name brokers in [kafka] "bootstrap.servers"'
            )
        check(self._config.dispatch)
        started = time.monotonic()
        deadline = started + timeout_s if timeout_s is not None else float("inf")
        counted = self.count(lambda _done, _total: None)
        if not counted.messages:
            return counted
        with _Line(self._config, self._layout, self._spool, self._span, self._to_topic) as line:
            while not line.done() and time.monotonic() < deadline:
                show(line.sent + line.refused.total(), counted.messages)
                line.turn()
            line.flush(FLUSH_S)
        refused = {reason_name(reason): count for reason, count in sorted(line.refused.items())}
        return self._result(
            started, counted.kept_from, sent=line.sent, refused=refused, reachable=line.reachable
        )

    def _result(
        self, started: float, kept_from: int, *, sent: int, refused: dict[str, int], reachable: bool
    ) -> Replayed:
        total = self._counts.total()
        # What is damaged could not be counted either.
        settled = sent + sum(count for reason, count in refused.items() if reason != _DAMAGED)
        return Replayed(
            topics={n.decode("utf-8", "backslashreplace"): c for n, c in sorted(self._counts.items())},
            messages=total,
            sent=sent,
            refused=refused,
            left=max(0, total - settled),
            seconds=time.monotonic() - started,
            reachable=reachable,
            kept_from=kept_from,
        )


class _Line:
    """Spool, router and dispatch put together, as `cli.delivery` does it, over a selection."""

    def __init__(
        self, config: Config, layout: Layout, spool: bytes, span: Span, to_topic: bytes | None
    ) -> None:
        catalogue, topics = Catalogue(layout), Topics()
        self._live, again = _Turned(catalogue, topics, span), _Turned(catalogue, topics, span)
        self._live.target = again.target = topics.add(to_topic) if to_topic is not None else None
        self._marks = NoMarks(self._live.start)
        self._acks = self._live.acks = Acks(self._marks, catalogue)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # What is sent on purpose a second time needs no transaction.
        options = dataclasses.replace(config.dispatch, mode="at_least_once")
        self._client = KafkaClient(options, self._wake)
        self._pool = Pool(self._client, topics, options, spool_uuid=spool)
        self._metadata = Metadata(self._client.fetch_cluster, lambda: os.eventfd_write(self._wake, 1))
        window = config.dispatch.window_messages, config.dispatch.window_bytes
        place = self._live.place
        self._router = Router(
            Log(self._live, again, lambda: place),
            Kafka(self._client, self._pool, Room(self._pool, *window), self._metadata),
            self._acks,
            # What was kept before is not judged again.
            Rules(
                Partitioners(config.partitioners),
                Limits(topics, {topic: Rate(rate.messages) for topic, rate in config.rates.items()}),
            ),
            rejection=Rejection(grace_s=config.dispatch.unknown_topic_seconds),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._metadata.stop()
        self._router.close()
        self._client.close()
        self._acks.close()
        os.close(self._wake)

    @property
    def sent(self) -> int:
        """Messages that were acknowledged."""
        rows = self._pool.brokers.rows
        return int(rows["acked"].sum()) if len(rows) else 0

    @property
    def refused(self) -> Counter[int]:
        """Messages that never will be, by reason."""
        return self._marks.refused

    @property
    def reachable(self) -> bool:
        """Whether there is a broker that takes messages."""
        rows = self._pool.brokers.rows
        return len(rows) > 0 and bool((rows["state"] == State.HEALTHY).any())

    def done(self) -> bool:
        """Whether everything that was asked for has come to an end."""
        return self._live.exhausted and self._acks.floor >= self._router.frontier

    def turn(self) -> None:
        """Do what can be done, or sleep until something happens."""
        if not self._router.step() and select.select([self._wake], [], [], IDLE_S)[0]:
            os.eventfd_read(self._wake)

    def flush(self, seconds: float) -> None:
        """Wait for what is in flight."""
        deadline = time.monotonic() + seconds
        for _ in self._router.drained():
            if time.monotonic() > deadline:
                break
            self._client.flush(IDLE_S)
        self._router.commit()
