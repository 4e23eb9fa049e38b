"""The ends of partitions: Kafka tells what it has dropped, and what it withholds."""

from __future__ import annotations

from confluent_kafka import Producer

from dispatch.embedded import EmbeddedKafka
from pipeline.kafka.ends import count_dropped, find_starts, offsets_of, plan_withheld
from pipeline.kafka.ranges import plan_ranges

SPOOL = bytes(range(16))


def test_starts() -> None:
    """Of a partition whose oldest records are gone: how many, and time and stamp of the first left."""
    with EmbeddedKafka(brokers=1, topics=[("t", 2), ("empty", 2)]) as kafka:
        properties = {"bootstrap.servers": kafka.bootstrap_servers}
        producer = Producer(properties)
        # The embedded Kafka keeps 5 MiB of a partition.
        for number in range(60):
            stamp = ("bruce-id", SPOOL + number.to_bytes(8, "big"))
            producer.produce("t", bytes(100_000), partition=1, timestamp=1000 + number, headers=[stamp])
            producer.flush(30)
        producer.produce("t", b"all there", partition=0)
        producer.flush(30)
        (found,) = find_starts(properties, ["t", "empty", "absent"])
        (left,) = [one for one in plan_ranges(properties, ["t"]) if one.partition == 1]
        assert 0 < found.dropped == left.start < 60
        assert (found.topic, found.partition, found.is_empty) == ("t", 1, False)
        assert (found.timestamp_ms, found.spool) == (1000 + found.dropped, SPOOL.hex())
        assert found.sequence == found.dropped
        assert count_dropped(properties, ["t", "empty", "absent"]) == {"t": found.dropped}
        assert offsets_of([found, found]) == {"t": 2 * found.dropped}
        assert plan_withheld(properties) == []
