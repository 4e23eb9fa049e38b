"""`bruce-kafka` with a transactional.id: whoever attempts a task, and when, each message is there once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from dispatch.options import DispatchOptions
from dispatch.transactions.exactly_once import Phase
from pipeline.delivery.carrier import Carrier
from pipeline.delivery.sink import Delivery, Group, Record, _carrier
from pipeline.errors import JobFailed
from pipeline.kafka.writer import write_rows
from pipeline.source.columns import to_batch
from tests.daemon import consume
from tests.real_kafka.test_exactly_once import PARTITIONS, PATIENCE_S, create
from tests.router.outlet import numbers
from tools.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.real_kafka

SPOOL = uuid.uuid4().hex
GROUP = Group(SPOOL, 2)


@pytest.fixture
def topic(kafka1: KafkaCluster) -> str:
    """A new topic."""
    name = f"writer-{uuid.uuid4().hex}"
    create(kafka1, name.encode())
    return name


def delivery(kafka: KafkaCluster, topic: str, epoch: int) -> Delivery:
    """The delivery of one batch, of a job that is named as its topic."""
    options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap}, mode="exactly_once")
    return Delivery(options, transactional_id=topic, epoch=epoch)


def rows(topic: str, first: int, end: int) -> pa.RecordBatch:
    """Messages of GROUP."""
    sequences = list(range(first, end))
    count = len(sequences)
    return pa.RecordBatch.from_pydict(
        {
            "spool": [SPOOL] * count,
            "sequence": pa.array(sequences, pa.int64()),
            "topic": [topic] * count,
            "partition": pa.array([GROUP.partition] * count, pa.int32()),
            "partition_key": pa.array([None] * count, pa.int32()),
            "timestamp_ms": pa.array([0] * count, pa.int64()),
            "key": pa.array([None] * count, pa.binary()),
            "value": [b"0:%d:" % number for number in sequences],
        }
    )


def write(kafka: KafkaCluster, topic: str, epoch: int, first: int, end: int) -> None:
    """All that a task of that batch does."""
    write_rows(iter([rows(topic, first, end)]), delivery(kafka, topic, epoch))


def take(carrier: Carrier, some: pa.RecordBatch) -> None:
    """As the task does."""
    columns = dict(zip(some.schema.names, some.columns, strict=True))
    carrier.load(to_batch(columns, carrier.topics), some.column("partition").to_numpy())


@pytest.fixture
def slow(kafka1: KafkaCluster, topic: str) -> Iterator[Carrier]:
    """An attempt at a task that hangs with a transaction open, and the first 50 messages in it."""
    ours = delivery(kafka1, topic, 4)
    first = rows(topic, 0, 50)
    with closing(_carrier(ours, GROUP, first, Record(ours))) as carrier:
        take(carrier, first)
        while carrier._pool.phase is not Phase.OPEN:  # type: ignore[attr-defined]
            carrier.step()
        yield carrier


@pytest.mark.long
def test_the_attempt_that_was_slow(kafka1: KafkaCluster, topic: str, slow: Carrier) -> None:
    """A copy does its whole task; going on it has nothing to send, and ends well; so does a late one."""
    write(kafka1, topic, 4, 0, 100)
    take(slow, rows(topic, 50, 100))
    slow.finish()
    slow.close_task()
    assert sorted(slow.settled().sequences) == list(range(100))
    write(kafka1, topic, 4, 0, 100)
    assert numbers(consume(kafka1.bootstrap, topic, PARTITIONS, 100, PATIENCE_S)) == list(range(100))


def test_the_attempt_that_died(kafka1: KafkaCluster, topic: str, slow: Carrier) -> None:
    """Its committed messages are not sent again, its open ones are; so it is in a job started again."""
    while slow.is_busy:
        slow.step()
    take(slow, rows(topic, 50, 70))
    while slow._pool.phase is not Phase.OPEN:  # type: ignore[attr-defined]
        slow.step()
    write(kafka1, topic, 6, 0, 100)
    assert numbers(consume(kafka1.bootstrap, topic, PARTITIONS, 100, PATIENCE_S)) == list(range(100))


@pytest.mark.long
def test_an_attempt_of_an_earlier_batch(kafka1: KafkaCluster, topic: str) -> None:
    """The records of the batch behind it name none of its messages: it sends nothing, and says why."""
    write(kafka1, topic, 4, 0, 50)
    write(kafka1, topic, 6, 50, 100)
    with pytest.raises(JobFailed, match=f"nothing is sent: under the transactional.id {topic} a later batch"):
        write(kafka1, topic, 4, 0, 50)
    assert numbers(consume(kafka1.bootstrap, topic, PARTITIONS, 100, PATIENCE_S)) == list(range(100))


@pytest.mark.long
def test_rows_that_were_not_arranged(kafka1: KafkaCluster, topic: str) -> None:
    """A second task with messages of the same partition does not assume that the first has sent them."""
    write(kafka1, topic, 4, 0, 50)
    with pytest.raises(JobFailed, match="another task with rows of the same partition has delivered"):
        write(kafka1, topic, 4, 50, 100)
    other = rows(topic, 100, 110).set_column(3, "partition", pa.array([1] * 10, pa.int32()))
    with pytest.raises(JobFailed, match="must be sorted by spool, partition and sequence"):
        write_rows(iter([rows(topic, 120, 130), other]), delivery(kafka1, topic, 6))
