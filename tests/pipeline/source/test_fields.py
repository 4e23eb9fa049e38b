"""The columns have one type in Arrow, and the same in Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline.source.fields import DAMAGE, RECORDS, STORED, UNREAD, to_schema


def test_names_and_types() -> None:
    """Each name has one type, wherever it is a column; each has a sentence; damage is among the columns."""
    kinds: dict[str, set[pa.DataType]] = {}
    for name, kind, text in (*STORED, UNREAD, *RECORDS):
        kinds.setdefault(name, set()).add(kind)
        assert text.endswith(".")
    assert all(len(found) == 1 for found in kinds.values())
    assert set(DAMAGE) < {name for name, *_ in STORED}
    schema = to_schema(["sequence", "topic", "unread"])
    assert schema.types == [pa.int64(), pa.string(), pa.string()]


def test_spark_has_the_same() -> None:
    """Names, types and sentences, there and back."""
    pytest.importorskip("pyspark")
    from pipeline.source.schema import KAFKA_SCHEMA, SCHEMA, to_arrow_schema

    for columns, schema in ((STORED, SCHEMA), (RECORDS, KAFKA_SCHEMA)):
        assert to_arrow_schema(schema) == to_schema(name for name, *_ in columns)
        assert [field.metadata["comment"] for field in schema] == [text for *_, text in columns]
