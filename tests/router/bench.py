"""A router over a real small spool and the Kafka of tests.router.fake: everything but librdkafka."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path

import numpy as np

from router.cluster.brokers import Capacity, Kafka
from router.context import BOUNDS, Bounds, Rules, SpoolLog
from router.limits import Limits, Rate
from router.outcomes.acks import Acks
from router.outcomes.rejects import Rejection
from router.partition import Partitioners
from router.router import NO_REJECTION, Router
from spool.format.batch import Topics
from spool.format.scan import CHUNK_BYTES
from spool.format.wire import encode
from spool.index.segment_list import RETRY_S, SegmentList
from spool.marks.marks import Marks, Outcomes
from spool.read.reader import Reader
from spool.shared.state import Field
from tests.router.fake import Clock, FakeKafka, FakeMetadata, FakePool, uncovered
from tests.spool.fixture import SpoolFixture
from tests.spool.stored import lost_of


class Bench:
    """One spool and its deliverer, which can die and start again."""

    def __init__(
        self,
        *,
        window: tuple[int, int] = (1000, 1 << 20),
        partitioners: Mapping[str, str] | None = None,
        rates: Mapping[str, Rate] | None = None,
        backlog_bytes_per_second: int = 0,
        chunk_bytes: int = CHUNK_BYTES,
        rejection: Rejection = NO_REJECTION,
        bounds: Bounds = BOUNDS,
        max_topics: int = 100,
        retry_s: float = RETRY_S,
        **options: int,
    ) -> None:
        """`chunk_bytes`: what the readers read at a time. `retry_s`: of their lists of segments."""
        self.directory = Path(tempfile.mkdtemp(prefix="bruce-router-", dir="/dev/shm"))
        self.spool = SpoolFixture(self.directory, **options)
        self.kafka, self.clock = FakeKafka(), Clock()
        self.window, self.partitioners, self.rejection = window, partitioners or {}, rejection
        self.max_topics, self.bounds = max_topics, bounds
        self.rates, self.backlog_bytes_per_second = rates, backlog_bytes_per_second
        self.chunk_bytes, self.retry_s = chunk_bytes, retry_s
        self.sent: dict[int, tuple[bytes, int | None, bytes]] = {}
        """By sequence: topic, partition key, value."""
        self.marks: Marks | None = None
        self.open()

    # -- the deliverer ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Start it."""
        segment_list = SegmentList(self.spool.layout, retry_s=self.retry_s)
        self.topics = Topics(self.max_topics)
        self.marks = Marks(self.spool.layout.delivery, SegmentList(self.spool.layout, retry_s=self.retry_s))
        self.acks = Acks(self.marks, segment_list, clock=self.clock)
        self.pool = FakePool(self.kafka, self.topics, self.window)
        self.metadata = FakeMetadata(self.kafka)
        self.readers = (
            Reader(segment_list, self.topics, self.chunk_bytes),
            Reader(segment_list, self.topics, self.chunk_bytes),
        )
        limits = Limits(
            self.topics,
            self.rates,
            self.backlog_bytes_per_second,
            clock=self.clock,
            chance=random.Random(0),
        )
        self.router = Router(
            SpoolLog(*self.readers, lambda: self.spool.shared.place(Field.SYNCED)),
            Kafka(self.pool.client, self.pool, Capacity(self.pool, *self.window), self.metadata),  # type: ignore[arg-type]
            self.acks,
            Rules(Partitioners(self.partitioners), limits, self.bounds),
            rejection=self.rejection,
            clock=self.clock,
        )
        sent = np.array(list(self.sent), np.int64)
        self.done = set(sent[~self.acks.open(sent)].tolist())
        """Resolved when it started: never to be sent again."""

    def crash(self, chance: random.Random | None = None) -> None:
        """It is killed: what was not committed is forgotten."""
        self.pool.die(chance or random.Random(0))
        self.router.close()
        for reader in self.readers:
            reader.close()
        assert self.marks
        self.acks.close()
        self.marks.close()
        self.marks = None

    def restart(self, chance: random.Random | None = None) -> None:
        """Killed and started again."""
        self.crash(chance)
        self.open()

    def close(self) -> None:
        """The end."""
        if self.marks:
            self.crash()
        self.spool.crash()
        shutil.rmtree(self.directory)

    # -- what happens -----------------------------------------------------------------------------------

    def send(self, messages: Sequence[tuple[bytes, int | None, bytes]], **more: int) -> list[int]:
        """A frame of (topic, partition key, value), synced; their sequences."""
        burst = [encode(topic, value, partition_key=key, timestamp=1) for topic, key, value in messages]
        first = self.spool.append(burst, **more)
        sequences = list(range(first, first + len(burst)))
        self.sent.update(zip(sequences, messages, strict=True))
        self.spool.step()
        return sequences

    def step(self, times: int = 1) -> bool:
        """Turns of the router, a little time passing; whether the last one did something."""
        moved = False
        for _ in range(times):
            self.clock.now += 0.02
            moved = self.router.step()
            self.spool.shared.words[Field.LOW_WATERMARK] = self.acks.low_watermark
            self.check()
        return moved

    def answer(self, count: int = 1 << 30) -> int:
        """Every broker that is up answers for up to `count` messages of each partition."""
        return sum(self.pool.answer(flat, count) for flat in range(self.pool.partitions.count))

    def settle(self, steps: int = 3000, batch: int = 50) -> None:
        """Let it run until everything is resolved. Fails after this many steps in which nothing is."""
        left, low_watermark = steps, self.acks.low_watermark
        while left:
            self.step()
            self.answer(batch)
            # Steps are faster than a disk.
            self.acks.wait()
            if filing := self.router._rejects._filing:
                wait([filing.task])
            if self.acks.low_watermark >= self.end and not self.router.in_flight():
                self.router.commit()
                return
            left = left - 1 if self.acks.low_watermark == low_watermark else steps
            low_watermark = self.acks.low_watermark
            self.clock.now += 0.1
        held = self.pool.partitions.held().tolist()
        raise AssertionError(
            f"stuck at {self.acks.low_watermark} of {self.end}: held {held}, "
            f"loose {list(self.router._batches.loose)}, "
            f"waiting {self.router._unknown.waiting}, in flight {self.router.in_flight()}, "
            f"failures {self.router._failures._bisections}"
        )

    @property
    def end(self) -> int:
        """The next sequence to be synced."""
        return self.spool.synced

    # -- what must be true ------------------------------------------------------------------------------

    def check(self) -> None:
        """The window is kept, and every message below the read position is resolved, in flight or covered."""
        assert self.pool.most[0] <= self.window[0]
        assert self.pool.partitions.any_held == bool(self.pool.partitions.is_held().any())
        assert self.done.isdisjoint(m.sequence for queue in self.pool.queues.values() for m in queue)
        below = np.array([s for s in self.sent if s < self.router.read_position], np.int64)
        assert uncovered(self.pool, self.router, below[self.acks.open(below)]) == []

    def outcomes(self) -> Outcomes:
        """The messages' outcomes on disk."""
        assert self.marks
        return self.marks.outcomes()

    def appended(self) -> list[int]:
        """Every sequence that Kafka has, as often as it has it, in order."""
        return sorted(sequence for log in self.kafka.logs.values() for sequence in log)

    def discarded(self) -> dict[int, int]:
        """Sequence -> reason."""
        assert self.marks
        return lost_of(self.marks)

    def check_order(self) -> None:
        """In each partition, the messages of a partition key first appear in the order they were sent."""
        for place, log in self.kafka.logs.items():
            if self.partitioners.get(place[0].decode()) in ("any", "round_robin"):
                continue
            seen: dict[int, list[int]] = defaultdict(list)
            known = set()
            for sequence in log:
                _, key, _ = self.sent[sequence]
                if key is not None and sequence not in known:
                    known.add(sequence)
                    seen[key].append(sequence)
            for key, sequences in seen.items():
                assert sequences == sorted(sequences), f"key {key} in {place}: {sequences}"

    def check_complete(self) -> None:
        """Everything sent is in Kafka or discarded, and the totals say so."""
        lost = self.discarded()
        missing = set(self.sent) - set(self.appended()) - set(lost)
        assert not missing, f"lost: {[(s, self.sent[s]) for s in sorted(missing)]}"
        outcomes = self.outcomes()
        assert outcomes.low_watermark == self.end
        assert outcomes.resolved == len(self.sent)
