"""Headers, nulls and partitions that senders name, as Kafka's own client in Java reads them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.cimpl import NewTopic

from spool.format.wire import encode, encode_batch, encode_message
from tests.daemon import RunningBruce
from tools.kafka_cluster import KafkaCluster
from tools.kafka_install import fetch_jars, find_program
from tools.kafka_topics import make_topics

pytestmark = pytest.mark.real_kafka

PARTITIONS = 3
PATIENCE_S = 90.0
NOW = 1_764_000_000_000
MOST = [(f"n{number}", b"") for number in range(256)]
KINDS: list[dict[str, Any]] = [
    {"value": b"plain", "key": b"k"},
    {"value": b"v", "headers": [("content-type", b"text/plain"), ("traceparent", bytes(range(55)))]},
    {"value": b"v", "key": b"twice", "headers": [("n", b"1"), ("n", b"2"), ("m", b""), ("n", None)]},
    {"value": b"", "key": b"", "headers": [("", b"no name"), ("grüße", "größe".encode())]},
    {"value": None, "key": b"deleted"},
    {"value": None, "headers": [("why", None)]},
    {"value": b"v", "partition": 2, "headers": [("bruce-id", bytes(24))]},
    {"value": b"v", "key": b"other", "partition": 0},
    {"value": b"v", "partition_key": 7, "headers": MOST},
]
"""The fields of each message, beside its topic and its time."""


def read_by_java(servers: str, topic: str, count: int) -> list[dict[str, Any]]:
    """The first records of a topic, as ReadRecords.java prints them."""
    source = Path(__file__).with_name("ReadRecords.java")
    command = [find_program("java"), "-cp", f"{fetch_jars()}/*", str(source), servers, topic, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def text_of(data: bytes | None) -> str | None:
    """As ReadRecords.java has bytes."""
    return None if data is None else data.hex()


@pytest.mark.parametrize("mode", ["at_least_once", "exactly_once"])
def test_java_reads_what_was_sent(kafka1: KafkaCluster, tmp_path: Path, mode: str) -> None:
    """One by one and as a batch: key, value, time, partition, and the sender's headers behind `bruce-id`."""
    topic = f"kinds-{mode}"
    make_topics(kafka1.bootstrap, [NewTopic(topic, PARTITIONS)])
    bruce = RunningBruce(tmp_path, kafka1.bootstrap, segment_bytes=4 << 20)
    bruce.configure({"dispatch": {"mode": mode}})
    alone = [encode(topic.encode(), b"plain", key=b"k", timestamp=NOW)]
    alone += [
        encode_message(topic.encode(), timestamp=NOW + number, **fields)
        for number, fields in enumerate(KINDS)
        if number
    ]
    missing = encode_message(topic.encode(), b"v", partition=PARTITIONS)
    with bruce:
        bruce.send([*alone, encode_batch(alone), missing])
        seen = bruce.await_status(lambda s: s.received == 2 * len(KINDS) + 1 and s.backlog == 0, PATIENCE_S)
        assert seen.discarded == {"partition": 1}
        found = read_by_java(kafka1.bootstrap, topic, 2 * len(KINDS))
    sequences = []
    for record in found:
        number = record["timestamp"] - NOW
        fields = KINDS[number]
        name, identity = record["headers"][0]
        assert bytes.fromhex(name) == b"bruce-id"
        sequences.append(int(identity[32:], 16))
        own = [[text_of(name.encode()), text_of(value)] for name, value in fields.get("headers", [])]
        assert record["headers"][1:] == own
        assert record["key"] == text_of(fields.get("key"))
        assert record["value"] == text_of(fields["value"])
        named = fields.get(
            "partition", fields["partition_key"] % PARTITIONS if "partition_key" in fields else None
        )
        assert named in (None, record["partition"])
        assert sequences[-1] % len(KINDS) == number
    assert sorted(sequences) == list(range(2 * len(KINDS)))
