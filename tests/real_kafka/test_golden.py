"""Messages of Dory's clients, by every input, into real Kafka: the records match the golden file."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.daemon import RunningBruce, consume, free_port
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics

pytestmark = pytest.mark.real_kafka

VECTORS = json.loads((Path(__file__).parents[1] / "golden/golden_datagrams.json").read_text())
DATA = [bytes.fromhex(vector["datagram_hex"]) for vector in VECTORS]
RIGHT = DATA[0]
BAD = {
    "short": b"\x00\x00\x00\x05\x00",
    "flags": RIGHT[:8] + b"\x00\x01" + RIGHT[10:],
    "api_key": RIGHT[:4] + b"\x01\x07" + RIGHT[6:],
    "api_version": RIGHT[:6] + b"\x00\x01" + RIGHT[8:],
    "topic": RIGHT[:10] + b"\x7f\xff" + RIGHT[12:],
    "value": RIGHT[:-15] + b"\x00\x00\x00\x01" + RIGHT[-11:],
}
"""Messages that Dory discards, too; each of the right size, so that a stream goes on behind it."""
PARTITIONS = 6
PATIENCE_S = 90.0
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
"""The golden timestamps are those of 1970, and the last one that there is."""


@pytest.fixture
def topics(kafka1: KafkaCluster) -> Iterator[list[str]]:
    """The topics of the golden file, empty; gone again afterwards."""
    names = sorted({vector["topic"] for vector in VECTORS})
    admin = AdminClient({"bootstrap.servers": kafka1.bootstrap})
    make_topics(kafka1.bootstrap, [NewTopic(name, PARTITIONS, config=ANY_TIME) for name in names])
    yield names
    for future in admin.delete_topics(names).values():
        future.result(60)


Record = tuple[bytes | None, bytes, int]
"""Key, value, timestamp."""


def wanted(topic: str) -> tuple[Counter[Record], Counter[int]]:
    """The records of a topic; and how many of them go to which partition, as their senders have chosen."""
    records, chosen = Counter[Record](), Counter[int]()
    for vector in VECTORS:
        if vector["topic"] == topic:
            key, value = bytes.fromhex(vector["key_hex"]), bytes.fromhex(vector["value_hex"])
            # librdkafka takes 0 for "now"; see README.
            records[key or None, value, vector["timestamp"] or 1] += 1
            if vector["kind"] == "PartitionKey":
                chosen[vector["partition_key"] % PARTITIONS] += 1
    return records, chosen


@pytest.mark.sample("datagram")
@pytest.mark.parametrize("name", ["datagram", "stream", "tcp"])
def test_as_the_golden_file_says(kafka1: KafkaCluster, tmp_path: Path, topics: list[str], name: str) -> None:
    """Topic, key, value, time and partition of each message; bad ones between them have their reason."""
    bruce, tcp = RunningBruce(tmp_path, kafka1.bootstrap, segment_bytes=4 << 20), free_port()
    stream = bruce.runtime / "stream"
    bruce.configure({"ingest": {"stream_socket": str(stream), "tcp_port": tcp}})
    sent = [*DATA[:6], *BAD.values(), *DATA[6:]]
    with bruce:
        if name == "datagram":
            bruce.send(sent)
        else:
            with socket.socket(socket.AF_UNIX if name == "stream" else socket.AF_INET) as sender:
                sender.connect(str(stream) if name == "stream" else ("127.0.0.1", tcp))
                sender.sendall(b"".join(sent))
        seen = bruce.await_status(lambda s: s.received == len(sent) and s.backlog == 0, PATIENCE_S)
        assert seen.discarded == dict.fromkeys(BAD, 1)
        assert {one.input: one.stored for one in seen.inputs if one.stored} == {name: len(DATA)}
        for topic in topics:
            expected, chosen = wanted(topic)
            records = consume(kafka1.bootstrap, topic, PARTITIONS, expected.total(), PATIENCE_S)
            assert Counter((r.key(), r.value(), r.timestamp()[1]) for r in records) == expected
            # The others go anywhere.
            assert chosen <= Counter(record.partition() for record in records)
