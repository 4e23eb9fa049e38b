"""`brucectl trace` on real Kafka: one message's way, also while a broker does not answer."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from spool.format.wire import encode
from tests.cli.tracing import trace
from tests.daemon import RunningBruce, consume
from tests.real_kafka.test_bruce import PARTITIONS, PATIENCE_S, create, leaders
from tools.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.real_kafka

WAY = ["received", "routed", "sent", "acknowledged"]


@pytest.mark.long
def test_one_of_many(kafka3: KafkaCluster, tmp_path: Path) -> None:
    """By topic and key, one of 600: as Kafka has it; while its broker is frozen, not acknowledged yet."""
    topic = f"trace-{uuid.uuid4().hex}".encode()
    create(kafka3, topic)
    with RunningBruce(tmp_path, kafka3.bootstrap) as bruce:
        # The producer knows its brokers.
        bruce.send(encode(topic, b"before", partition_key=n) for n in range(PARTITIONS))
        bruce.await_status(lambda s: s.delivered == PARTITIONS, PATIENCE_S)
        with trace(bruce, tmp_path / "out", "--topic", topic.decode(), "--key", "wanted") as found:
            bruce.send(
                encode(topic, b"%d" % n, key=b"wanted" if n == 300 else b"other", partition_key=n)
                for n in range(600)
            )
            bruce.await_true(lambda: found.has("acknowledged"), PATIENCE_S)
            told = [event for event in found.events() if "sequence" in event]
            leader = leaders(kafka3, topic)
            kafka3.freeze(leader[0])
            bruce.send([encode(topic, b"held", key=b"wanted", partition_key=0)])
            bruce.await_true(lambda: found.has("sent", 2), PATIENCE_S)
            assert not found.has("acknowledged", 2)
            kafka3.thaw(leader[0])
            bruce.await_true(lambda: found.has("acknowledged", 2), PATIENCE_S)
            held = [event for event in found.events() if "sequence" in event][len(told) :]
        bruce.await_status(lambda s: s.delivered == PARTITIONS + 601, PATIENCE_S)
    records = consume(kafka3.bootstrap, topic.decode(), PARTITIONS, PARTITIONS + 601, PATIENCE_S)
    wanted = {record.value(): record for record in records if record.key() == b"wanted"}
    for way, value in ((told, b"300"), (held, b"held")):
        assert [event["event"] for event in way] == WAY
        assert len({event["sequence"] for event in way}) == 1
        record = wanted[value]
        assert (way[3]["partition"], way[3]["offset"]) == (record.partition(), record.offset())
        assert way[2]["partition"] == record.partition()
        assert way[2]["broker"] == leader[record.partition() or 0]
