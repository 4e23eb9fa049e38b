"""The delivery graph of `cli.daemon.delivery`, over a selection and marks of its own.

A message outside the selection counts as resolved as soon as it is read, so that the router skips it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Self

from cli.config.config import Config
from cli.replay.state import Begun, ReplayMarks, State
from router.build import Parts, Replay, build
from router.context import Rules, SpoolLog
from router.limits import Limits, Rate
from router.outcomes.acks import Acks, Pace
from router.outcomes.progress_book import ProgressBook
from router.outcomes.rejects import Rejection
from router.partition import Partitioners
from router.timing import FLUSH_S
from spool.errors import SegmentsGone
from spool.format.batch import Batch, Topics
from spool.index.segment_list import LastingSegmentList, SegmentList
from spool.layout import Layout
from spool.read.selection import Selection, Sought


class _Turned(Selection):
    """A selection for the router: it resolves all other messages, and may change the topic of the rest."""

    acks: Acks | None = None
    target: int | None = None
    """The topic for all messages."""

    def next(self) -> Batch | None:
        batch = super().next()
        if batch is None:
            return None
        if self.acks is not None:
            self.acks.resolve(batch.sequence[~self.span.rows(batch)])
        if self.target is None:
            return batch
        return batch.of_topic(self.target)


class ReplayConnection:
    """The way of one replay to Kafka. It starts threads: close it, as a context manager does."""

    def __init__(
        self,
        config: Config,
        layout: Layout,
        spool: bytes,
        state: State,
        begun: Begun,
        *,
        to_topic: bytes | None,
        rates: Mapping[str, Rate],
    ) -> None:
        """`rates` by topic. Raises BadProperty, BadPartitioner, DispatchError, SegmentsGone, MarksFailed."""
        # If all go to one topic, Kafka needs to know only that one.
        segment_list, topics = SegmentList(layout), Topics(None if to_topic else config.spool.max_topics)
        for name in (*config.partitioners, *rates):
            topics.add(name.encode())
        for wanted in begun.wanted.topics:
            topics.add(wanted)
        self._live, catch_up = (_Turned(segment_list, topics, begun.wanted) for _ in range(2))
        self._live.target = catch_up.target = topics.add(to_topic) if to_topic is not None else None
        # Its segments last: a message that is removed without having been sent is not resolved.
        known = LastingSegmentList(layout)
        self._marks = ReplayMarks(state.marks, LastingSegmentList(layout), self._live.start)
        self._refuse_gap(begun.wanted.first, state)
        self._asked = False
        self._acks = self._live.acks = Acks(self._marks, known, pace=Pace(is_wanted=lambda: True))
        place = self._live.place
        parts = Parts(
            SpoolLog(self._live, catch_up, lambda: place),
            self._acks,
            # Messages that the daemon kept are not judged again: no rate discards anything.
            Rules(Partitioners(config.partitioners, config.dispatch.partitioner), Limits(topics, rates)),
            Rejection(grace_s=config.dispatch.unknown_topic_seconds),
        )
        # The jobs' file of transactional tasks is in the spool's own directory: a replay does not need it.
        book = ProgressBook(self._acks, known, Layout(state.directory))
        self._graph = build(config.dispatch, Replay(begun.name, begun.since_ms), parts, book, spool)

    def _refuse_gap(self, first: int, state: State) -> None:
        """Raises SegmentsGone when messages were removed between the interruption and now."""
        open_from = max(first, self._marks.stopped_at())
        if self._live.kept_from <= open_from:
            return
        self._marks.close()
        raise SegmentsGone(
            f"messages {open_from} to {self._live.kept_from - 1} of this replay were removed from "
            f"{self._live.segment_list.layout.segments} to make room while it was interrupted; remove "
            f"{state.directory} to begin again with what is left"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._graph.close()
        self._acks.close()
        self._marks.close()

    def left(self, sought: Sought) -> int:
        """How many of these messages have no outcome."""
        return sought.left(self._acks.resolved)

    def left_below(self, sought: Sought, sequence: int) -> int:
        """How many of those in segments that begin below a sequence."""
        return sought.left_below(self._acks.resolved, sequence)

    def refused(self) -> dict[int, int]:
        """Messages that Kafka will never take, by reason, since the replay began; as of the last record."""
        counts: Counter[int] = Counter()
        for discards in self._marks.discards():
            counts[discards.reason] += discards.count
        return dict(sorted(counts.items()))

    @property
    def trouble(self) -> str:
        """Why nothing can be sent, in one sentence; empty when all is well."""
        return self._graph.router.trouble()

    @property
    def reachable(self) -> bool:
        """Whether a broker takes messages, or there was no time to look for one."""
        return not self._asked or bool(self._graph.kafka.pool.brokers.healthy().any())

    def done(self) -> bool:
        """Whether every message of the selection has an outcome, and it is recorded."""
        return self._live.exhausted and self._acks.marked_watermark >= self._graph.router.read_position

    def turn(self) -> None:
        """Do the work that is ready, or sleep until an event."""
        self._asked = True
        self._graph.step()

    def settle(self) -> None:
        """Wait up to FLUSH_S for messages in flight, and record the outcomes."""
        self._graph.settle(time.monotonic() + FLUSH_S)
