"""Rows as Spark's own Kafka connector writes them, where its jars are present.

    placed = route(stored, routes).where("partition >= 0")
    as_kafka_rows(placed).write.format("kafka").option("kafka.bootstrap.servers", ...).save()

The connector has no transactions: a task that is tried again sends all of its rows once more. Nor has it a
column for a record's time: an audit calls records altered unless the topic's `message.timestamp.type` is
LogAppendTime.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipeline.identity import HEADER

_HEADERS = "array<struct<key: string, value: binary>>"


def as_kafka_rows(frame: DataFrame) -> DataFrame:
    """key, value, topic, partition and headers of routed rows; the header is the daemon's `bruce-id`.

    `frame` has those columns but headers, and spool and sequence, as `pipeline.schema` describes them. The
    order stays: `pipeline.sink.arrange` makes it that of the log, within each partition.
    """
    digits = f.concat("spool", f.lpad(f.hex("sequence"), 16, "0"))
    ours = f.struct(f.lit(HEADER).alias("key"), f.unhex(digits).alias("value"))
    headers = f.array(ours).cast(_HEADERS).alias("headers")
    return frame.select("key", "value", "topic", "partition", headers)
