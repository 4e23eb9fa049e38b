"""Rows into Kafka by `bruce-kafka`: here those of a stream, as PySpark before 4.1 hands them over."""

from __future__ import annotations

import pyarrow as pa
import pytest


def test_rows_become_columns() -> None:
    """All of them, in order, nulls too, with the types of the schema; of no rows, nothing."""
    pytest.importorskip("pyspark")
    from pyspark.sql import Row

    from pipeline.kafka import writer

    schema = pa.schema([("sequence", pa.int64()), ("partition_key", pa.int32()), ("value", pa.binary())])
    told = [((1 << 62) + i, i if i % 2 else None, b"%d" % i) for i in range(5)]
    make = Row(*schema.names)
    batches = list(writer.to_batches((make(*one) for one in told), schema, most=2))
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    assert pa.Table.from_batches(batches).schema == schema
    assert [tuple(row.values()) for row in pa.Table.from_batches(batches).to_pylist()] == told
    assert list(writer.to_batches(iter(()), schema)) == []
