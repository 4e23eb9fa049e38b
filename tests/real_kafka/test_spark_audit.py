"""`brucectl audit` and `spark audit` on real brokers: they find the planted faults, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from spool.format.wire import encode, encode_message
from spool.index.segment_list import SegmentList
from spool.marks.discarded import Changes
from spool.marks.marks import Marks
from tests.daemon import ROOT
from tests.router.outlet import NOW_MS
from tests.spool.fixture import SpoolFixture
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics
from tools.maven_jars import JarsMissing, MavenJars

pytestmark = [pytest.mark.real_kafka, pytest.mark.spark]

MESSAGES, KEYS, PARTITIONS = 3000, 7, 6
LOST = range(100, 107)
DOUBLED = range(500, 505)
ALTERED = (602, 603)
"""One has headers in Kafka only, one in the spool only."""
SWAPPED = (1000, 1500, 2000)
"""Each with the next message of its partition key."""
TIMEOUT_S = 600
Pairs = list[tuple[str, bytes | None]]
SCANS = {"kafka": "Scan KafkaRelation", "bruce-kafka": "BatchScan bruce-kafka"}
"""How a plan names the two sources."""
CONNECTOR = MavenJars(
    "Spark's Kafka connector", ROOT / "tools/connector_jars/pom.xml", ROOT / ".cache/spark-connector/4.2.0"
)


@pytest.fixture(params=["duckdb", "bruce-kafka", "kafka"])
def source(request: pytest.FixtureRequest) -> str:
    """The engine: DuckDB, or Spark with Kafka read by our format, or by its own where its jars can be had."""
    if request.param == "kafka":
        try:
            CONNECTOR.fetch()
        except JarsMissing as error:
            pytest.skip(f"no connector: {error}")
    return str(request.param)


@pytest.mark.long
def test_planted_faults_are_found(kafka3: KafkaCluster, tmp_path: Path, source: str) -> None:
    """Seven losses, whose messages stand in an aborted transaction, five duplicates and three swaps.

    The headers of two records are not their messages'. All is found by DuckDB, and by Spark with its
    own connector in the session, and without; the plans that Spark carried out read Kafka by that source
    only, and the report names it.
    """
    topic = f"bruce-{uuid.uuid4().hex}"
    make_topics(kafka3.bootstrap, [NewTopic(topic, PARTITIONS, 3)])
    spool = SpoolFixture(tmp_path)
    for first in range(0, MESSAGES, 20):
        numbers = range(first, first + 20)
        spool.append(
            [
                encode_message(
                    topic.encode(),
                    b"%d" % i,
                    key=b"k",
                    timestamp=NOW_MS + i,
                    partition_key=i % KEYS,
                    headers=headers_of(i),
                )
                for i in numbers
            ]
        )
    spool.step()
    spool.crash()
    order = [i for i in range(MESSAGES) if i not in LOST]
    for number in SWAPPED:
        a, b = order.index(number), order.index(number + KEYS)
        order[a], order[b] = order[b], order[a]
    produce(kafka3.bootstrap, topic, spool.identity.spool, [*order, *DOUBLED], headers=changed)
    produce(kafka3.bootstrap, topic, spool.identity.spool, [*LOST], aborted=True)
    events = tmp_path / "events"
    events.mkdir()
    report = audit(kafka3.bootstrap, spool, source, events)
    wanted = dict.fromkeys(
        ("discarded", "backlog", "withheld", "expired", "misplaced", "foreign", "unreadable"), 0
    )
    wanted |= {"stored": MESSAGES, "once": MESSAGES - 12, "lost": 7, "duplicated": 5, "altered": 2}
    assert report["total"] == {**wanted, "reordered": 3}
    assert report["read_by"] == ("bruce-kafka" if source == "duckdb" else source)
    assert source == "duckdb" or sources(events) == {SCANS[source]}


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("bruce-kafka", marks=pytest.mark.long)])
def test_what_kafka_does_is_no_loss(kafka3: KafkaCluster, tmp_path: Path, engine: str) -> None:
    """Records that Kafka deleted, and those behind somebody's open transaction: seven others are lost.

    When the transaction is over and the seven are there, the audit finds nothing, and exits 0.
    """
    topic = f"bruce-{uuid.uuid4().hex}"
    servers = {"bootstrap.servers": kafka3.bootstrap}
    admin = AdminClient(servers)
    make_topics(kafka3.bootstrap, [NewTopic(topic, 2, 3)])
    spool = SpoolFixture(tmp_path)
    for first in range(0, 600, 20):
        spool.append(
            [encode(topic.encode(), b"%d" % i, timestamp=NOW_MS + i) for i in range(first, first + 20)]
        )
    spool.step()
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    marks.commit(Changes(low_watermark=600))
    marks.close()
    spool.crash()

    def send(*numbers: int) -> None:
        sending = Producer({**servers, "linger.ms": 5})
        for i in numbers:
            stamp = ("bruce-id", spool.identity.spool + i.to_bytes(8, "big"))
            sending.produce(topic, b"%d" % i, None, i % 2, timestamp=NOW_MS + i, headers=[stamp])
        assert sending.flush(60) == 0

    lost = range(301, 315, 2)
    send(*(i for i in range(400) if i not in lost))
    other = Producer({**servers, "transactional.id": topic, "transaction.timeout.ms": 600_000})
    other.init_transactions(60)
    other.begin_transaction()
    other.produce(topic, b"no message", partition=0)
    other.flush(60)
    send(*range(400, 600))
    # Of partition 0 the 100 even numbers below 200.
    place = TopicPartition(topic, 0, 100)
    admin.delete_records([place])[place].result(60)
    wanted = dict.fromkeys(
        ("duplicated", "discarded", "backlog", "altered", "reordered", "misplaced", "foreign", "unreadable"),
        0,
    )
    found = audit(kafka3.bootstrap, spool, engine)["total"]
    assert found == {**wanted, "stored": 600, "once": 393, "expired": 100, "withheld": 100, "lost": 7}
    other.abort_transaction(60)
    send(*lost)
    found = audit(kafka3.bootstrap, spool, engine, code=0)["total"]
    assert found == {**wanted, "stored": 600, "once": 500, "expired": 100, "withheld": 0, "lost": 0}


def changed(number: int) -> Pairs:
    """Those of a record, which of two are not its message's."""
    return headers_of(number + (number in ALTERED))


def headers_of(number: int) -> Pairs:
    """The sender's, of every third message."""
    return [("n", b"%d" % number), ("null", None), ("bruce-id", bytes(24))] if number % 3 == 0 else []


def produce(
    bootstrap: str,
    topic: str,
    spool: bytes,
    numbers: list[int],
    *,
    aborted: bool = False,
    headers: Callable[[int], Pairs] = lambda _: [],
) -> None:
    """Send these as the daemon would, in this order, with these headers of the sender's."""
    more = {"transactional.id": topic} if aborted else {}
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **more})
    if aborted:
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
    for i in numbers:
        producer.produce(
            topic,
            b"%d" % i,
            b"k",
            i % KEYS % PARTITIONS,
            timestamp=NOW_MS + i,
            headers=[("bruce-id", spool + i.to_bytes(8, "big")), *headers(i)],
        )
    assert producer.flush(TIMEOUT_S) == 0
    if aborted:
        producer.abort_transaction(TIMEOUT_S)


def sources(events: Path) -> set[str]:
    """The sources of SCANS in the plans which Spark carried out, as its own log of events has them."""
    (log,) = (path for path in events.rglob("*") if path.is_file() and path.suffix != ".crc")
    plans = [
        event["physicalPlanDescription"]
        for event in map(json.loads, log.read_text(encoding="utf-8").splitlines())
        if "physicalPlanDescription" in event
    ]
    return {scan for scan in SCANS.values() if any(scan in plan for plan in plans)}


def audit(
    bootstrap: str, spool: SpoolFixture, source: str, events: Path | None = None, code: int = 1
) -> dict[str, Any]:
    """The report of the command, which exits with `code`; for `kafka` Spark has the connector."""
    brucectl = [sys.executable, "-c", "from cli.app import brucectl; brucectl()"]
    on_spark = [] if source == "duckdb" else ["spark"]
    command = [*on_spark, "audit", str(spool.options.directory), "--bootstrap-servers", bootstrap, "--json"]
    jars = ",".join(map(str, CONNECTOR.directory.glob("*.jar")))
    conf = ["--conf", f"spark.jars={jars}"] if source == "kafka" else []
    told = (
        {}
        if events is None or not on_spark
        else {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }
    )
    conf += [word for name, value in told.items() for word in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [*brucectl, *command, *conf], cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
