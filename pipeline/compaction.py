"""Many small files of an archive into few: the same rows, read faster."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.archive import PARTITIONS, SCHEMA
from pipeline.archive_files import File, list_files, write_staged
from pipeline.archive_log import ArchiveLog
from pipeline.errors import JobFailed
from pipeline.store import Store

SMALL_BYTES = 64 << 20
FULL_BYTES = 128 << 20
"""Of a file that was merged. Two small ones always fit, so that the next compaction finds one at most."""


def compact_files(session: SparkSession, store: Store, log: ArchiveLog) -> int:
    """Merge the small files of each directory; returns how many there were."""
    bins = choose_bins(list_files(session, store.address)) if log.newest.number else []
    small = [file.name for files in bins for file in files]
    if not small:
        return 0
    rows = session.read.schema(SCHEMA).option("basePath", store.address)
    before = rows.parquet(*map(store.within, small))
    staging = log.new_staging()
    written = write_staged(_merge(before, bins), store, staging)
    if (after := sum(written.topics.values())) != (count := before.count()):
        raise JobFailed(f"{store.address}: {count} rows became {after}; nothing was changed")
    log.commit({}, staging, written.moves, small)
    return len(small)


def choose_bins(files: Iterable[File]) -> list[list[File]]:
    """The small files that become one each: of one directory, at least two, FULL_BYTES at most."""
    bins: list[list[File]] = []
    small = sorted((file for file in files if file.bytes < SMALL_BYTES), key=lambda file: file.name)
    for _, group in groupby(small, key=lambda file: file.name.rpartition("/")[0]):
        filled = 0
        chosen: list[File] = []
        for file in group:
            if filled + file.bytes > FULL_BYTES:
                bins.append(chosen)
                filled, chosen = 0, []
            chosen.append(file)
            filled += file.bytes
        bins.append(chosen)
    return [chosen for chosen in bins if len(chosen) > 1]


def _merge(rows: DataFrame, bins: list[list[File]]) -> DataFrame:
    """The same rows, those of one bin in one task, in order of sequence."""
    named = [(file.name, number) for number, files in enumerate(bins) for file in files]
    table = rows.sparkSession.createDataFrame(named, "file string, bin int")
    # The path is an encoded URI, but nothing in its last parts needs that.
    file = f.substring_index("_metadata.file_path", "/", -(len(PARTITIONS) + 1))
    together = rows.withColumn("file", file).join(f.broadcast(table), "file").repartition(len(bins), "bin")
    return together.sortWithinPartitions(*PARTITIONS, "spool", "sequence").drop("file", "bin")
