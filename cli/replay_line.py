"""Spool, router and dispatch put together, as `cli.delivery` does it, over a selection and marks of its own.

What is not asked for counts as resolved as soon as it is read, so that the router passes over it.
"""

from __future__ import annotations

import dataclasses
import os
import select
import time
from collections import Counter
from collections.abc import Mapping
from typing import Self

import numpy as np

from cli.config import Config
from cli.replay_state import Begun, ReplayMarks, State
from dispatch.brokers import State as BrokerState
from dispatch.inquiry import Inquiry
from dispatch.modes import make_pool
from dispatch.names import replay_id
from router.acks import Acks
from router.ends import Kafka, Log, Rules
from router.limits import Limits, Rate
from router.metadata import Metadata
from router.partition import Partitioners
from router.progress_book import ProgressBook
from router.rejects import Rejection
from router.room import Room
from router.router import Router
from spool.catalogue import Catalogue, Lasting
from spool.errors import SegmentsGone
from spool.layout import Layout
from spool.record import Batch, Topics
from spool.selection import Selection
from spool.sought import Sought

IDLE_S = 0.05
FLUSH_S = 5.0
"""At the end, acknowledgements of what is in flight are waited for so long."""


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


class Line:
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
        """`rates` by topic. Raises BadProperty, BadPartitioner, DispatchError, SegmentsGone, LMDB_REFUSES."""
        # Where all go to one topic, it is the only one that Kafka is asked for.
        catalogue, topics = Catalogue(layout), Topics(None if to_topic else config.spool.max_topics)
        for name in (*config.partitioners, *rates):
            topics.add(name.encode())
        for wanted in begun.wanted.topics:
            topics.add(wanted)
        self._live, again = (_Turned(catalogue, topics, begun.wanted) for _ in range(2))
        self._live.target = again.target = topics.add(to_topic) if to_topic is not None else None
        # Its segments last: what goes without having been sent is not resolved.
        known = Lasting(layout)
        self._marks = ReplayMarks(state.marks, Lasting(layout), self._live.start)
        self._refuse_gap(begun.wanted.first, state)
        self._asked = False
        self._acks = self._live.acks = Acks(self._marks, known)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._client, self._pool = make_pool(
            config.dispatch,
            topics,
            # Lanes of jobs would stand in the spool's own directory, and are no business of ours.
            ProgressBook(self._acks, known, Layout(state.directory)),
            spool,
            self._wake,
            name=replay_id(begun.name),
        )
        self._pool.note_replay(begun.since_ms)
        self._metadata = Metadata(
            self._client.fetch_cluster,
            lambda: os.eventfd_write(self._wake, 1),
            Inquiry(config.dispatch),
            self._client.fetch_all,
        )
        window = config.dispatch.window_messages, config.dispatch.window_bytes
        place = self._live.place
        self._router = Router(
            Log(self._live, again, lambda: place),
            Kafka(self._client, self._pool, Room(self._pool, *window), self._metadata),
            self._acks,
            # What was kept before is not judged again: no rate discards anything.
            Rules(Partitioners(config.partitioners), Limits(topics, rates)),
            rejection=Rejection(grace_s=config.dispatch.unknown_topic_seconds),
        )

    def _refuse_gap(self, first: int, state: State) -> None:
        """Raises SegmentsGone when messages were removed between the interruption and now."""
        open_from = max(first, self._marks.stopped_at())
        if self._live.kept_from <= open_from:
            return
        self._marks.close()
        raise SegmentsGone(
            f"messages {open_from} to {self._live.kept_from - 1} of this replay were removed from "
            f"{self._live.catalogue.layout.segments} to make room while it was interrupted; remove "
            f"{state.directory} to begin anew with what is left"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._metadata.stop()
        self._router.close()
        if self._pool.close():
            self._client.close()
        self._acks.close()
        self._marks.close()
        os.close(self._wake)

    def left(self, sought: Sought) -> int:
        """How many of these messages have not come to an end."""
        return sought.left(self._acks.resolved)

    def left_below(self, sought: Sought, sequence: int) -> int:
        """How many of those in segments that begin below a sequence."""
        return sought.left_below(self._acks.resolved, sequence)

    def refused(self) -> dict[int, int]:
        """Messages that Kafka will never take, by reason, since the replay began; as last written down."""
        counts: Counter[int] = Counter()
        for discards in self._marks.discards():
            counts[discards.reason] += discards.count
        return dict(sorted(counts.items()))

    @property
    def trouble(self) -> str:
        """Why nothing can be sent, in one sentence; empty when all is well."""
        return self._router.trouble()

    @property
    def reachable(self) -> bool:
        """Whether there is a broker that takes messages, or was no time to look for one."""
        return not self._asked or bool((self._pool.brokers.rows["state"] == BrokerState.HEALTHY).any())

    def done(self) -> bool:
        """Whether everything that was asked for has come to an end, and that is written down."""
        return self._live.exhausted and self._acks.marked_floor >= self._router.frontier

    def turn(self) -> None:
        """Do what can be done, or sleep until something happens."""
        self._asked = True
        if not self._router.step() and select.select([self._wake], [], [], IDLE_S)[0]:
            os.eventfd_read(self._wake)

    def settle(self) -> None:
        """Wait for what is in flight, as long as that is worth it, and write down what is known."""
        deadline = time.monotonic() + FLUSH_S
        for _ in self._router.drained():
            if time.monotonic() > deadline:
                break
            self._client.flush(IDLE_S)
        self._router.commit()
