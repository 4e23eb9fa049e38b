"""A replay sends what was asked for, as it went at first, with a header that says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dispatch.embedded import EmbeddedKafka
from dispatch.options import DispatchOptions
from spool.files import Span
from spool.wire import encode
from tests.daemon import consume
from tests.spool.rig import Rig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SECOND = 10**9
START = 1_700_000_000 * SECOND


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker, and topics of three partitions."""
    with EmbeddedKafka(brokers=1, topics=[("clicks", 3), ("views", 3), ("again", 3)]) as running:
        yield running


def fill(rig: Rig, count: int) -> None:
    """Messages of two topics, ten received in each second."""
    for first in range(0, count, 10):
        rig.append(
            [
                encode((b"clicks", b"views")[i % 2], b"%d" % i, key=b"k", timestamp=i, partition_key=i % 5)
                for i in range(first, min(first + 10, count))
            ],
            received_ns=START + first // 10 * SECOND,
        )
    rig.step()
    rig.crash()


def test_what_is_asked_for_goes_again(spark: SparkSession, kafka: EmbeddedKafka, rig: Rig) -> None:
    """By time, number and topic, to another topic: as stored, both headers, in order; without marks."""
    from pipeline.replay import asked, dry, read_again, run_replay

    fill(rig, 200)
    options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers})
    stored, layouts = read_again(spark, [str(rig.options.directory)], archive=False)
    span = Span(end=155, from_ns=START + 5 * SECOND, to_ns=START + 17 * SECOND, topics=frozenset([b"clicks"]))
    expected = list(range(50, 155, 2))
    assert dry(asked(stored, span)).topics == {"clicks": len(expected)}
    done = run_replay(asked(stored, span, "again"), layouts, options, {})
    assert (done.messages, done.delivered, done.left) == (len(expected), len(expected), 0)
    records = consume(kafka.bootstrap_servers, "again", 3, len(expected))
    assert sorted(int(record.value() or b"") for record in records) == expected
    last: dict[int | None, int] = {}
    for record in records:
        number, headers = int(record.value() or b""), dict(record.headers() or [])
        assert headers["bruce-id"] == rig.identity.spool + number.to_bytes(8, "big")
        assert len(headers["bruce-replay"]) == len("1700000000000")
        assert headers["bruce-replay"].isdigit()
        assert (record.key(), record.timestamp()[1], record.partition()) == (b"k", number, number % 5 % 3)
        assert last.get(record.partition(), -1) < number
        last[record.partition()] = number
    assert not (rig.layout.delivery / "data.mdb").exists()


def test_an_archive_goes_again(spark: SparkSession, kafka: EmbeddedKafka, rig: Rig, tmp_path: Path) -> None:
    """The same from an archive, whose spool is gone: each message once, with the header of its spool."""
    from pipeline.archive import READ, shelve
    from pipeline.replay import asked, read_again, run_replay

    fill(rig, 100)
    spool = spark.read.format("bruce").schema(READ).load(str(rig.options.directory))
    shelve(spool).write.partitionBy("topic", "date").parquet(str(tmp_path / "archive"))
    options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers})
    stored, layouts = read_again(spark, [str(tmp_path / "archive")], archive=True)
    done = run_replay(asked(stored, Span(first=10)), layouts, options, {"clicks": "murmur2"})
    assert (done.messages, done.delivered, done.left) == (90, 90, 0)
    found = [
        *consume(kafka.bootstrap_servers, "clicks", 3, 45),
        *consume(kafka.bootstrap_servers, "views", 3, 45),
    ]
    ids = sorted(dict(record.headers() or [])["bruce-id"] for record in found)
    assert ids == [rig.identity.spool + number.to_bytes(8, "big") for number in range(10, 100)]
