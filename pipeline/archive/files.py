"""The files of an archive: what an engine writes and lists, and which of them become one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from pipeline.archive.log import Log
from pipeline.engine import DataFrame

EVERY_S = 10.0
SMALL_BYTES = 64 << 20
FULL_BYTES = 128 << 20
"""Of a file that was merged. Two small ones always fit, so that the next compaction finds one at most."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of an archive."""

    name: str
    """Below the archive."""
    bytes: int


@dataclass(frozen=True, slots=True)
class Staged:
    """The files that a job wrote, and no reader sees yet."""

    moves: Sequence[tuple[str, str]]
    """Each file's name, and the one that it will have."""
    topics: Mapping[str, int]
    """Rows by topic, in order."""


class Files(Protocol):
    """Writes and lists the Parquet files of one archive: topic=.../date=.../*.parquet."""

    address: str
    """As reports name the archive."""
    every_s: float
    """Between two scans of the spools, of a job that goes on. Each makes a file a topic."""

    def open(self) -> Log:
        """The log of its commits. Raises JobFailed."""

    def write(self, rows: DataFrame, staging: str) -> Staged:
        """Write rows of `fields.ARCHIVED` below `staging`: few files, in order of spool and sequence."""

    def visible(self) -> list[File]:
        """The files that readers see, in order."""

    def count(self, names: Sequence[str]) -> int:
        """How many rows these have."""

    def merge(self, bins: Sequence[Sequence[str]], staging: str) -> Staged:
        """Write the rows of each bin as one file, in order of spool and sequence."""


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
