"""Who a record is: the header `bruce-id`, as a column for consumers that drop duplicates.

from pipeline.identity import bruce_id

records = spark.read.format("kafka").option("includeHeaders", "true")...load()
once = records.withColumn("id", bruce_id("headers")).dropDuplicates(["id"])
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f

HEADER = "bruce-id"
ID_BYTES = 24
"""Spool uuid, 16 bytes; sequence, 8 bytes, big-endian."""


def bruce_id(headers: Column | str) -> Column:
    """struct<spool: string, sequence: long> of a record; null when it has no header of ours.

    `headers`: array<struct<key: string, value: binary>>, as Spark's Kafka connector gives them. All of it is
    Spark's own expressions, on streams, too: there `dropDuplicatesWithinWatermark` takes it.
    """
    column = f.col(headers) if isinstance(headers, str) else headers
    ours = f.filter(column, lambda one: (one["key"] == HEADER) & (f.octet_length(one["value"]) == ID_BYTES))
    found = f.try_element_at(ours, f.lit(1))["value"]
    digits = f.lower(f.hex(found))
    # conv reads 64 bits without a sign; sequences never use the highest.
    sequence = f.conv(f.substring(digits, 33, 16), 16, 10).cast("long")
    named = f.struct(f.substring(digits, 1, 32).alias("spool"), sequence.alias("sequence"))
    return f.when(found.isNotNull(), named)
