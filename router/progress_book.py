"""Exactly once: what transactions delivered and the marks do not have yet, for the progress records."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.lane import Begun
from dispatch.progress import Deliverer, Letters, Progress, Runs, merge, runs_of
from dispatch.progress_topic import Place
from router.acks import Acks
from spool.catalogue import Catalogue, SegmentInfo
from spool.lanes import Lanes, read_lanes, remove_lanes
from spool.layout import Layout
from spool.row import UNTOLD
from spool.wire import DEAD_LETTERED


class Unmarked(NamedTuple):
    """Delivered, and in the marks from this generation on at the latest."""

    generation: int
    delivered: list[Runs]
    letters: Sequence[Letters]


class ProgressBook:
    """Stands between the transactions and the marks of one spool."""

    def __init__(self, acks: Acks, catalogue: Catalogue, layout: Layout) -> None:
        self._acks, self._catalogue, self._layout = acks, catalogue, layout
        self._unmarked: deque[Unmarked] = deque()
        self._closed_by: int | None = None
        """The generation of the marks from which on they have what closed lanes delivered."""

    epoch = None
    """One daemon delivers."""

    @property
    def place(self) -> Place | None:
        """Where the last record lies."""
        return Place(*self._acks.progress) if self._acks.progress else None

    @property
    def lanes(self) -> Lanes | None:
        """Those of jobs, which may have delivered what nobody has written down."""
        return read_lanes(self._layout)

    def recover(self, begun: Begun) -> str:
        """Take what the last record says for delivered; why delivery must not go on, or an empty text."""
        last = begun.last
        if last and last.generation > self._acks.generation:
            return (
                "the marks in delivery/ are older than what Kafka knows of this spool (generation "
                f"{self._acks.generation}, there {last.generation}): what was delivered in between would be "
                'sent again; bring back the newer delivery/, or deliver with mode = "at_least_once"'
            )
        self._catalogue.refresh()
        if begun.closed is not None:
            self._closed_by = self._acks.generation
        for record in (last, *(begun.closed or ())):
            if record is None:
                continue
            kept = [runs for block in record.delivered if (runs := self._present(block))]
            self._resolve(kept, record.letters)
            self._unmarked.append(Unmarked(self._acks.next_generation, kept, record.letters))
            if kept and record is not last:
                self._closed_by = self._acks.next_generation
        self._acks.progress = begun.place
        return ""

    def _forget_lanes(self) -> None:
        """Remove the file that names lanes, when they are closed and the marks have what they delivered."""
        if self._closed_by is None or self._closed_by > self._acks.generation:
            return
        self._closed_by = None
        # Should it stay, they are closed once more.
        with suppress(OSError):
            remove_lanes(self._layout)

    def _resolve(self, delivered: Sequence[Runs], letters: Sequence[Letters]) -> None:
        """Take note of what the log has of these; letters count as the discards that they are."""
        for runs in delivered:
            sequences = runs.sequences()
            for letter in letters:
                dead = np.intersect1d(letter.sequences(), sequences)
                self._acks.discard(dead, letter.reason | DEAD_LETTERED, letter.topic)
            self._acks.resolve(sequences)

    def progress(
        self, number: int, by: Deliverer, sequences: npt.NDArray[np.int64], letters: Sequence[Letters]
    ) -> Progress:
        """The record of a transaction that delivers these, some of them as dead letters."""
        while self._unmarked and self._unmarked[0].generation <= self._acks.generation:
            self._unmarked.popleft()
        self._forget_lanes()
        before = [runs for unmarked in self._unmarked for runs in unmarked.delivered]
        delivered = merge([*before, *self._runs(sequences)])
        posted = [letter for unmarked in self._unmarked for letter in unmarked.letters]
        return Progress(number, self._acks.generation, by, delivered, [*posted, *letters])

    def committed(self, sequences: npt.NDArray[np.int64], letters: Sequence[Letters], offset: int) -> None:
        """A transaction with these is in Kafka, its record at `offset`; they are resolved next."""
        self._unmarked.append(Unmarked(self._acks.next_generation, self._runs(sequences), letters))
        assert self._acks.progress
        self._acks.progress = self._acks.progress[0], offset

    def _runs(self, sequences: npt.NDArray[np.int64]) -> list[Runs]:
        out = []
        for info, end in self._spans(sequences):
            which = (sequences >= info.first_sequence) & (sequences < end)
            if which.any():
                out.append(Runs(info.number, info.identity, *runs_of(sequences[which])))
        return out

    def _spans(self, sequences: npt.NDArray[np.int64]) -> list[tuple[SegmentInfo, int]]:
        """The segments that may hold these, and where each ends."""
        if len(sequences) == 0:
            return []
        segments = self._catalogue.segments
        low, high = self._catalogue.at(int(sequences.min())), self._catalogue.at(int(sequences.max()))
        ends = [*(info.first_sequence for info in segments[low + 1 : high + 1]), int(sequences.max()) + 1]
        return list(zip(segments[low : high + 1], ends, strict=True))

    def _present(self, block: Runs) -> Runs | None:
        """What of a block the log has; nothing when it speaks of another segment of this number."""
        info = self._catalogue.by_number(block.segment)
        if info is None or info.identity not in (block.identity, UNTOLD):
            return None
        sequences = block.sequences()
        sequences = sequences[sequences < self._catalogue.end_of(info)]
        return Runs(block.segment, block.identity, *runs_of(sequences))
