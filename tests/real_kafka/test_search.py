"""Finding the record of one message: by its id, from its own time on."""

from __future__ import annotations

import json
import time
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic

from dispatch.consumer import Wanted, find_records
from spool.format.wire import encode
from tests.cli.program import run
from tests.daemon import RunningBruce
from tests.dispatch.fixture import produce_bytes
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics

pytestmark = [pytest.mark.real_kafka, pytest.mark.long]

TIMEOUT_S = 60.0
PARTITIONS = 3


@pytest.fixture
def topic(kafka1: KafkaCluster) -> str:
    """A new one."""
    name = f"search-{uuid4().hex}"
    make_topics(kafka1.bootstrap, [NewTopic(name, PARTITIONS)])
    return name


def test_where_a_record_is(kafka1: KafkaCluster, topic: str) -> None:
    """Every record with the id, the likely partition first; nothing with another id, nothing from before.

    The id is the first header of its name: a sender that adds one passes its record off as no other's.
    """
    spool, start = uuid4().bytes, int(time.time() * 1000) - 1_000_000
    properties = {"bootstrap.servers": kafka1.bootstrap}
    producer = Producer(properties)
    for number in range(300):
        stamp = ("bruce-id", spool + number.to_bytes(8, "big"))
        producer.produce(topic, b"v", partition=number % 3, timestamp=start + number, headers=[stamp])
    producer.flush(TIMEOUT_S)
    wanted = Wanted(topic, spool + (17).to_bytes(8, "big"), start + 17)
    again = [("x", b"y"), ("bruce-id", wanted.stamp)]
    producer.produce(topic, b"again", partition=0, timestamp=start + 5_000, headers=again)
    producer.produce(topic, b"bare", partition=0, timestamp=start + 5_001)
    forged = [("bruce-id", spool + bytes(8)), ("bruce-id", wanted.stamp)]
    producer.produce(topic, b"forged", partition=0, timestamp=start + 5_002, headers=forged)
    assert producer.flush(TIMEOUT_S) == 0
    produce_bytes(kafka1.bootstrap, topic, [(b"\xff", b""), (b"bruce-id", spool + bytes(8))])
    first, second = (2, 5, start + 17), (0, 100, start + 5_000)
    assert find_records(properties, wanted) == [second, first]
    assert find_records(properties, wanted, first=2) == [first, second]
    assert find_records(properties, wanted._replace(from_ms=start + 18)) == [second]
    assert find_records(properties, wanted._replace(from_ms=start + 5_001)) == []
    assert find_records(properties, wanted._replace(stamp=bytes(24))) == []


def test_show_names_its_offset(kafka1: KafkaCluster, topic: str, tmp_path: Path) -> None:
    """`brucectl inspect show SEQ --kafka`: the partition that was foretold, and the offset in it."""
    now = int(time.time() * 1000)
    with RunningBruce(tmp_path, kafka1.bootstrap) as bruce:
        bruce.send(encode(topic.encode(), b"%d" % n, timestamp=now + n, partition_key=n) for n in range(60))
        bruce.await_status(lambda s: s.delivered == 60)
        for sequence in (0, 31, 59):
            done = run("inspect", "show", sequence, "--kafka", "--json", environ=bruce.environ)
            assert done.returncode == 0, done.stderr
            seen = json.loads(done.stdout)
            assert (seen["value"], seen["fate"], seen["committed"]) == (str(sequence), "delivered", True)
            assert seen["partition"]["number"] == sequence % PARTITIONS
            place = {"partition": sequence % PARTITIONS, "offset": sequence // PARTITIONS}
            assert seen["kafka"] == [{**place, "timestamp": now + sequence}]
