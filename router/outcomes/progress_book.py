"""Exactly once: what transactions delivered and the marks do not have yet, for the progress records."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.transactions.progress import DeadLetterRuns, Deliverer, Progress, Runs, merge, runs_of
from dispatch.transactions.progress_topic import ProgressPosition
from dispatch.transactions.runner import Begun
from router.outcomes.acks import Acks
from spool.format.wire import DEAD_LETTERED
from spool.index.segment_list import SegmentInfo, SegmentList
from spool.layout import Layout
from spool.marks.task_files import (
    TransactionalTasks,
    read_transactional_tasks,
    remove_transactional_tasks,
)
from spool.native.digest import UNTOLD


class Unmarked(NamedTuple):
    """Delivered, and in the marks from this generation on at the latest."""

    generation: int
    delivered: list[Runs]
    letters: Sequence[DeadLetterRuns]


class ProgressBook:
    """Between the transactions and the marks of one spool: what is in Kafka and not in the marks."""

    def __init__(self, acks: Acks, segment_list: SegmentList, layout: Layout) -> None:
        self._acks, self._segment_list, self._layout = acks, segment_list, layout
        self._unmarked: deque[Unmarked] = deque()
        self._closed_by: int | None = None
        """The generation of the marks from which on they have what closed tasks delivered."""

    epoch = None
    """One daemon delivers."""

    @property
    def place(self) -> ProgressPosition | None:
        """The position of the last record."""
        return ProgressPosition(*self._acks.progress) if self._acks.progress else None

    @property
    def tasks(self) -> TransactionalTasks | None:
        """The transactional tasks of jobs, which may have delivered what no file says."""
        return read_transactional_tasks(self._layout)

    def recover(self, begun: Begun) -> str:
        """Take what the last record says for delivered; why delivery must not go on, or an empty text."""
        last = begun.last
        if last and last.generation > self._acks.generation:
            return (
                "the marks in delivery/ are older than what Kafka knows of this spool (generation "
                f"{self._acks.generation}, there {last.generation}): what was delivered in between would be "
                'sent again; bring back the newer delivery/, or deliver with mode = "at_least_once"'
            )
        self._segment_list.refresh()
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
        self._acks.note_progress(*begun.place)
        return ""

    def _forget_tasks(self) -> None:
        """Remove the file of transactional tasks, once they are closed and all they delivered is marked."""
        if self._closed_by is None or self._closed_by > self._acks.generation:
            return
        self._closed_by = None
        # Should it stay, they are closed once more.
        with suppress(OSError):
            remove_transactional_tasks(self._layout)

    def _resolve(self, delivered: Sequence[Runs], letters: Sequence[DeadLetterRuns]) -> None:
        """Take note of what the log has of these; letters count as the discards that they are."""
        for runs in delivered:
            sequences = runs.sequences()
            for letter in letters:
                dead = np.intersect1d(letter.sequences(), sequences)
                self._acks.discard(dead, letter.reason | DEAD_LETTERED, letter.topic)
            self._acks.resolve(sequences)

    def progress(
        self, number: int, by: Deliverer, sequences: npt.NDArray[np.int64], letters: Sequence[DeadLetterRuns]
    ) -> Progress:
        """The record of a transaction that delivers these, some of them as dead letters."""
        while self._unmarked and self._unmarked[0].generation <= self._acks.generation:
            self._unmarked.popleft()
        self._forget_tasks()
        before = [runs for unmarked in self._unmarked for runs in unmarked.delivered]
        delivered = merge([*before, *self._runs(sequences)])
        posted = [letter for unmarked in self._unmarked for letter in unmarked.letters]
        return Progress(number, self._acks.generation, by, delivered, [*posted, *letters])

    def committed(
        self, sequences: npt.NDArray[np.int64], letters: Sequence[DeadLetterRuns], offset: int
    ) -> None:
        """A transaction with these is in Kafka, its record at `offset`; they are resolved next."""
        self._unmarked.append(Unmarked(self._acks.next_generation, self._runs(sequences), letters))
        self._acks.move_progress(offset)

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
        segments = self._segment_list.segments
        low, high = self._segment_list.at(int(sequences.min())), self._segment_list.at(int(sequences.max()))
        ends = [*(info.first_sequence for info in segments[low + 1 : high + 1]), int(sequences.max()) + 1]
        return list(zip(segments[low : high + 1], ends, strict=True))

    def _present(self, block: Runs) -> Runs | None:
        """The part of a block that the log has; None when it is about another segment of this number."""
        info = self._segment_list.by_number(block.segment)
        if info is None or info.identity not in (block.identity, UNTOLD):
            return None
        sequences = block.sequences()
        sequences = sequences[sequences < self._segment_list.end_of(info)]
        return Runs(block.segment, block.identity, *runs_of(sequences))
