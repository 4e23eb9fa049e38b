"""PySpark's functions for DuckDB, by SQLFrame, and those that it lacks or has otherwise."""

from __future__ import annotations

from typing import Any

from sqlframe.base.column import Column
from sqlframe.duckdb import functions
from sqlglot import exp

from pipeline.engine import DataFrame


class Functions:
    """`pyspark.sql.functions`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(functions, name)

    @staticmethod
    def broadcast(frame: DataFrame) -> DataFrame:
        """There is one process."""
        return frame

    @staticmethod
    def octet_length(column: Column | str) -> Column:
        return _call("OCTET_LENGTH", column)

    @staticmethod
    def percentile_approx(column: Column | str, percentage: float, _accuracy: int) -> Column:
        """DuckDB's has an accuracy of its own."""
        found: Column = functions.percentile_approx(column, percentage)
        return found

    @staticmethod
    def xxhash64(*columns: Column | str) -> Column:
        """Another hash, of 63 bits: hashes of one engine are compared with each other."""
        unsigned = _call("HASH", *columns)
        halved: Column = functions.shiftright(unsigned, 1).cast("long")
        return halved


def text_of(column: str) -> Column:
    """Bytes as text; null where they are not UTF-8."""
    return _call("TRY", _call("DECODE", column))


def _call(name: str, *columns: Column | str) -> Column:
    """SQL that SQLFrame takes as it is."""
    named = [functions.col(one) if isinstance(one, str) else one for one in columns]
    return Column(exp.Anonymous(this=name, expressions=[one.column_expression for one in named]))
