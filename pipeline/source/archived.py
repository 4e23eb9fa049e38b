"""The rows of an archive, as Spark reads them."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from pipeline.source.schema import ARCHIVE_SCHEMA


def read_archive(session: SparkSession, address: str) -> DataFrame:
    """All rows."""
    return session.read.schema(ARCHIVE_SCHEMA).parquet(address)
