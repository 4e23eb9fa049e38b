"""Functions over Arrow columns: which messages are undelivered, and the partition of each.

`Runs` are the backlog of a spool, as runs of sequence numbers. The router's own function chooses partitions:
topic, keys and sequence number in, a partition out.

The inputs of the choice are taken once: the partitions of each topic, and their counts by sequence number of
a spool (`router.partition_history`), from the marks. The choice depends on nothing else: a task that runs
twice, a stage that is computed again, and the next job send a message to the same partition as the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.computed import Computed
from pipeline.source.columns import NOWHERE, integers, to_batch
from router.partition import ABSENT, DEFAULT, Partitioners
from spool.format.batch import Batch, Topics

_COLUMNS = ("spool", "sequence", "topic", "partition_key", "key")

History = list[tuple[int, int]]
"""(from sequence, partitions), in order."""
Counts = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Runs:
    """Sequence numbers of one spool, as runs; columns of one length, in order."""

    first: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    """After the last of each."""

    @classmethod
    def of(cls, runs: npt.ArrayLike, end: int) -> Runs:
        """The parts of `runs`, which are [first, end), int64[n, 2], below `end`."""
        pairs = np.array(runs, np.int64).reshape(-1, 2)
        pairs = pairs[pairs[:, 0] < end]
        return cls(pairs[:, 0].copy(), np.minimum(pairs[:, 1], end))

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

    def count_below(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """int64[n]: how many numbers of the runs are below each of these."""
        before = np.append(0, np.cumsum(self.end - self.first))
        at = np.searchsorted(self.first, sequences, "left")
        if len(self.first) == 0:
            return np.zeros(len(sequences), np.int64)
        # Of the last run that begins below it, the part above.
        beyond = np.maximum(0, self.end[at - 1] - sequences) * (at > 0)
        return np.asarray(before[at] - beyond)

    def hold(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """bool[n]: which of these numbers are in a run."""
        if len(self.first) == 0:
            return np.zeros(len(sequences), np.bool_)
        at = np.searchsorted(self.first, sequences, "right") - 1
        return np.asarray((at >= 0) & (sequences < self.end[at]))


def hold_by(backlog: Mapping[str, Runs]) -> Computed:
    """A column `held` (bool): whether its spool's backlog holds a message; true of rows without one."""

    def choose(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        for spools, sequences in batches:
            held = _hold(spools, integers(sequences), backlog)
            yield pa.array(held | np.asarray(sequences.is_null()))

    return Computed("held", pa.bool_(), choose, ("spool", "sequence"))


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


@dataclass(frozen=True)
class Routes:
    """The inputs of the choice. Names are those of the columns `topic` and `spool`."""

    available: Mapping[str, npt.NDArray[np.bool_]]
    """By topic, bool[partitions]: the partitions for messages that may go anywhere."""
    partitioners: Mapping[str, str] = field(default_factory=dict)
    """By topic, named as in bruce.toml."""
    default: str = DEFAULT
    """Of AnyPartition messages of other topics."""
    histories: Mapping[str, Mapping[str, History]] = field(default_factory=dict)
    """By spool and topic, if the partition count was not always the present one."""


def partition_by(routes: Routes, *, names_partition: bool = True) -> Computed:
    """A column `partition` (int); NOWHERE for messages of topics that Kafka does not have.

    ABSENT for messages whose sender names a partition that their topic does not have, by these routes.
    `names_partition`: the rows have the column to_partition. Raises BadPartitioner.
    """
    Partitioners(routes.partitioners)
    names = [*_COLUMNS, *(("to_partition",) if names_partition else ())]

    def choose(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        chooser = Chooser(routes)
        for arrays in batches:
            yield pa.array(chooser.choose(dict(zip(names, arrays, strict=True))))

    return Computed("partition", pa.int32(), choose, names)


class Chooser:
    """Chooses for one task."""

    def __init__(self, routes: Routes) -> None:
        """Raises BadPartitioner."""
        self._routes = routes
        self._partitioners = Partitioners(routes.partitioners, routes.default)
        self._topics = Topics()
        self._counts = np.zeros(0, np.int32)
        """int32[topics]: how many partitions there are now."""
        self._flats = np.zeros((0, 0), np.int32)
        """Of partition p of a topic: the flat number, the index into `_available`."""
        self._available = np.zeros(0, np.bool_)
        self._spans: dict[str, list[tuple[int, Counts]]] = {}

    def choose(self, columns: Mapping[str, pa.Array]) -> npt.NDArray[np.int32]:
        """The partition of each row."""
        batch = to_batch(dict(columns), self._topics)
        self._learn()
        spools = columns["spool"].dictionary_encode()
        which = np.asarray(spools.indices)
        # Today's counts hold for messages that name their partition.
        chosen, others = self._settle(batch, batch.numbered, self._counts), ~batch.numbered
        for number, spool in enumerate(spools.dictionary.to_pylist()):
            spans = self._spans_of(spool)
            ends = [start for start, _ in spans[1:]] + [np.iinfo(np.int64).max]
            for (start, counts), end in zip(spans, ends, strict=True):
                wanted = others & (which == number) & (batch.sequence >= start) & (batch.sequence < end)
                if wanted.any():
                    np.copyto(chosen, self._settle(batch, wanted, counts), where=wanted)
        return chosen

    def _settle(self, batch: Batch, wanted: npt.NDArray[np.bool_], counts: Counts) -> npt.NDArray[np.int32]:
        """The partitions of the wanted rows, when topics have so many; NOWHERE for others."""
        if not wanted.any():
            return np.full(len(batch), NOWHERE, np.int32)
        flat = self._partitioners.settle(batch, wanted, counts, self._flats, self._available)
        placed = flat - self._flats[batch.topic, 0]
        return np.where(flat >= 0, placed, np.where(flat == ABSENT, ABSENT, NOWHERE)).astype(np.int32)

    def _learn(self) -> None:
        """Number the partitions of new topics."""
        if len(self._counts) == len(self._topics.names):
            return
        names = [name.decode() for name in self._topics.names]
        none = np.zeros(0, np.bool_)
        # A topic may have had more partitions than now: the mask must cover messages routed by that count.
        masks = [self._routes.available.get(name, none) for name in names]
        self._counts = np.array([len(mask) for mask in masks], np.int32)
        starts = np.concatenate([[0], np.cumsum(self._counts)])[:-1]
        self._flats = (starts[:, None] + np.arange(max(1, self._counts.max()))).astype(np.int32)
        self._available = np.concatenate([*masks, none])
        self._spans = {}

    def _spans_of(self, spool: str) -> list[tuple[int, Counts]]:
        """(from sequence, int32[topics]), in order, from 0 on."""
        if spool not in self._spans:
            histories = self._routes.histories.get(spool, {})
            starts = sorted({0, *(start for history in histories.values() for start, _ in history)})
            self._spans[spool] = [(start, self._counts_at(histories, start)) for start in starts]
        return self._spans[spool]

    def _counts_at(self, histories: Mapping[str, History], sequence: int) -> Counts:
        counts = self._counts.copy()
        for topic, history in histories.items():
            number = self._topics.add(topic.encode())
            if number < len(counts):
                held = [count for start, count in history if start <= sequence]
                counts[number] = min(counts[number], held[-1] if held else counts[number])
        return counts
