"""The headers of records by Spark's own connector: what it writes and reads is what we write and read."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic

from spool.format.wire import encode, encode_message
from tests.daemon import ROOT
from tests.dispatch.fixture import produce_bytes
from tests.real_kafka.test_spark_audit import CONNECTOR
from tests.spool.fixture import SpoolFixture
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics
from tools.maven_jars import JarsMissing

pytestmark = [pytest.mark.real_kafka, pytest.mark.spark, pytest.mark.long]

TIMEOUT_S = 300
Pairs = list[tuple[str, bytes | None]]


def shown(headers: Pairs) -> list[list[str | None]]:
    """As the job prints them."""
    return [[name, None if value is None else value.hex()] for name, value in headers]


def test_both_sources_give_the_same_rows(kafka1: KafkaCluster, tmp_path: Path) -> None:
    """Of other programs' records, and of a spool's messages, which the connector writes behind them.

    The first header `bruce-id` alone is an id, and a name of any bytes ends nothing.
    """
    try:
        CONNECTOR.fetch()
    except JarsMissing as error:
        pytest.skip(f"no connector: {error}")
    topic, other = f"headers-{uuid.uuid4().hex}", uuid.uuid4().bytes
    make_topics(kafka1.bootstrap, [NewTopic(topic, 1)])
    forged = ("bruce-id", other + bytes(8))
    foreign: list[Pairs] = [
        [("x", b"3"), forged, ("y", None)],
        [("bruce-id", b"short"), forged],
        [("bruce-id", None), forged],
        [],
    ]
    producer = Producer({"bootstrap.servers": kafka1.bootstrap})
    for headers in foreign:
        producer.produce(topic, b"v", partition=0, headers=headers)
    assert producer.flush(TIMEOUT_S) == 0
    produce_bytes(kafka1.bootstrap, topic, [(b"\xff", b"4"), (b"bruce-id", other + bytes(8))])
    spool = SpoolFixture(tmp_path)
    own: list[Pairs] = [[], [("a", b"1"), ("a", None), ("\u00e9", b"")], [forged, ("b", b"2")]]
    name = topic.encode()
    spool.append([encode(name, b"old"), *(encode_message(name, b"v", headers=headers) for headers in own)])
    spool.step()
    spool.crash()
    known = [
        [shown([("x", b"3"), ("y", None)]), other.hex(), 0],
        *([shown(headers), None, None] for headers in foreign[1:]),
        [shown([("\ufffd", b"4")]), other.hex(), 0],
        *([shown(pairs), spool.identity.spool.hex(), n] for n, pairs in enumerate([[], *own])),
    ]
    rows = [[offset, *row] for offset, row in enumerate(known)]
    jars = ",".join(map(str, CONNECTOR.directory.glob("*.jar")))
    command = [str(spool.options.directory), kafka1.bootstrap, topic, jars]
    done = subprocess.run(
        [sys.executable, "-m", "tests.real_kafka.headers_job", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"kafka": rows, "bruce-kafka": rows}
