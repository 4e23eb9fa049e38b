"""The Parquet files of an archive: how they are written aside, found, and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from pipeline.archive import PARTITIONS, SCHEMA
from pipeline.store import Store


@dataclass(frozen=True, slots=True)
class Staged:
    """What a job wrote, and nobody sees yet."""

    moves: Sequence[tuple[str, str]]
    """Each file's name, and the one that it will have."""
    topics: Mapping[str, int]
    """Rows by topic, in order."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of an archive."""

    name: str
    """Below the archive."""
    bytes: int


def write_staged(rows: DataFrame, store: Store, staging: str) -> Staged:
    """Write rows of `pipeline.archive.SCHEMA` as files below `staging`."""
    address = store.within(staging)
    rows.write.partitionBy(*PARTITIONS).option("compression", "zstd").parquet(address)
    session = rows.sparkSession
    moves = [(f"{staging}/{file.name}", file.name) for file in list_files(session, address)]
    # Counted from the files' footers.
    counts = read_archive(session, address).groupBy("topic").count().orderBy("topic").collect()
    return Staged(moves, {row["topic"]: row["count"] for row in counts})


def read_archive(session: SparkSession, address: str) -> DataFrame:
    """The rows of an archive."""
    return session.read.schema(SCHEMA).parquet(address)


def list_files(session: SparkSession, address: str) -> list[File]:
    """The Parquet files below an address, in order; Spark lists many directories at a time."""
    found = session.read.format("binaryFile").option("pathGlobFilter", "*.parquet").load(address)
    rows = found.select("path", "length").collect()
    return sorted((File(_below(row.path), row.length) for row in rows), key=lambda file: file.name)


def _below(path: str) -> str:
    """`topic=.../date=.../name` of a file's whole address."""
    return "/".join(path.split("/")[-len(PARTITIONS) - 1 :])
