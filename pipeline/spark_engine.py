"""Spark as the engine of a job."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pipeline.computed import Computed
from pipeline.engine import Records
from pipeline.job import explained, with_column
from pipeline.kafka.ranges import Range, show_ranges
from pipeline.kafka.reader import read_kafka
from pipeline.kafka.records import OURS
from pipeline.kafka.source import KNOWN as RECORDS
from pipeline.source.source import KNOWN


class SparkEngine:
    """Implements `pipeline.engine.Engine`."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._kept: list[DataFrame] = []

    @contextmanager
    def working(self) -> Iterator[None]:
        """Spark's words are those in use anyway."""
        try:
            with explained():
                yield
        finally:
            while self._kept:
                self._kept.pop().unpersist()

    def table(self, rows: pa.Table) -> DataFrame:
        return self._session.createDataFrame(rows)

    def spools(
        self,
        directories: Sequence[str],
        columns: Sequence[str],
        computed: Computed | None = None,
        begun: Mapping[str, int] | None = None,
    ) -> DataFrame:
        schema = StructType([KNOWN[name] for name in columns])
        source = self._session.read.format("bruce").schema(schema)
        rows = source.option("fromSequence", json.dumps(begun or {})).load(list(directories))
        return with_column(rows, computed) if computed else rows

    def records(
        self, properties: Mapping[str, str], topics: Sequence[str], columns: Sequence[str]
    ) -> Records:
        schema = StructType([RECORDS[name] for name in columns])
        return Records(*read_kafka(self._session, properties, topics, schema))

    def withheld(self, properties: Mapping[str, str], ranges: Sequence[Range]) -> DataFrame:
        source = self._session.read.format(OURS).options(**properties)
        return source.option("withheld", show_ranges(ranges)).load()

    def kept(self, frame: DataFrame) -> DataFrame:
        self._kept.append(frame.persist())
        return frame

    def collect(self, frame: DataFrame) -> list[dict[str, Any]]:
        return [row.asDict(recursive=True) for row in frame.collect()]
