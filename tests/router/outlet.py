"""A router over a real small spool and the embedded Kafka; everything of delivery but its process."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Message

from dispatch.embedded import EmbeddedKafka
from dispatch.options import DispatchOptions
from router.build import Parts, Replay, build
from router.context import CommittedEnd, Rules, SpoolLog
from router.fast_path import FastPath
from router.limits import Limits
from router.outcomes.acks import Acks
from router.outcomes.outcome_table import Eviction
from router.outcomes.progress_book import ProgressBook
from router.outcomes.rejects import Rejection
from router.partition import Partitioners
from router.timing import RECALL_S
from spool.format.batch import Topics
from spool.format.wire import encode
from spool.index.segment_list import SegmentList
from spool.marks.discard_file import DiscardFile
from spool.marks.marks import Marks, Outcomes
from spool.read.reader import Reader
from spool.shared.state import Field
from tests.daemon import consume
from tests.spool.fixture import SpoolFixture

NO_AUTO = {"allow.auto.create.topics": "false"}
SEGMENT_BYTES = 256 << 10
PATIENCE_S = 60.0
"""For what takes moments, on a machine that has other work."""
NOW_MS = int(time.time() * 1000)
"""Timestamps begin here: a real Kafka deletes records that say they are a week old."""


class Outlet:
    """One spool, and its deliverer, which can be killed and started again."""

    def __init__(
        self,
        kafka: EmbeddedKafka,
        *,
        partitioners: Mapping[str, str] | None = None,
        grace_s: float = 60,
        segment_bytes: int = SEGMENT_BYTES,
        max_topics: int = 10_000,
        dead_letter_topic: bytes = b"",
        discard_file: DiscardFile | None = None,
        replay: Replay | None = None,
        recall_s: float = RECALL_S,
        **options: Any,
    ) -> None:
        """`options`: fields of DispatchOptions; `kafka` adds librdkafka properties."""
        self.kafka, self.grace_s, self.partitioners = kafka, grace_s, partitioners or {}
        self.max_topics, self.replay, self.recall_s = max_topics, replay, recall_s
        self.dead_letter_topic, self.discard_file = dead_letter_topic, discard_file
        self.directory = Path(tempfile.mkdtemp(prefix="bruce-outlet-", dir="/dev/shm"))
        self.spool = SpoolFixture(self.directory, segment_bytes=segment_bytes, max_bytes=512 * segment_bytes)
        properties = {"bootstrap.servers": kafka.bootstrap_servers, **options.pop("kafka_properties", {})}
        self.options = DispatchOptions(
            kafka={"linger.ms": "5", **properties}, dead_letter_topic=dead_letter_topic.decode(), **options
        )
        self.most = np.zeros(2, np.int64)
        """Messages and bytes that one broker had in flight, at most."""
        self._runs = False
        self.start()

    def start(self) -> None:
        """Start the deliverer."""
        segment_list, topics = SegmentList(self.spool.layout), Topics(self.max_topics)
        self.marks = Marks(self.spool.layout.delivery, SegmentList(self.spool.layout))
        self.acks = Acks(self.marks, segment_list, marks_first=self.options.mode == "at_most_once")
        self.readers = Reader(segment_list, topics), Reader(segment_list, topics)

        committed = CommittedEnd(self.spool.shared.words[Field.SYNCED :][:1])
        log = SpoolLog(
            *self.readers,
            committed,
            Eviction(Reader(segment_list, topics), committed, self.limit, recall_s=self.recall_s),
        )
        partitioners = Partitioners(self.partitioners)
        parts = Parts(
            log,
            self.acks,
            Rules(partitioners, Limits(topics)),
            Rejection(self.dead_letter_topic, self.discard_file, self.spool.identity.spool, self.grace_s),
        )
        book = ProgressBook(self.acks, segment_list, self.spool.layout)
        self.graph = build(
            self.options, self.replay or self.spool.layout, parts, book, self.spool.identity.spool
        )
        self.router, kafka = self.graph.router, self.graph.kafka
        self.client, self.pool = kafka.client, kafka.pool
        self.fast_path = FastPath(self.router, log, kafka, self.acks, partitioners, self.spool.bell)
        self._runs = True

    def limit(self) -> int:
        """Below which sequence the spool has no room for messages any more."""
        return int(self.spool.shared.words[Field.EVICT])

    def kill(self) -> None:
        """Uncommitted outcomes are forgotten, messages in flight go no further."""
        if self._runs:
            self._runs = False
            self.graph.close()
            self.acks.close()
            self.marks.close()
            for reader in self.readers:
                reader.close()

    def restart(self) -> None:
        """Killed and started again."""
        self.kill()
        self.start()

    def close(self) -> None:
        """The end."""
        self.kill()
        self.spool.crash()
        shutil.rmtree(self.directory)

    def send(self, messages: Sequence[bytes], burst: int = 50) -> None:
        """Datagrams, synced."""
        for first in range(0, len(messages), burst):
            self.spool.append(messages[first : first + burst])
        self.spool.step()

    def run(self, until: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Let it run until it is so."""
        end = time.monotonic() + timeout_s
        while not until():
            assert time.monotonic() < end, f"waited in vain: {self}"
            if not self.router.step():
                self.fast_path.wait(0.002, 0.002)
            rows = self.pool.brokers.rows
            if len(rows):
                self.most = np.maximum(self.most, [rows["messages"].max(), rows["bytes"].max()])

    def run_for(self, seconds: float) -> None:
        """Let it run for a while."""
        end = time.monotonic() + seconds
        self.run(lambda: time.monotonic() > end)

    def finish(self, timeout_s: float = PATIENCE_S) -> Outcomes:
        """Let it run until everything is resolved and written down."""
        self.run(
            lambda: self.acks.low_watermark >= self.spool.synced and not self.router.in_flight(), timeout_s
        )
        self.router.commit()
        return self.marks.outcomes()

    @property
    def resolved(self) -> int:
        """Messages known to be done with."""
        low_watermark = self.acks.low_watermark
        above = 0
        for bits in self.acks._segments.values():
            unpacked = np.unpackbits(bits.resolved, bitorder="little")
            above += int(unpacked[max(0, low_watermark - bits.info.first_sequence) :].sum())
        return low_watermark + above

    def consume(self, topic: str, partitions: int, count: int) -> list[Message]:
        """All records of a topic, at least `count`."""
        return consume(self.kafka.bootstrap_servers, topic, partitions, count)

    def __repr__(self) -> str:
        held = self.pool.partitions.rows[self.pool.partitions.held()]
        return (
            f"floor {self.acks.low_watermark} of {self.spool.synced}, in flight {self.router.in_flight()}, "
            f"held {held}, brokers {self.router.brokers()}, waiting {self.router._unknown.waiting}, "
            f"loose {list(self.router._batches.loose)}, bisections {self.router._failures._bisections}, "
            f"catch-up {self.router._catch_ups.current}"
        )


@contextmanager
def outlet(kafka: EmbeddedKafka, **options: Any) -> Iterator[Outlet]:
    """An outlet that is cleared away."""
    made = Outlet(kafka, **options)
    try:
        yield made
    finally:
        made.close()


def keyed(
    count: int, keys: int = 12, *, topic: bytes = b"t", first: int = 0, bytes_each: int = 40
) -> list[bytes]:
    """PartitionKey messages; the value is the key, the message's number, and something to fill up."""
    return [
        encode(
            topic, b"%d:%d:" % (i % keys, i) + b"." * bytes_each, partition_key=i % keys, timestamp=NOW_MS + i
        )
        for i in range(first, first + count)
    ]


def anywhere(count: int, *, topic: bytes = b"t", first: int = 0, bytes_each: int = 40) -> list[bytes]:
    """AnyPartition messages, numbered."""
    return [
        encode(topic, b"any:%d:" % i + b"." * bytes_each, timestamp=NOW_MS + i)
        for i in range(first, first + count)
    ]


def numbers(records: Sequence[Message]) -> list[int]:
    """The numbers in the values."""
    return [int((record.value() or b"").split(b":")[1]) for record in records]


def duplicates(records: Sequence[Message]) -> int:
    """Records that are there again."""
    return sum(Counter(numbers(records)).values()) - len(set(numbers(records)))


def check_order(records: Sequence[Message]) -> None:
    """Keyed messages first appear in the order of their numbers, all of a key in one partition."""
    places: dict[bytes, int] = {}
    last: dict[bytes, int] = {}
    seen: set[int] = set()
    for record in records:
        key, number, _ = (record.value() or b"").split(b":")
        if key == b"any" or int(number) in seen:
            continue
        seen.add(int(number))
        assert places.setdefault(key, record.partition()) == record.partition()
        assert last.get(key, -1) < int(number), f"{int(number)} of key {key!r} after {last[key]}"
        last[key] = int(number)
