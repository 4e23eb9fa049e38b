"""The columns of `format("bruce")` and `format("bruce-kafka")` (pipeline.source.fields), as Spark has them.

A reader that wants fewer names them: `spark.read.format("bruce").schema("sequence long, topic string")`.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pipeline.source import fields

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_SPARKS: dict[pa.DataType, DataType] = {
    pa.int64(): LongType(),
    pa.binary(): BinaryType(),
    pa.bool_(): BooleanType(),
    pa.int32(): IntegerType(),
    pa.string(): StringType(),
    fields.TIMES: TimestampType(),
    pa.date32(): DateType(),
    fields.ARROW_HEADERS: HEADERS,
}
"""Spark's own function takes other arguments in each release."""


def _spark(columns: Iterable[tuple[str, pa.DataType, str]]) -> StructType:
    return StructType(
        [StructField(name, _SPARKS[kind], True, {"comment": text}) for name, kind, text in columns]
    )


SCHEMA = _spark(fields.STORED)
UNREAD = _spark([fields.UNREAD])[0]
"""Only if a schema names it: else such an error ends the query."""
CONTENT, REPLAYED = _spark([fields.CONTENT, fields.REPLAYED])
"""Likewise."""
KAFKA_SCHEMA = _spark(fields.RECORDS)
ARCHIVE_SCHEMA = _spark(fields.ARCHIVED)


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow types of columns like those above."""
    kinds = {spark.simpleString(): arrow for arrow, spark in _SPARKS.items()}
    return pa.schema([(field.name, kinds[field.dataType.simpleString()]) for field in schema.fields])
