"""Outcomes of single messages, for a reader that polls the marks.

Pending outcomes are those in files of jobs (`outcome_file`) that are not imported into the marks yet. A
reader of outcomes takes these files first, and then the marks: it sees an outcome that is imported in between
in both. The other way round it would see it in neither.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spool.errors import BadSpool
from spool.format.frame import SEQUENCE
from spool.format.wire import DEAD_LETTERED
from spool.index.committed import read_committed
from spool.index.environment import LMDB_REFUSES, Opened, look_at, open_tables
from spool.index.segment_list import SegmentInfo, SegmentList
from spool.layout import Layout
from spool.marks.discarded import reasons_of, split
from spool.marks.marks import MARK_KEY, Marks
from spool.marks.outcome_file import SUFFIX, OutcomeFile, count_outcomes, read_outcomes
from spool.native.digest import CHUNK_BYTES, CHUNK_MESSAGES, matches
from spool.storage.lock import is_in_use

OPEN, DELIVERED, UNTOLD = -1, 0, -2
"""Not resolved yet; acknowledged by Kafka; resolved, but the reason is gone with the segment."""
_EVERYTHING = 1 << 62
Sequences = npt.NDArray[np.int64]


@contextmanager
def _stay_with(directory: Path) -> Iterator[Opened]:
    # Always with a slot in LMDB's lock file: a writer may start later.
    env, tables = open_tables(directory, readonly=True, lock=True)
    with closing(env):
        yield env, tables


class OutcomeReader(Marks):
    """The marks of a spool whose deliverer comes and goes."""

    def __init__(
        self,
        directory: Path,
        segment_list: SegmentList,
        opener: Callable[[Path], AbstractContextManager[Opened]] = _stay_with,
    ) -> None:
        """Raises LMDB_REFUSES while there is nothing to read."""
        self.segment_list = segment_list
        self._opened = ExitStack()
        self._env, self._db = self._opened.enter_context(opener(directory))

    @property
    def transactions(self) -> int:
        """How often the marks were written."""
        return int(self._env.info()["last_txnid"])

    def of(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """By message: OPEN, DELIVERED, UNTOLD, or the Reason that it was discarded for."""
        found = np.full(len(sequences), OPEN, np.int64)
        with self._env.begin() as txn:
            # The snapshot first: a row that is dropped in it belongs to a segment that is gone by now.
            self.segment_list.refresh()
            below = sequences < self._low_watermark(txn)
            segments = self.segment_list.segments
            # Messages before the first segment, and not below the low watermark, have gone since the
            # snapshot: the next one will say so.
            found[below] = UNTOLD
            for place, bits, rows in split(segments, sequences):
                resolved = below[rows] | (self._bits(txn, *place)[bits] > 0)
                found[rows[resolved]] = reasons_of(txn, self._db[b"gone"], place, bits[resolved])
        return found

    def _bits(self, txn: Any, info: SegmentInfo, chunk: int) -> npt.NDArray[np.uint8]:
        """uint8[CHUNK_MESSAGES]: 1 where a message of this chunk is resolved."""
        key = MARK_KEY.pack(info.number, chunk)
        row = txn.get(key, db=self._db[b"mark"])
        if row is None or not matches(key, row, info.identity):
            return np.zeros(CHUNK_MESSAGES, np.uint8)
        return np.unpackbits(np.frombuffer(row, np.uint8, CHUNK_BYTES), bitorder="little")


def open_outcomes(layout: Layout) -> OutcomeReader | None:
    """The marks, while a process writes to them, and so has found them readable; else None."""
    if not is_in_use(layout.delivery / "lock.mdb"):
        return None
    try:
        reader = OutcomeReader(layout.delivery, SegmentList(layout))
    except LMDB_REFUSES:
        return None
    if reader.tells_discards:
        return reader
    # These marks are of an earlier release; their writer adds the missing table right now.
    reader.close()
    return None


def outcomes_now(layout: Layout, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """The outcomes of messages at this instant, also while no process delivers. Writes nothing.

    The values are those of `OutcomeReader.of`. None when there are no marks, or they cannot be read, or are
    of a release that kept no outcomes.
    """
    try:
        reader = OutcomeReader(layout.delivery, SegmentList(layout), look_at)
    except LMDB_REFUSES:
        return None
    try:
        return reader.of(sequences) if reader.tells_discards else None
    except LMDB_REFUSES:
        return None
    finally:
        reader.close()


class PendingOutcomes(NamedTuple):
    """The result of one look at the files."""

    files: dict[Path, OutcomeFile]
    """The files that are valid."""
    refused: dict[Path, BadSpool]
    """The others, and why."""


def list_pending(layout: Layout, suffix: str = SUFFIX) -> list[Path]:
    """The pending files, by name. The directories of jobs come and go meanwhile."""
    found = [Path(folder, name) for folder, _, names in os.walk(layout.outcomes) for name in names]
    return sorted(path for path in found if path.suffix == suffix)


def count_pending(layout: Layout) -> int:
    """How many outcomes the files have, by their first bytes; a message in two files counts twice."""
    count = 0
    for path in list_pending(layout):
        with suppress(OSError):
            count += count_outcomes(path)
    return count


def read_pending_outcomes(layout: Layout, spool: bytes) -> PendingOutcomes:
    """Read all files; `spool` is the uuid. A file that is gone, or not readable by us, is in neither list."""
    files: dict[Path, OutcomeFile] = {}
    refused: dict[Path, BadSpool] = {}
    for path in list_pending(layout):
        try:
            files[path] = read_outcomes(path)
        except BadSpool as error:
            refused[path] = error
        except OSError:
            continue
    # After the files: all messages in them are in the log by now.
    judge = Judge(layout, spool, SegmentList(layout)) if files else None
    for path, file in list(files.items()):
        try:
            assert judge
            judge.judge(path, file)
        except BadSpool as error:
            del files[path]
            refused[path] = error
    return PendingOutcomes(files, refused)


class Judge:
    """Checks whether a file can be about messages of a spool, by a segment list that the caller refreshes."""

    def __init__(self, layout: Layout, spool: bytes, segment_list: SegmentList) -> None:
        self._layout, self._spool, self._segment_list = layout, spool, segment_list

    def judge(self, path: Path, file: OutcomeFile) -> None:
        """Raises BadSpool for a file that cannot be about messages of this spool."""
        if file.spool != self._spool:
            raise BadSpool(f"{path} is of the spool {file.spool.hex()}, and not of this one")
        if ((file.reasons < 0) | (file.reasons >= 2 * DEAD_LETTERED)).any():
            raise BadSpool(f"{path} gives reasons that this release does not know")
        if self._strays(file.sequences):
            raise BadSpool(f"{path} speaks of messages that were never stored")

    def _strays(self, sequences: Sequences) -> bool:
        """Whether one of these numbers, in ascending order, was never given to a message."""
        segments = self._segment_list.segments
        if not len(sequences) or not segments:
            return len(sequences) > 0
        firsts = np.array([info.first_sequence for info in segments])
        ends = firsts + np.array([self._segment_list.most(info) for info in segments])
        if sequences[-1] >= firsts[-1]:
            ends[-1] = self.end(int(sequences[-1]))
        at = np.searchsorted(firsts, sequences, side="right") - 1
        # Messages before the first segment were resolved, and are gone.
        return bool(sequences[0] < 0 or ((at >= 0) & (sequences >= ends[at])).any())

    def end(self, sequence: int = _EVERYTHING) -> int:
        """The sequence behind the last message; from the index, if its committed end is above `sequence`."""
        if not self._segment_list.segments:
            return 0
        last = self._segment_list.segments[-1]
        committed = read_committed(self._layout.index)
        if committed and committed[0] == last.number and int(committed[1][SEQUENCE]) > sequence:
            return int(committed[1][SEQUENCE])
        return self._segment_list.end_of(last)
