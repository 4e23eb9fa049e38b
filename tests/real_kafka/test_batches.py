"""`linger.ms`, `batch.size` and `compression.type` take effect, as the batches in the broker's log show."""

from __future__ import annotations

import struct
import uuid
from pathlib import Path
from typing import NamedTuple

import pytest

from spool.format.wire import encode
from tests.daemon import RunningBruce
from tools.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.real_kafka, pytest.mark.long]

PATIENCE_S = 90.0
_BATCH = struct.Struct(">qiibIhiqqqhii")
"""The head of a record batch, version 2, in Kafka's protocol guide."""
_BEFORE_LENGTH = 12
NONE, LZ4, ZSTD = 0, 3, 4


class Batch(NamedTuple):
    """A batch as the broker stored it."""

    codec: int
    records: int


def batches(cluster: KafkaCluster, topic: str) -> list[Batch]:
    """Every batch of a topic, read from the log of the only broker."""
    found = []
    for path in sorted(cluster.directory.glob(f"*/data/{topic}-*/*.log")):
        data, at = path.read_bytes(), 0
        while at + _BATCH.size <= len(data):
            _, length, _, _, _, attributes, *_, records = _BATCH.unpack_from(data, at)
            found.append(Batch(attributes & 7, records))
            at += _BEFORE_LENGTH + length
    return found


@pytest.fixture
def topic() -> str:
    """A name that was not used before."""
    return f"batches-{uuid.uuid4().hex}"


def filled(bruce: RunningBruce, topic: str, messages: int) -> None:
    """Send these to one partition, and wait until they are delivered."""
    before = bruce.status().delivered
    bruce.send([encode(topic.encode(), b"%d" % i + b"v" * 1000, partition_key=0) for i in range(messages)])
    bruce.await_status(lambda s: s.delivered == before + messages, PATIENCE_S)


@pytest.mark.parametrize("linger_ms", [0, 3000])
def test_linger_ms(kafka1: KafkaCluster, tmp_path: Path, topic: str, linger_ms: int) -> None:
    """Messages that come one after the other wait for each other for that time, and not without it."""
    alone = linger_ms == 0
    with RunningBruce(tmp_path, kafka1.bootstrap, settings={"kafka": {"linger.ms": linger_ms}}) as bruce:
        filled(bruce, topic, 1)
        for sent in range(2, 11):
            bruce.send([encode(topic.encode(), b"v", partition_key=0)])
            level = "delivered" if alone else "synced"
            bruce.await_status(
                lambda s, level=level, sent=sent: getattr(s.watermarks, level) == sent, PATIENCE_S
            )
        bruce.await_status(lambda s: s.delivered == 10, PATIENCE_S)
    stored = batches(kafka1, topic)
    assert sum(batch.records for batch in stored) == 10
    assert (len(stored) == 10) is alone


@pytest.mark.parametrize(("size", "most"), [(10_000, 10), (1_000_000, 10_000)])
def test_batch_size(kafka1: KafkaCluster, tmp_path: Path, topic: str, size: int, most: int) -> None:
    """No batch has more than it says; with room for more, there are larger ones."""
    with RunningBruce(tmp_path, kafka1.bootstrap, settings={"kafka": {"batch.size": size}}) as bruce:
        filled(bruce, topic, 2000)
    stored = batches(kafka1, topic)
    assert sum(batch.records for batch in stored) == 2000
    assert max(batch.records for batch in stored) <= most
    assert (max(batch.records for batch in stored) > 10) is (most > 10)


def test_compression_type(kafka1: KafkaCluster, tmp_path: Path, topic: str) -> None:
    """The codec of [kafka], except for a topic with its own; none by default."""
    other = f"other-{uuid.uuid4().hex}"
    tables = {"kafka": {"compression.type": "lz4"}, f'topics."{other}"': {"compression.type": "zstd"}}
    with RunningBruce(tmp_path, kafka1.bootstrap, settings=tables) as bruce:
        filled(bruce, topic, 100)
        filled(bruce, other, 100)
    assert {batch.codec for batch in batches(kafka1, topic)} == {LZ4}
    assert {batch.codec for batch in batches(kafka1, other)} == {ZSTD}


def test_no_compression_by_default(kafka1: KafkaCluster, tmp_path: Path, topic: str) -> None:
    """Records are stored as they are."""
    with RunningBruce(tmp_path, kafka1.bootstrap) as bruce:
        filled(bruce, topic, 100)
    assert {batch.codec for batch in batches(kafka1, topic)} == {NONE}
