"""The records of Kafka as a table."""

from __future__ import annotations

import duckdb
from confluent_kafka import Producer

from dispatch.embedded import EmbeddedKafka
from pipeline.embedded.records import RecordDataset
from pipeline.kafka.ranges import plan_ranges

SPOOL = bytes(range(16))


def test_all_ranges() -> None:
    """One consumer reads each range once, with the columns of a query; a condition on rows holds."""
    with EmbeddedKafka(brokers=1, topics=[("t", 3)]) as kafka:
        properties = {"bootstrap.servers": kafka.bootstrap_servers}
        producer = Producer(properties)
        for i in range(300):
            stamp = ("bruce-id", SPOOL + i.to_bytes(8, "big"))
            producer.produce("t", b"%d" % i, partition=i % 3, headers=[stamp])
        assert producer.flush(30) == 0
        records = RecordDataset(properties, lambda: plan_ranges(properties, ["t"], most=40))
        connection = duckdb.connect()
        connection.register("records", records)
        found = connection.sql("SELECT bruce_sequence, value FROM records WHERE partition = 1").fetchall()
        assert sorted(found) == [(i, b"%d" % i) for i in range(1, 300, 3)]
        assert connection.sql("SELECT count(*), count(DISTINCT bruce_sequence) FROM records").fetchall() == [
            (300, 300)
        ]
