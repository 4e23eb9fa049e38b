"""`bruce run` beside senders of names that Kafka cannot have, or does not have."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.topic_table import OTHERS
from spool.format.wire import encode
from spool.marks.discarded import MOST_COUNTS
from tests.daemon import RunningBruce, consume

FLOOD = 15_000
MOST = 300
MIB = 1 << 20


def workers(bruce: RunningBruce) -> list[psutil.Process]:
    """The daemon's processes."""
    return [psutil.Process(bruce.pid), *psutil.Process(bruce.pid).children(recursive=True)]


def private(bruce: RunningBruce) -> dict[int, int]:
    """Bytes that each process has of its own."""
    return {process.pid: process.memory_full_info().uss for process in workers(bruce)}


@pytest.mark.long
def test_a_flood_of_names(tmp_path: Path) -> None:
    """Every message of honest topics arrives, one that is new among them; every other one is counted.

    The counts have a bound, and so has what each process keeps of the names.
    """
    settings = {
        "kafka": {"allow.auto.create.topics": False},
        "spool": {"max_topics": MOST},
        "dispatch": {"unknown_topic_seconds": 1},
    }

    def flood() -> Iterator[bytes]:
        for n in range(FLOOD):
            yield encode(b"no name %d" % n, b"x")
            yield encode(b"bogus-%d" % n, b"x")
            if n % 10 == 0:
                yield encode(b"t", b"%d" % n, partition_key=n)
            if n >= FLOOD // 2 and n % 10 == 5:
                yield encode(b"late", b"%d" % n, partition_key=n)

    with (
        EmbeddedKafka(topics=[("t", 2), ("late", 2)]) as kafka,
        RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings, segment_bytes=1 << 20) as bruce,
    ):
        bruce.send([encode(b"t", b"first")])
        bruce.await_status(lambda s: s.delivered == 1)
        before = private(bruce)
        sent = bruce.send(flood())
        seen = bruce.await_status(lambda s: s.received == sent + 1 and s.backlog == 0)
        grown = {pid: size - before[pid] for pid, size in private(bruce).items() if pid in before}
        assert seen.delivered == 1 + FLOOD // 10 + FLOOD // 20
        assert sum(seen.discarded.values()) == 2 * FLOOD
        assert seen.discarded.keys() == {"unknown_topic", "too_many_topics"}
        # All names that Kafka cannot have, and the strangers that had a place.
        assert FLOOD < seen.discarded["unknown_topic"] < FLOOD + 2 * MOST
        listed = json.loads(bruce.brucectl("discards", "--json").stdout)["discards"]
        shown = Counter[str]()
        for row in listed:
            shown[row["reason"]] += row["messages"]
        assert shown == seen.discarded
        assert MOST_COUNTS <= len(listed) <= MOST_COUNTS + 2
        assert {row["topic"] for row in listed if row["messages"] > FLOOD // 4} == {OTHERS.decode()}
        for topic, first, every in (("t", 0, 10), ("late", FLOOD // 2 + 5, 10)):
            expected = {b"%d" % n for n in range(first, FLOOD, every)}
            records = consume(kafka.bootstrap_servers, topic, 2, len(expected))
            assert {record.value() for record in records} - {b"first"} == expected
        assert max(grown.values()) < 80 * MIB
