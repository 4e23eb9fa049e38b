"""An audit's findings on real spools, and its report."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from confluent_kafka import Producer
from pyarrow import parquet
from pyspark.sql import Row

from dispatch.embedded import EmbeddedKafka
from pipeline.audit import COUNTS
from pipeline.audit_report import Report, SpoolReport, bound_expired
from spool.format.wire import encode
from spool.index.segment_list import SegmentList
from spool.marks.discarded import Changes, Discard
from spool.marks.marks import Marks
from tests.pipeline.object_store import object_store
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make(*, unreadable: int = 0, dropped: int = 0, **counts: int) -> Report:
    """A report over one topic."""
    spool = SpoolReport("ab", "/spool", 10, unreadable)
    return Report([spool], {"t": {**dict.fromkeys(COUNTS, 0), **counts}}, {"t": dropped} if dropped else {})


def test_json_has_the_documented_shape() -> None:
    """Version, verdict, spools, topics and their sum are in the fields that other tools read."""
    counts = {**dict.fromkeys(COUNTS, 0), "stored": 10, "once": 9, "lost": 1}
    assert make(stored=10, once=9, lost=1, dropped=4).as_json() == {
        "version": 1,
        "sound": False,
        "spools": [{"spool": "ab", "directory": "/spool", "stored": 10, "unreadable": 0, "damaged": ()}],
        "topics": [{"topic": "t", **counts}],
        "total": counts,
        "by": [],
        "groups": [],
        "dropped": {"t": 4},
        "read_by": "bruce-kafka",
        "unread": [],
    }


def test_parquet_has_the_groups(tmp_path: Path) -> None:
    """A row a group: topic, dimensions and counts, typed, with nulls where nothing is known."""
    counts = dict.fromkeys(COUNTS, 1)
    groups = [{"topic": "t", "partition": part, "host": "h", **counts} for part in (None, 2)]
    Report([], {}, {}, ("partition", "host"), groups).write_parquet(str(tmp_path / "p"))
    table = parquet.read_table(tmp_path / "p")
    assert table.to_pylist() == groups
    assert str(table.schema.field("partition").type) == "int32"


@pytest.mark.parametrize("fault", ["lost", "altered", "unreadable"])
def test_a_fault_is_not_sound(fault: str) -> None:
    """Lost, altered or unreadable messages make the audit fail."""
    assert not make(**{fault: 1}).sound


@pytest.mark.parametrize(
    "finding", ["duplicated", "discarded", "backlog", "withheld", "expired", "reordered", "foreign"]
)
def test_a_finding_is_no_fault(finding: str) -> None:
    """Effects that at-least-once delivery allows, or the daemon accounts for, do not."""
    assert make(**{finding: 1}).sound


def test_the_sentence_says_the_worst_first() -> None:
    """Faults come before findings; where Kafka dropped records a loss may be its retention: that is said."""
    assert make(stored=5, once=5).sentence() == "5 of 5 stored messages are in Kafka: nothing is missing."
    assert make(stored=5, once=3, duplicated=1, lost=1, unreadable=2, dropped=7).sentence() == (
        "4 of 7 stored messages are in Kafka: 1 lost, 2 unreadable in the spool (1 duplicated). "
        "Kafka itself has dropped 7 records of these topics since."
    )
    by_connector = replace(make(stored=5, once=5), read_by="kafka")
    assert by_connector.sentence().endswith("nothing is missing. Kafka was read by Spark's own connector.")


def test_what_was_not_read_is_not_sound() -> None:
    """The disk may give it tomorrow: until then it is unknown."""
    report = replace(make(stored=10, once=10), unread=["/spool/segments/1.seg: Input/output error"])
    assert not report.sound
    assert "the disk gives an error for /spool/segments/1.seg: Input/output error" in report.sentence()


def test_no_more_are_expired_than_kafka_dropped() -> None:
    """Those beyond are lost, of the rows with the latest messages; a topic that dropped none has none."""
    rows = [
        Row(topic=topic, spool="ab", expired=expired, lost=0, last_expired=last)
        for topic, expired, last in (("a", 5, 50), ("a", 5, 90), ("a", 0, None), ("b", 2, 3), ("c", 1, 1))
    ]
    found = bound_expired(rows, {"a": 7, "b": 2})
    assert [(row["expired"], row["lost"]) for row in found] == [(5, 0), (2, 3), (0, 0), (2, 0), (0, 1)]


TOPICS = ["clicks", "views"]


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker, and the topics with three partitions each."""
    with EmbeddedKafka(brokers=1, topics=[(topic, 3) for topic in TOPICS]) as running:
        yield running


class Delivery:
    """Stores messages, and produces them as the daemon would, but for what a test asks for."""

    def __init__(self, spool: SpoolFixture, kafka: EmbeddedKafka, count: int) -> None:
        self.spool = spool
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5})
        for first in range(0, count, 20):
            spool.append(
                [
                    encode(TOPICS[i % 2].encode(), b"%d" % i, key=b"k", timestamp=i, partition_key=i % 5)
                    for i in range(first, min(first + 20, count))
                ]
            )
        spool.step()

    def send(self, *sequences: int, value: bytes | None = None) -> None:
        """Produce these messages, in this order."""
        for i in sequences:
            self._producer.produce(
                TOPICS[i % 2],
                value or b"%d" % i,
                b"k",
                i % 5 % 3,
                timestamp=i or 1,
                headers=[("bruce-id", self.spool.identity.spool + i.to_bytes(8, "big"))],
            )
        assert self._producer.flush(30) == 0


@pytest.mark.oldest_spark
@pytest.mark.spark
def test_planted_faults_are_found(spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture) -> None:
    """Seven losses, five duplicates, three swaps and one altered value are found, and nothing else.

    By partition, hour and host, too; and by content alone, where the altered one is lost, and foreign.
    """
    from pipeline.audit_report import run_audit

    delivery = Delivery(spool, kafka, 1000)
    order = [i for i in range(1000) if i not in range(100, 107) and i != 500]
    for at in (200, 300, 400):
        # Two messages of the same partition key and topic, ten apart.
        a, b = order.index(at), order.index(at + 10)
        order[a], order[b] = order[b], order[a]
    delivery.send(*order, *range(5))
    delivery.send(500, value=b"other")
    spool.crash()
    paths, properties = [str(spool.options.directory)], {"bootstrap.servers": kafka.bootstrap_servers}
    by = ("partition", "hour", "host")
    report = run_audit(spark, paths, properties, by=by)
    assert report.total == {
        "stored": 1000,
        "once": 988,
        "duplicated": 5,
        "discarded": 0,
        "backlog": 0,
        "withheld": 0,
        "expired": 0,
        "lost": 7,
        "altered": 1,
        "reordered": 4,  # and 500, which went out last
        "foreign": 0,
        "unreadable": 0,
    }
    assert not report.sound
    assert [(s.spool, s.stored, s.unreadable) for s in report.spools] == [
        (spool.identity.spool.hex(), 1000, 0)
    ]
    assert report.sentence() == (
        "993 of 1,000 stored messages are in Kafka: 7 lost, 1 altered (5 duplicated)."
    )
    assert {name: sum(group[name] for group in report.groups) for name in report.total} == report.total
    assert {group["partition"] for group in report.groups if group["lost"]} == {None}
    assert {group["partition"] for group in report.groups if group["once"]} == {0, 1, 2}
    assert len({group["hour"] for group in report.groups}) in {1, 2}  # the hour may have ended meanwhile
    total = run_audit(spark, paths, properties, unstamped=True).total
    expected = {"once": 987, "lost": 8, "altered": 0, "reordered": 3, "foreign": 1}
    assert total == report.total | expected


@pytest.mark.spark
def test_what_the_daemon_noted_is_not_lost(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture
) -> None:
    """A message discarded after acceptance, or not resolved yet, is called so; what is resolved is lost."""
    from pipeline.audit_report import run_audit

    delivery = Delivery(spool, kafka, 200)
    delivery.send(*range(97), 98, 120)
    spool.crash()
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    marks.commit(Changes(low_watermark=100, discarded=[Discard(np.array([97]), 15, b"views", 1)]))
    marks.close()
    report = run_audit(spark, [str(spool.options.directory)], {"bootstrap.servers": kafka.bootstrap_servers})
    total = report.total
    assert {name: total[name] for name in ("once", "discarded", "backlog", "lost")} == {
        "once": 99,
        "discarded": 1,
        "backlog": 99,
        "lost": 1,
    }


@pytest.mark.spark
def test_a_copy_beside_its_spool(
    spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture, tmp_path: Path
) -> None:
    """Each message counts once."""
    from pipeline.audit_report import run_audit

    Delivery(spool, kafka, 200).send(*range(199))
    spool.stop()
    shutil.copytree(spool.options.directory, tmp_path / "copy")
    paths = [str(spool.options.directory), str(tmp_path / "copy")]
    report = run_audit(spark, paths, {"bootstrap.servers": kafka.bootstrap_servers})
    found = {name: count for name, count in report.total.items() if count}
    assert found == {"stored": 200, "once": 199, "lost": 1}


@pytest.mark.spark
def test_a_spool_at_an_address(spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """It is audited by its marks, like one that is here; the report shows no password."""
    from pipeline.audit_report import run_audit

    place = tmp_path / "bucket/host"
    place.mkdir(parents=True)
    spool = SpoolFixture(place)
    delivery = Delivery(spool, kafka, 200)
    delivery.send(*range(97), 98, 120)
    spool.stop()
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    marks.commit(Changes(low_watermark=100, discarded=[Discard(np.array([97]), 15, b"views", 1)]))
    marks.close()
    with object_store(tmp_path) as (query, _):
        paths = [f"s3://me:secret@bucket/*/spool?{query}"]
        report = run_audit(spark, paths, {"bootstrap.servers": kafka.bootstrap_servers})
    found = {name: count for name, count in report.total.items() if count}
    assert found == {"stored": 200, "once": 99, "discarded": 1, "backlog": 99, "lost": 1}
    assert report.spools[0].directory == "s3://bucket/host/spool"
    assert report.explanations() == [
        "discarded: the daemon gave them up, and said why: see `brucectl discards`"
    ]


@pytest.mark.spark
def test_one_topic(spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture) -> None:
    """With a topic named, only its messages and records count."""
    from pipeline.audit_report import run_audit

    Delivery(spool, kafka, 100).send(*range(0, 100, 2))
    spool.crash()
    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    report = run_audit(spark, [str(spool.options.directory)], servers, ["clicks"])
    assert report.sound
    assert {topic: counts["once"] for topic, counts in report.topics.items()} == {"clicks": 50}


@pytest.mark.spark
def test_a_damaged_header_is_named(spark: SparkSession, kafka: EmbeddedKafka, spool: SpoolFixture) -> None:
    """Its messages are unreadable, and in Kafka; none is lost, altered or foreign, and the rows add up."""
    from pipeline.audit_report import run_audit

    Delivery(spool, kafka, 200).send(*range(200))
    spool.stop()
    first, suffix = spool.layout.list_segments()[0]
    held = spool.layout.list_segments()[1][0]
    with spool.layout.segment(first, suffix).open("r+b") as file:
        file.write(b"xx")
    report = run_audit(spark, [str(spool.options.directory)], {"bootstrap.servers": kafka.bootstrap_servers})
    (told,) = report.spools
    assert (told.stored, told.unreadable) == (200, held)
    assert told.damaged == [str(spool.layout.segment(first, suffix))]
    assert {name: report.total[name] for name in ("once", "lost", "altered", "foreign", "unreadable")} == {
        "once": 200 - held,
        "lost": 0,
        "altered": 0,
        "foreign": 0,
        "unreadable": held,
    }
    rows = dict(report.rows())
    assert rows.pop("stored in all") == sum(rows.values()) == 200
    assert rows["unreadable in the spool, in Kafka"] == held
    assert not report.sound
    assert f"the header of {told.damaged[0]} is damaged" in report.sentence()
