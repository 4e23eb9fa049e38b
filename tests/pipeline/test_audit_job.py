"""An audit's findings on real spools, on either engine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from confluent_kafka import Producer

from dispatch.embedded import EmbeddedKafka
from pipeline.audit_job import bound_expired
from pipeline.errors import JobFailed
from spool.format.segment_format import HEADER
from spool.format.wire import encode
from spool.index.segment_list import SegmentList
from spool.marks.discarded import Changes, Discard
from spool.marks.marks import Marks
from spool.native.digest import digest
from tests.pipeline.object_store import object_store
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pipeline.engine import Engine

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

    def send(self, *sequences: int, value: bytes | None = None, partitions: int = 3) -> None:
        """Produce these messages, in this order."""
        for i in sequences:
            self._producer.produce(
                TOPICS[i % 2],
                value or b"%d" % i,
                b"k",
                i % 5 % partitions,
                timestamp=i or 1,
                headers=[("bruce-id", self.spool.identity.spool + i.to_bytes(8, "big"))],
            )
        assert self._producer.flush(30) == 0


def test_no_more_are_expired_than_kafka_dropped() -> None:
    """Those beyond are lost, of the rows with the latest messages; a topic that dropped none has none."""
    rows = [
        {"topic": topic, "spool": "ab", "expired": expired, "lost": 0, "last_expired": last}
        for topic, expired, last in (("a", 5, 50), ("a", 5, 90), ("a", 0, None), ("b", 2, 3), ("c", 1, 1))
    ]
    found = bound_expired(rows, {"a": 7, "b": 2})
    assert [(row["expired"], row["lost"]) for row in found] == [(5, 0), (2, 3), (0, 0), (2, 0), (0, 1)]


@pytest.mark.oldest_spark
def test_planted_faults_are_found(engine: Engine, kafka: EmbeddedKafka, spool: SpoolFixture) -> None:
    """Seven losses, five duplicates, three swaps and one altered value are found, and nothing else.

    By partition, hour and host, too; and by content alone, where the altered one is lost, and foreign.
    """
    from pipeline.audit_job import AuditOptions, run_audit

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
    report = run_audit(engine, paths, properties, AuditOptions(by=by))
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
        "misplaced": 0,
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
    hours = {group["hour"] for group in report.groups}
    now = datetime.now(UTC)
    # The hour may have ended meanwhile.
    assert hours <= {f"{now - timedelta(hours=ago):%Y-%m-%dT%H:00:00Z}" for ago in (0, 1)}
    total = run_audit(engine, paths, properties, AuditOptions(unstamped=True)).total
    expected = {"once": 987, "lost": 8, "altered": 0, "reordered": 3, "foreign": 1}
    assert total == report.total | expected


def test_what_the_daemon_noted_is_not_lost(engine: Engine, kafka: EmbeddedKafka, spool: SpoolFixture) -> None:
    """A message discarded after acceptance, or not resolved yet, is called so; what is resolved is lost."""
    from pipeline.audit_job import run_audit

    delivery = Delivery(spool, kafka, 200)
    delivery.send(*range(97), 98, 120)
    spool.crash()
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    marks.commit(Changes(low_watermark=100, discarded=[Discard(np.array([97]), 15, b"views", 1)]))
    marks.close()
    report = run_audit(engine, [str(spool.options.directory)], {"bootstrap.servers": kafka.bootstrap_servers})
    total = report.total
    assert {name: total[name] for name in ("once", "discarded", "backlog", "lost")} == {
        "once": 99,
        "discarded": 1,
        "backlog": 99,
        "lost": 1,
    }


def test_a_copy_beside_its_spool_is_refused(
    engine: Engine, kafka: EmbeddedKafka, spool: SpoolFixture, tmp_path: Path
) -> None:
    """Each of its messages would count twice, or by the marks of the wrong one."""
    from pipeline.audit_job import run_audit

    Delivery(spool, kafka, 200).send(*range(199))
    spool.stop()
    shutil.copytree(spool.options.directory, tmp_path / "copy")
    paths = [str(spool.options.directory), str(tmp_path / "copy")]
    with pytest.raises(JobFailed, match="are copies of one spool; name one of them"):
        run_audit(engine, paths, {"bootstrap.servers": kafka.bootstrap_servers})


def test_a_stranger_s_id_stops_no_audit(engine: Engine, kafka: EmbeddedKafka, spool: SpoolFixture) -> None:
    """Its sequence is none: the record is foreign, wherever it is."""
    from pipeline.audit_job import run_audit

    delivery = Delivery(spool, kafka, 40)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for tail in (b"\x80" + bytes(7), b"\xff" * 8):
        for uuid in (spool.identity.spool, bytes(16)):
            producer.produce("clicks", b"x", partition=0, headers=[("bruce-id", uuid + tail)])
    assert producer.flush(30) == 0
    delivery.send(*range(40))
    spool.stop()
    report = run_audit(engine, [str(spool.options.directory)], {"bootstrap.servers": kafka.bootstrap_servers})
    assert report.sound
    assert {name: report.total[name] for name in ("once", "foreign")} == {"once": 40, "foreign": 4}


def test_records_that_are_dropped_meanwhile(
    engine: Engine, kafka: EmbeddedKafka, spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If they may be all that seems lost, the audit is not finished; beyond them, messages are lost."""
    from pipeline import audit_job

    Delivery(spool, kafka, 400).send(*range(390))
    spool.stop()
    servers, paths = {"bootstrap.servers": kafka.bootstrap_servers}, [str(spool.options.directory)]
    monkeypatch.setattr(audit_job, "count_dropped", lambda *_: {"clicks": 5})
    with pytest.raises(JobFailed, match=r"Kafka dropped 5 records of clicks .* 5 messages may have been"):
        audit_job.run_audit(engine, paths, servers)
    monkeypatch.setattr(audit_job, "count_dropped", lambda *_: {"clicks": 4, "others": 10})
    report = audit_job.run_audit(engine, paths, servers)
    assert (report.sound, report.total["lost"]) == (False, 10)


def test_segments_that_are_removed_meanwhile(
    engine: Engine, kafka: EmbeddedKafka, spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the reading: their messages are neither stored nor unreadable; after that it is said."""
    from pipeline import audit_job

    Delivery(spool, kafka, 400).send(*range(400))
    spool.stop()
    servers, ends = {"bootstrap.servers": kafka.bootstrap_servers}, audit_job.find_starts
    summarise, paths = audit_job.summarise, [str(spool.options.directory)]

    def remove() -> None:
        spool.layout.segment(*spool.layout.list_segments()[0]).unlink()

    def slowly(*given: Any) -> Any:
        remove()
        return ends(*given)

    monkeypatch.setattr(audit_job, "find_starts", slowly)
    report = audit_job.run_audit(engine, paths, servers)
    held = spool.layout.list_segments()[0][0]
    assert (report.sound, report.unreadable, report.spools[0].stored) == (True, 0, 400 - held)
    assert report.total["once"] == 400 - held
    monkeypatch.undo()

    def late(*given: Any) -> Any:
        remove()
        return summarise(*given)

    monkeypatch.setattr(audit_job, "summarise", late)
    with pytest.raises(JobFailed, match="bruce removed segments"):
        audit_job.run_audit(engine, paths, servers)


def test_a_newer_segment_is_an_audit_that_is_not_finished(
    engine: Engine, kafka: EmbeddedKafka, spool: SpoolFixture
) -> None:
    """Exit code 1 would say that something is lost."""
    from pipeline.audit_job import run_audit

    Delivery(spool, kafka, 40)
    spool.stop()
    path = spool.layout.segment(*spool.layout.list_segments()[0])
    data = bytearray(path.read_bytes())
    header = np.frombuffer(data, HEADER, 1)
    header["version"], header["check"] = 99, 0
    header["check"] = digest(bytes(data[: HEADER.itemsize - 8]))
    path.write_bytes(data)
    with pytest.raises(JobFailed, match="version 99"):
        run_audit(engine, [str(spool.options.directory)], {"bootstrap.servers": kafka.bootstrap_servers})


def test_a_spool_at_an_address(engine: Engine, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """It is audited by its marks, like one that is here; the report shows no password."""
    from pipeline.audit_job import run_audit

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
        report = run_audit(engine, paths, {"bootstrap.servers": kafka.bootstrap_servers})
    found = {name: count for name, count in report.total.items() if count}
    assert found == {"stored": 200, "once": 99, "discarded": 1, "backlog": 99, "lost": 1}
    assert report.spools[0].directory == "s3://bucket/host/spool"
    assert report.explanations() == [
        "discarded: the daemon gave them up, and said why: see `brucectl discards`"
    ]


def test_one_topic(engine: Engine, kafka: EmbeddedKafka, spool: SpoolFixture) -> None:
    """With a topic named, only its messages and records count."""
    from pipeline.audit_job import AuditOptions, run_audit

    Delivery(spool, kafka, 100).send(*range(0, 100, 2))
    spool.crash()
    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    report = run_audit(engine, [str(spool.options.directory)], servers, AuditOptions(["clicks"]))
    assert report.sound
    assert {topic: counts["once"] for topic, counts in report.topics.items()} == {"clicks": 50}


def test_one_topic_with_records_of_others(engine: Engine, kafka: EmbeddedKafka, spool: SpoolFixture) -> None:
    """A replay into it has the ids of messages that were stored for another: these are not unreadable."""
    from pipeline.audit_job import AuditOptions, run_audit

    Delivery(spool, kafka, 40).send(*range(40))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for one in range(0, 40, 2):
        stamp = spool.identity.spool + one.to_bytes(8, "big")
        producer.produce("views", b"%d" % one, b"k", 0, headers=[("bruce-id", stamp)])
    assert producer.flush(30) == 0
    spool.stop()
    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    report = run_audit(engine, [str(spool.options.directory)], servers, AuditOptions(["views"]))
    assert (report.sound, report.unreadable, report.total["once"]) == (True, 0, 20)


def test_one_topic_with_damage(engine: Engine, kafka: EmbeddedKafka, spool: SpoolFixture) -> None:
    """Messages that are in Kafka, and not readable in the spool, are as wrong as in a whole audit."""
    from pipeline.audit_job import AuditOptions, run_audit

    Delivery(spool, kafka, 40).send(*range(40))
    spool.stop()
    frame = spool.segments()[0].frames[0]
    with spool.layout.segment(*spool.layout.list_segments()[0]).open("r+b") as file:
        file.seek(frame.offset + 70)
        file.write(b"xxxx")
    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    report = run_audit(engine, [str(spool.options.directory)], servers, AuditOptions(["views"]))
    assert (report.sound, report.total["unreadable"], report.total["lost"]) == (False, 10, 0)


def test_a_damaged_header_is_named(engine: Engine, kafka: EmbeddedKafka, spool: SpoolFixture) -> None:
    """Its messages are unreadable, and in Kafka; none is lost, altered or foreign, and the rows add up."""
    from pipeline.audit_job import run_audit

    Delivery(spool, kafka, 200).send(*range(200))
    spool.stop()
    first, suffix = spool.layout.list_segments()[0]
    held = spool.layout.list_segments()[1][0]
    with spool.layout.segment(first, suffix).open("r+b") as file:
        file.write(b"xx")
    report = run_audit(engine, [str(spool.options.directory)], {"bootstrap.servers": kafka.bootstrap_servers})
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


def test_a_record_in_a_wrong_partition(engine: Engine, kafka: EmbeddedKafka, spool: SpoolFixture) -> None:
    """By the partitioner of its topic and the partition count of its time; no loss, and no fault.

    Of the topic `clicks`, which had two partitions up to message 100 and three from there on, one message of
    each time is where the other count would have it; four of `views`, which goes by a function of the user's,
    are anywhere.
    """
    from pipeline.audit_job import AuditOptions, run_audit

    delivery = Delivery(spool, kafka, 200)
    delivery.send(*range(1, 200, 2))
    delivery.send(*(i for i in range(0, 200, 2) if i < 100 and i != 14), partitions=2)
    delivery.send(14, *(i for i in range(100, 200, 2) if i != 108))
    delivery.send(108, partitions=2)
    spool.stop()
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    history = [(0, 2), (100, 3)]
    marks.commit(Changes(low_watermark=200, partitions={b"clicks": history}))
    marks.close()
    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    options = AuditOptions(partitioners={"views": "theirs:choose"})
    report = run_audit(engine, [str(spool.options.directory)], servers, options)
    found = {name: count for name, count in report.total.items() if count}
    assert found == {"stored": 200, "once": 200, "misplaced": 2}
    assert report.topics["clicks"]["misplaced"] == 2
    assert report.sound
    assert report.sentence() == "200 of 200 stored messages are in Kafka: nothing is missing (2 misplaced)."
    other = AuditOptions(partitioners={"clicks": "murmur2", "views": "partition_key"})
    assert run_audit(engine, [str(spool.options.directory)], servers, other).total["misplaced"] > 50
