"""The undelivered messages of a spool: found on the driver, looked up by sequence number on executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType

from pipeline.job import freeze_imports, with_column
from pipeline.source.columns import integers

_HELD = "held"


@dataclass(frozen=True)
class Runs:
    """Sequence numbers of one spool, as runs; columns of one length, in order."""

    first: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    """After the last of each."""

    @classmethod
    def of(cls, runs: Sequence[tuple[int, int]], end: int) -> Runs:
        """The parts of `runs`, which are [first, end), below `end`."""
        pairs = np.array([(a, min(b, end)) for a, b in runs if a < end], np.int64).reshape(-1, 2)
        return cls(pairs[:, 0].copy(), pairs[:, 1].copy())

    def without(self, sequences: npt.NDArray[np.int64]) -> Runs:
        """The runs without these numbers, which are sorted and unique."""
        cut = sequences[self.hold(sequences)]
        first, end = np.sort(np.append(self.first, cut + 1)), np.sort(np.append(self.end, cut))
        return Runs(first[first < end], end[first < end])

    def and_from(self, start: int) -> Runs:
        """These, and all numbers from `start` on, which is after them."""
        return Runs(np.append(self.first, start), np.append(self.end, np.iinfo(np.int64).max))

    def __len__(self) -> int:
        return int((self.end - self.first).sum())

    def hold(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """bool[n]: which of these numbers are in a run."""
        if len(self.first) == 0:
            return np.zeros(len(sequences), np.bool_)
        at = np.searchsorted(self.first, sequences, "right") - 1
        return np.asarray((at >= 0) & (sequences < self.end[at]))


def undelivered(stored: DataFrame, backlog: Mapping[str, Runs]) -> DataFrame:
    """The rows of `stored` that their spool's backlog holds, and those without a message."""

    def choose(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        for spools, sequences in batches:
            held = _hold(spools, integers(sequences), backlog)
            yield pa.array(held | np.asarray(sequences.is_null()))
        freeze_imports("choose")

    told = with_column(stored, _HELD, BooleanType(), choose, "spool", "sequence")
    return told.where(_HELD).drop(_HELD)


def _hold(
    spools: pa.Array, sequences: npt.NDArray[np.int64], backlog: Mapping[str, Runs]
) -> npt.NDArray[np.bool_]:
    encoded: Any = spools.dictionary_encode()
    which = np.asarray(encoded.indices)
    held = np.zeros(len(sequences), np.bool_)
    for number, spool in enumerate(encoded.dictionary.to_pylist()):
        if runs := backlog.get(spool):
            rows = which == number
            held[rows] = runs.hold(sequences[rows])
    return held
