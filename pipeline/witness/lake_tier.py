"""An archive as a tier: the rows of its Iceberg table, each once.

First it reads the table as it is, and from then on the rows that each further snapshot adds; compactions add
none. State has the snapshot that was read last, and how many files and rows of the next one are read, so a
restart goes on there. When snapshots are gone that it had not read, it reads the table as it is once more,
and takes in only messages that it has not seen: none counts twice, but a row that is there twice by then may
not be noticed.

A message is due here when the archive says that it has come so far in its spool; before, it is late.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from pipeline.archive.iceberg import TABLE, explained
from pipeline.archive.iceberg_changes import BATCH_ROWS, ArchiveReader, Change, Mark, Part, Reads
from pipeline.errors import JobFailed
from pipeline.source.binary import from_binary
from pipeline.source.content_hash import hash_contents
from pipeline.source.segments import topic_bytes
from pipeline.witness.expected import SpoolSide
from pipeline.witness.seen import Mask, numbers_of
from pipeline.witness.tier import HAS_ALL, Burst, Position, TierState, Uuids, begin_with, is_begun

COLUMNS = ("spool", "sequence", "bad_topic", "topic", "key", "value", "headers", "timestamp_ms")
SNAPSHOT, READING, FILES, ROWS = "snapshot", "reading", "files", "rows"
"""Facts of a tier: the snapshot that was read last; the one that is being read, and what of it; how many of
its files were read, and rows of the next one."""
GONE = (
    "{}: snapshots were removed before the witness had read them, or the table was rolled back: it reads the "
    "whole table again, and messages that are there twice by now may not be noticed"
)
NOT_THERE = "{} is not there yet: nothing is archived"
_UUID_DIGITS = 32
_HEX = b"0123456789abcdef"
_DIGITS = np.full(256, 255, np.uint8)
_DIGITS[np.frombuffer(_HEX, np.uint8)] = np.arange(len(_HEX))


class LakePlace(NamedTuple):
    """An archive's table: in the catalog of a directory, or in a configured one."""

    directory: str
    catalog: str = ""
    """Its name in pyiceberg's configuration."""
    table: str = TABLE
    batch_rows: int = BATCH_ROWS
    """Rows that are taken in together, at most."""

    def tier(self, state: TierState) -> LakeTier:
        """Its tier."""
        return LakeTier(state, self)


class LakeTier:
    """Reads one table. `state` has what was seen."""

    def __init__(self, state: TierState, place: LakePlace) -> None:
        self.state, self._place = state, place
        state.facts[HAS_ALL] = 1
        self._at: Position = place.table, 0
        self._where = f"the table {place.table} in {place.catalog or place.directory}"
        self._reader = ArchiveReader(place.directory, place.catalog, place.table, batch_rows=place.batch_rows)
        self._changes: list[Change] = []
        """To read, in order; what is read of the first is in the facts."""
        self._files: list[Part] | None = None
        """Of the first change."""
        self._batches: Iterator[pa.RecordBatch] | None = None
        """Of the file that is being read."""
        self._taken = 0
        """Rows of the first change that were read."""
        self._archived: tuple[int, Mapping[str, int]] = 0, {}
        """Of the snapshot that was read last: its id, and how far spools are archived by it."""
        self._failed = ""
        self.ends: dict[Position, int] = {}
        """As of the look, the sequence number of the table's snapshot."""
        self.is_fresh = False
        """Whether the last look found it."""
        self.error = ""

    @property
    def lag(self) -> int:
        """Rows that are not read yet, as of the last look."""
        return max(0, sum(one.rows for one in self._changes) - self._taken)

    def look(self, topics: AbstractSet[str] | None) -> None:  # noqa: ARG002  (files are of any topic)
        """Find new snapshots. A catalog that is away, and a table that is not there, are no errors."""
        self.is_fresh = False
        try:
            with explained(self._where):
                self.is_fresh = self._find()
        except JobFailed as error:
            self.error = str(error)
            return
        is_again = any(one.reads is Reads.AGAIN for one in self._changes)
        self.error = self._failed or (GONE.format(self._where) if is_again else "")
        if not self.is_fresh:
            self.error = NOT_THERE.format(self._where)

    def _find(self) -> bool:
        """Whether the table is there; then find what to read of it."""
        facts, before = self.state.facts, self._changes[:1]
        is_there = self._reader.find()
        last = Mark(int(facts[SNAPSHOT]), self.state.positions[self._at]) if SNAPSHOT in facts else None
        self._changes = self._reader.changes(last, str(facts.get(READING, ""))) if is_there else []
        if self._changes[:1] != before:
            self._forget()
        self._begin_change()
        if is_there:
            self.ends = {self._at: self._reader.end}
            self._learn()
        return is_there

    def _begin_change(self) -> None:
        """Note in the facts which change is the first one to read."""
        facts = self.state.facts
        if not self._changes or facts.get(READING) == self._changes[0].name:
            return
        facts.update({READING: self._changes[0].name, FILES: 0, ROWS: 0})
        if self._changes[0].reads is Reads.AGAIN:
            facts.pop(SNAPSHOT, None)
            self.state.positions[self._at] = 0

    def _learn(self) -> None:
        """Learn how far spools are archived by what is read."""
        last = int(self.state.facts.get(SNAPSHOT, 0))
        if last != self._archived[0] and (archived := self._reader.archived(last)) is not None:
            self._archived = last, archived

    def read(self, timeout_s: float) -> int:
        """Take in some rows, or wait so long if there are none; how many they were. A failure is no error."""
        try:
            with explained(self._where):
                batch = self._next()
        except JobFailed as error:
            self._failed = self.error = str(error)
            # Until the next look.
            self._changes = []
            self._forget()
            batch = None
        if batch is None:
            time.sleep(timeout_s)
            return 0
        self._failed = ""
        self._take(batch)
        return len(batch)

    def _next(self) -> pa.RecordBatch | None:
        """The next rows; files and snapshots without further ones are noted as read."""
        facts = self.state.facts
        while self._changes:
            files = self._files_of(self._changes[0])
            done = int(facts[FILES])
            if done >= len(files):
                self._finish()
                continue
            if self._batches is None:
                self._batches = self._reader.rows(files[done], COLUMNS, int(facts[ROWS]))
            if (batch := next(self._batches, None)) is not None:
                return batch
            facts[FILES], facts[ROWS], self._batches = done + 1, 0, None
        return None

    def _files_of(self, change: Change) -> list[Part]:
        """The files of the first change."""
        if self._files is None:
            facts = self.state.facts
            self._files = self._reader.parts(change)
            done = self._files[: int(facts[FILES])]
            self._taken = sum(one.rows for one in done) + int(facts[ROWS])
        return self._files

    def _finish(self) -> None:
        """All of the first change is read."""
        change, facts = self._changes.pop(0), self.state.facts
        for name in (READING, FILES, ROWS):
            del facts[name]
        facts[SNAPSHOT] = change.snapshot
        self.state.positions[self._at] = change.number
        self._forget()
        self._learn()
        self._begin_change()

    def _forget(self) -> None:
        """Forget the files of the first change."""
        self._files = self._batches = None
        self._taken = 0

    def _take(self, batch: pa.RecordBatch) -> None:
        rows = columns_of(batch)
        if not self._changes[0].is_new:
            rows = rows.where(unseen(self.state, rows))
        if len(rows.sequences):
            self.state.absorb(*rows)
        self.state.facts[ROWS] = int(self.state.facts[ROWS]) + len(batch)
        self._taken += len(batch)

    def note_positions(self) -> None:
        """The state has them already."""

    def is_behind(self, ends: Mapping[Position, int]) -> bool:
        """Whether the table is not read up to these ends, or to its present one if that is earlier."""
        positions = self.state.positions
        return any(positions.get(one, 0) < min(end, self.ends.get(one, end)) for one, end in ends.items())

    def begin(self, side: SpoolSide) -> None:
        """Judge a spool from the first message on that the table must have, once that is known.

        An archive has all that was in the spool when it began, and all later messages. If the table was read
        without a row of the spool, it begins where the archive says that it is, or else with the spool.
        """
        if SNAPSHOT not in self.state.facts or is_begun(self.state, side.spool):
            return
        seen = self.state.spool(side.spool).seen
        first = min(seen.min(), side.begin) if seen else self._archived[1].get(side.spool, side.begin)
        begin_with(self.state, side.spool, first)

    def due(self, spool: str, delivered: BitMap64) -> BitMap64:
        """The delivered messages that must have been seen, now that the table is read to its end."""
        due = delivered.copy()
        first = self._archived[1].get(spool, 0)
        if due and due.max() >= first:
            due.remove_range(first, due.max() + 1)
        return due

    def close(self) -> None:
        """Leave the table."""
        self._forget()
        self._reader.close()


def columns_of(batch: pa.RecordBatch) -> Burst:
    """The rows of an archive; those without a spool's uuid or a sequence are left out."""
    uuids, are_uuids = uuids_of(batch["spool"])
    bad = batch["bad_topic"]
    topics = batch["topic"].cast(pa.binary())
    if bad.null_count < len(bad):
        names = bad.dictionary_encode()
        real = pa.array([topic_bytes(name) for name in names.dictionary.to_pylist()], pa.binary())
        topics = pc.coalesce(real.take(names.indices), topics)
    contents = np.asarray(hash_contents(topics, batch["key"], batch["value"], batch["headers"]))
    sent_ms = np.asarray(batch["timestamp_ms"].fill_null(0))
    # As in spool.format.message_hash.
    sent_ms = np.where(sent_ms == 0, 1, sent_ms)
    rows = Burst(uuids, np.asarray(batch["sequence"].fill_null(-1)), contents, sent_ms)
    are_good = are_uuids & np.asarray(batch["sequence"].is_valid())
    return rows if are_good.all() else rows.where(are_good)


def uuids_of(texts: pa.Array) -> tuple[Uuids, Mask]:
    """(uint8[n, 16], bool[n]): uuids of 32 hexadecimal digits, and which of these texts are such."""
    data, at, lengths = from_binary(texts)
    are_good = lengths == _UUID_DIGITS
    digits = np.full((len(texts), _UUID_DIGITS), 255, np.uint8)
    if are_good.all() and len(data):
        digits = _DIGITS[data.reshape(-1, _UUID_DIGITS)]
    elif are_good.any():
        digits[are_good] = _DIGITS[data[at[are_good, None] + np.arange(_UUID_DIGITS)]]
    are_good &= (digits < len(_HEX)).all(axis=1)
    return np.bitwise_or(np.left_shift(digits[:, ::2], 4), digits[:, 1::2], dtype=np.uint8), are_good


def unseen(state: TierState, rows: Burst) -> npt.NDArray[np.bool_]:
    """Which rows are of messages that were not seen yet, or of spools that are not watched. bool[n]."""
    found = np.ones(len(rows.sequences), np.bool_)
    watched = set(state.spools())
    for uuid in np.unique(rows.spools, axis=0):
        if (spool := uuid.tobytes().hex()) in watched:
            ours = (rows.spools == uuid).all(axis=1) & (rows.sequences >= 0)
            burst = BitMap64()
            burst.update(array("Q", np.unique(rows.sequences[ours]).tobytes()))
            known = numbers_of(burst & state.spool(spool).seen)
            found[ours] = ~np.isin(rows.sequences[ours], known)
    return found
