"""`bruce run` without room: each policy, a quota, and what status says; nothing sent is unaccounted for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from status.report import Snapshot
from tests.daemon import RunningBruce, consume
from tests.router.outlet import check_order, keyed, numbers

PARTITIONS = 6
SEGMENT = 256 << 10


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Three brokers; two topics."""
    with EmbeddedKafka(brokers=3, topics=[("t", PARTITIONS), ("u", 2)]) as running:
        yield running


def send_until_it_waits(bruce: RunningBruce) -> int:
    """Send until a sender has waited for a while on a full spool; how many were sent for certain."""
    sent = 0
    while sent < 100_000:
        try:
            sent += bruce.send(keyed(100, first=sent, bytes_each=300), timeout_s=1)
        except TimeoutError:
            if bruce.status().full:
                return sent
    pytest.fail("no sender has to wait")


def settled(seen: Snapshot, sent: int) -> bool:
    """Whether all that was sent is accounted for."""
    assert seen.received == seen.delivered + sum(seen.discarded.values()) + seen.backlog
    return seen.received == sent


@pytest.mark.long
def test_the_oldest_go_while_kafka_is_away(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Three times what there is room for, with no broker: the newest stay, in order, all accounted for."""
    settings = {"spool": {"max_bytes": 6 * SEGMENT, "when_full": "discard_oldest"}}
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings) as bruce:
        bruce.send(keyed(60))
        bruce.await_status(lambda seen: seen.delivered == 60)
        kafka.down(-1)
        sent = 60 + bruce.send(keyed(12_000, first=60, bytes_each=300), timeout_s=60)
        seen = bruce.await_status(
            lambda seen: settled(seen, sent) and seen.discarded.get("evicted", 0) > 0, 90
        )
        assert set(seen.discarded) <= {"evicted", "spool_full"}
        kafka.up(-1)
        seen = bruce.await_status(lambda seen: seen.backlog == 0 and not seen.full, 90)
        assert settled(seen, sent)
        records = consume(kafka.bootstrap_servers, "t", PARTITIONS, seen.delivered)
        check_order(records)
        kept = set(numbers(records))
        # The newest are there, unless there was a moment without anything older to give up.
        assert seen.discarded.get("spool_full", 0) or max(kept) == sent - 1
        assert len(kept) >= seen.delivered
        assert bruce.stop() == 0


def test_senders_wait_while_kafka_is_away(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """With `block` a sender waits, status says why, and when Kafka is back everything is delivered."""
    settings = {"spool": {"max_bytes": 4 * SEGMENT, "when_full": "block"}}
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings) as bruce:
        kafka.down(-1)
        sent = send_until_it_waits(bruce)
        seen = bruce.await_status(lambda seen: bool(seen.full))
        assert [(view.what, view.topic) for view in seen.full] == [("max_bytes", None)]
        assert "senders wait" in seen.full[0].sentence
        shown = bruce.brucectl("status")
        assert seen.full[0].sentence in shown.stdout.decode()
        report = json.loads(bruce.brucectl("status", "--json").stdout)
        assert report["full"][0]["what"] == "max_bytes"
        assert seen.discarded == {}
        kafka.up(-1)
        seen = bruce.await_status(
            lambda seen: seen.backlog == 0 and seen.received >= sent and not seen.full, 90
        )
        assert seen.discarded == {}
        records = consume(kafka.bootstrap_servers, "t", PARTITIONS, seen.delivered)
        check_order(records)
        assert bruce.stop() == 0


def over_quota(bruce: RunningBruce) -> dict[str | None, int]:
    """The count of `brucectl discards` for messages beyond their quota, by topic."""
    done = bruce.brucectl("discards", "--reason", "over_quota", "--json")
    return {row["topic"]: row["messages"] for row in json.loads(done.stdout)["discards"]}


def test_a_topic_in_flood_has_its_share(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """A topic whose broker is away uses up its quota, and is discarded from there on; the other goes on."""
    for partition in range(PARTITIONS):
        kafka.leader("t", partition, partition % 2 + 1)
    for partition in range(2):
        kafka.leader("u", partition, 3)
    kafka.down(3)
    settings = {
        "spool": {"max_bytes": 96 * SEGMENT},
        'topics."u"': {"quota": "5%"},
        'topics."t"': {"quota": "13%"},
    }
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings) as bruce:
        sent = 0
        for _ in range(100):
            sent += bruce.send(encode(b"u", b"v" * 1000) for _ in range(50))
            sent += bruce.send(keyed(5, first=sent, bytes_each=1000))
            if sent > 800 and bruce.status().full:
                break
        seen = bruce.await_status(lambda seen: bool(seen.full))
        assert [(view.what, view.topic) for view in seen.full] == [("quota", "u")]
        assert "topic u has used up its quota" in seen.full[0].sentence
        sent += bruce.send(encode(b"u", b"v" * 1000) for _ in range(200))
        # More of `t` than its quota is behind the stuck messages of `u`; it is delivered, and so does not
        # count.
        for first in range(10**6, 10**6 + 4000, 1000):
            before = bruce.status().delivered
            sent += bruce.send(keyed(1000, first=first, bytes_each=1000))
            bruce.await_status(lambda seen, before=before: seen.delivered >= before + 1000)
        seen = bruce.await_status(lambda seen: settled(seen, sent))
        assert seen.discarded.get("over_quota", 0) >= 200
        assert set(seen.discarded) == {"over_quota"}
        assert over_quota(bruce) == {"u": seen.discarded["over_quota"]}
        kafka.up(3)
        seen = bruce.await_status(lambda seen: seen.backlog == 0 and not seen.full, 60)
        assert settled(seen, sent)
        # Delivered segments are kept while there is room; from here on there is less.
        assert bruce.stop() == 0
        text = bruce.config.read_text(encoding="utf-8")
        before, refused = bruce.status().spool.segments, over_quota(bruce)
        bruce.config.write_text(text.replace(str(96 * SEGMENT), str(8 * SEGMENT)), encoding="utf-8")
        bruce.start()
        bruce.await_status(lambda seen: seen.spool.segments <= 8 < before)
        assert over_quota(bruce) == refused == {"u": seen.discarded["over_quota"]}
        assert bruce.stop() == 0


@pytest.mark.long
def test_limits_change_on_a_live_spool(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """A restart with a third of max_bytes and other segments: what is there is delivered, room given back."""
    settings = {"spool": {"max_bytes": 24 * SEGMENT}}
    bruce = RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings)
    kafka.down(-1)
    with bruce:
        sent = bruce.send(keyed(8000, bytes_each=400), timeout_s=60)
        bruce.await_status(lambda seen: settled(seen, sent))
        assert bruce.stop() == 0
        before = bruce.status().spool.bytes
        text = bruce.config.read_text(encoding="utf-8")
        text = text.replace(str(24 * SEGMENT), str(8 * SEGMENT)).replace(f"= {SEGMENT}", f"= {2 * SEGMENT}")
        bruce.config.write_text(text, encoding="utf-8")
        bruce.start()
        assert before > 8 * SEGMENT
        kafka.up(-1)
        bruce.await_status(lambda seen: seen.backlog == 0, 90)
        sent += bruce.send(keyed(8000, first=8000, bytes_each=400), timeout_s=60)
        seen = bruce.await_status(lambda seen: settled(seen, sent) and seen.backlog == 0, 90)
        assert seen.delivered + seen.discarded.get("spool_full", 0) == sent
        bruce.await_status(lambda seen: seen.spool.bytes <= 8 * SEGMENT + 65536, 60)
        check_order(consume(kafka.bootstrap_servers, "t", PARTITIONS, seen.delivered))
        assert bruce.stop() == 0
