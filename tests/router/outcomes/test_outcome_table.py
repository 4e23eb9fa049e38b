"""The oldest are given up to make room: counted by topic, none that is delivered, with Kafka or without."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from pipeline.source.outcomes import read_outcomes
from pipeline.source.plan import plan_spool
from spool.format.wire import Reason, encode
from spool.layout import SENT, Layout
from spool.shared.state import Field
from tests.router.outlet import NOW_MS, Outlet, anywhere, check_order, keyed, numbers, outlet
from tests.spool.stored import lost_of

PARTITIONS = 6
SEGMENT_BYTES = 64 << 10


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Three brokers, two topics."""
    with EmbeddedKafka(brokers=3, topics=[("t", PARTITIONS), ("u", 2)]) as running:
        yield running


def third_segment(bruce: Outlet, number: int = 3) -> int:
    """The first sequence of the third segment that is not delivered."""
    bruce.spool.keeper.step()
    kept = [first for first, suffix in bruce.spool.layout.list_segments() if suffix != SENT]
    return kept[number - 1]


def evict(bruce: Outlet, limit: int) -> None:
    """Have everything below given up, and the segments removed as the keeper does."""
    bruce.spool.shared.words[Field.EVICT] = limit
    bruce.run(lambda: bruce.acks.low_watermark >= limit and bruce.router.read_position >= limit)
    bruce.router.commit()
    bruce.spool.shared.words[Field.LOW_WATERMARK] = bruce.acks.marked_watermark
    bruce.spool.step()
    bruce.spool.keeper._stock.remove(first for first, _ in bruce.spool.keeper._stock.sent())


def evicted(bruce: Outlet) -> Counter[bytes]:
    """The marks' count of evicted messages, by topic."""
    rows = bruce.marks.outcomes().discarded
    assert {row.reason for row in rows} <= {Reason.EVICTED}
    assert all(0 < row.first_ns <= row.last_ns for row in rows)
    return Counter({row.topic: row.count for row in rows})


@pytest.mark.sample(one_of=2)
@pytest.mark.parametrize("ever", [True, False], ids=["away since", "never there"])
def test_without_kafka(kafka: EmbeddedKafka, ever: bool) -> None:  # noqa: FBT001
    """Away, its window full of the oldest: they are discarded, counted by topic; the rest comes in order."""
    if not ever:
        kafka.down(-1)
    with outlet(kafka, recall_s=0.5, segment_bytes=SEGMENT_BYTES, window_messages=300) as bruce:
        if ever:
            bruce.send(keyed(12) + anywhere(2, topic=b"u"))
            bruce.finish()
            kafka.down(-1)
        before = bruce.spool.synced
        messages = [
            m for pair in zip(keyed(3000, first=12), anywhere(3000, topic=b"u"), strict=True) for m in pair
        ]
        bruce.send(messages)
        if ever:
            bruce.run(lambda: bruce.router.in_flight() > 0)
        else:
            bruce.run_for(0.5)
            assert bruce.router.in_flight() == 0
        limit = third_segment(bruce)
        evict(bruce, limit)
        gone = evicted(bruce)
        assert gone.total() == limit - before
        assert abs(gone[b"t"] - gone[b"u"]) <= 1
        assert bruce.spool.layout.list_segments()[0][0] == limit
        kafka.up(-1)
        outcomes = bruce.finish(timeout_s=60)
        assert outcomes.resolved == bruce.spool.synced
        assert evicted(bruce) == gone
        left = before + len(messages) - limit
        records = bruce.consume("t", PARTITIONS, left // 2)
        check_order(records)
        kept = set(range(12 + gone[b"t"], 3012))
        # Messages in flight when they were given up may have arrived all the same.
        assert set(numbers(records)) >= kept


def test_an_audit_calls_the_evicted_discarded(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """While their segments are still there: the marks name each of them, and none that was delivered."""
    with outlet(kafka, recall_s=0.5, segment_bytes=SEGMENT_BYTES) as bruce:
        bruce.send(keyed(60))
        bruce.finish()
        kafka.down(-1)
        bruce.send(keyed(3000, first=60))
        limit = third_segment(bruce)
        bruce.spool.shared.words[Field.EVICT] = limit
        bruce.run(lambda: bruce.acks.low_watermark >= limit and bruce.router.read_position >= limit)
        bruce.router.commit()
        assert bruce.spool.layout.list_segments()[0][0] == 0
        assert lost_of(bruce.marks) == dict.fromkeys(range(60, limit), int(Reason.EVICTED))
        shutil.copytree(bruce.spool.layout.directory, tmp_path / "copy")
        outcomes = read_outcomes(plan_spool(Layout(tmp_path / "copy")))
        assert outcomes.discarded.tolist() == list(range(60, limit))
        assert outcomes.backlog[0][0] == limit


def test_what_is_delivered_is_not_given_up(kafka: EmbeddedKafka) -> None:
    """One broker is away: in the oldest segments, messages acknowledged by the others count as delivered."""
    with outlet(kafka, recall_s=0.5, segment_bytes=SEGMENT_BYTES) as bruce:
        bruce.send(keyed(60))
        bruce.finish()
        kafka.down(2)
        bruce.run_for(1.0)
        bruce.send(keyed(3000, first=60))
        bruce.run(lambda: bruce.resolved >= 60 + 1500)
        bruce.run_for(0.5)
        before = bruce.resolved
        limit = third_segment(bruce)
        evict(bruce, limit)
        gone = evicted(bruce)[b"t"]
        assert 0 < gone < limit
        kafka.up(2)
        outcomes = bruce.finish(timeout_s=60)
        assert outcomes.resolved == 3060
        assert evicted(bruce)[b"t"] == gone
        records = bruce.consume("t", PARTITIONS, 3060 - gone)
        check_order(records)
        assert len(set(numbers(records))) >= max(before, 3060 - gone)


def test_a_restart_in_the_middle_counts_nothing_twice(kafka: EmbeddedKafka) -> None:
    """Killed while it discards, before and after a commit: each message is given up once."""
    kafka.down(-1)
    with outlet(kafka, recall_s=0.5, segment_bytes=SEGMENT_BYTES) as bruce:
        bruce.send(anywhere(8000))
        limit = third_segment(bruce, 5)
        bruce.spool.shared.words[Field.EVICT] = limit
        bruce.router.step()
        bruce.restart()
        bruce.router.step()
        bruce.router.commit()
        bruce.restart()
        evict(bruce, limit)
        assert evicted(bruce)[b"t"] == limit


def test_a_broker_that_answers_late_is_waited_for(kafka: EmbeddedKafka) -> None:
    """Messages in flight to a broker that works are delivered, not given up, and the producer stays."""
    with outlet(kafka, recall_s=60.0, segment_bytes=SEGMENT_BYTES, window_messages=200) as bruce:
        bruce.send(keyed(12))
        bruce.finish()
        for broker in (1, 2, 3):
            kafka.rtt(broker, 700)
        bruce.send(keyed(3000, first=12))
        bruce.run(lambda: bruce.router.in_flight() > 100)
        in_flight, handle = bruce.router.in_flight(), bruce.client.handle
        limit = third_segment(bruce)
        evict(bruce, limit)
        assert bruce.client.handle == handle
        assert evicted(bruce)[b"t"] <= limit - 12 - in_flight


def test_nothing_asked_for_is_nothing_done(kafka: EmbeddedKafka) -> None:
    """A limit below the low watermark, as after a restart of the keeper: every message is delivered."""
    with outlet(kafka, recall_s=0.5) as bruce:
        bruce.send(anywhere(100))
        bruce.finish()
        bruce.spool.shared.words[Field.EVICT] = 50
        bruce.send(anywhere(100, first=100))
        assert bruce.finish() == (200, 200, [])


def test_a_letter_that_waits_does_not_keep_the_room(kafka: EmbeddedKafka) -> None:
    """There is no dead-letter topic yet, and Kafka is away: the letter is among the oldest, and goes, too."""
    options = {"recall_s": 0.5, "segment_bytes": SEGMENT_BYTES, "grace_s": 0.2, "dead_letter_topic": b"dead"}
    with outlet(kafka, kafka_properties={"allow.auto.create.topics": "false"}, **options) as bruce:
        bruce.send([encode(b"nowhere", b"", timestamp=NOW_MS), *keyed(12)])
        bruce.run(lambda: len(bruce.router._rejects) == 1 and bruce.resolved == 12)
        kafka.down(-1)
        bruce.send(keyed(3000, first=12))
        limit = third_segment(bruce)
        evict(bruce, limit)
        assert bruce.acks.low_watermark >= limit
        assert evicted(bruce)[b"nowhere"] == 1
        kafka.up(-1)
        outcomes = bruce.finish()
        assert outcomes.resolved == bruce.spool.synced
        assert evicted(bruce).total() == limit - 12
