"""The messages that must be in Kafka, as spools say: by footers, the book of sums, and the marks.

A look reads headers, footers and marks, never a message, but for a segment of which some messages were
discarded: the sums of the others are then read once, when nothing of it waits any more.
"""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from pipeline.source.outcomes import Outcomes, Run, Runs, plan_with_outcomes
from pipeline.source.plan import Segment, SpoolPlan
from pipeline.source.remote import shown
from spool.errors import BadSpool, ReadFailed
from spool.format.block_sums import NO_SEQUENCES, Blocks, Sequences
from spool.format.segment_format import SUM, SUM_BITS, SUMS_SINCE, Record
from spool.format.sums_book import MOST_BYTES, MOST_MESSAGES, MOST_SEQUENCE, Departed, decode_departed
from spool.index.log_end import has_unlisted
from spool.layout import SEGMENT, SENT, Layout, older
from spool.log.departures import read_sums
from spool.storage.disk import opened, read_at

log = logging.getLogger("bruce.witness")

_LONG = 64
"""Messages of a run that is added as a run."""


class Expected(NamedTuple):
    """The words of one spool. Sequences, but for the blocks."""

    stored: BitMap64
    """All messages that it has, or had, as far as it knows."""
    discarded: BitMap64
    """Those of them that were given up: they need not be in Kafka."""
    open: BitMap64
    """Those that are not delivered yet, or of which the marks do not tell."""
    blocks: Blocks
    """int64[n], ascending: the blocks of stored messages."""
    sums: Record
    """SUM[n]: of the messages of each block that were not discarded, as far as they are known."""
    whole: npt.NDArray[np.bool_]
    """bool[n]: whether the sum has all messages of the block that were not discarded."""
    unknown: npt.NDArray[np.bool_]
    """bool[n]: whether some of them will never be in it: they are unreadable, or older than format 4."""

    def delivered(self) -> BitMap64:
        """The messages that must be in Kafka now, or soon."""
        return self.stored - self.discarded - self.open

    def since(self, begin: int) -> Expected:
        """The same without the messages before a sequence, and without the block that it is in."""
        if begin <= 0:
            return self
        stored = self.stored.copy()
        stored.remove_range(0, begin)
        kept = self.blocks > (begin - 1) >> SUM_BITS
        return Expected(
            stored,
            self.discarded & stored,
            self.open & stored,
            self.blocks[kept],
            self.sums[kept],
            self.whole[kept],
            self.unknown[kept],
        )


class SpoolSide(NamedTuple):
    """One spool, as it was at a look."""

    spool: str
    """uuid, 32 hexadecimal digits."""
    host: str
    directory: str
    """Its path or address, perhaps with a password."""
    topics: frozenset[bytes]
    """Topics that its footers name, and those that its marks know."""
    names_all: bool
    """Whether these are all topics of messages that may be in Kafka."""
    expected: Expected
    end: int
    """No message has this sequence, or one above it."""
    archived: Expected | None = None
    """The same for an archive, which has all messages: discarded ones are in the sums, and count as open.
    None: none was discarded."""
    begin: int = 0
    """The first sequence of the oldest segment that the spool still has."""
    unread: str = ""
    """Why some messages may not be judged: a book that cannot be read, or copies of the spool."""


ROW = np.dtype(
    [
        ("block", "<i8"),
        ("stored", "<i8"),
        ("told", "<i8"),
        ("lost", "<i8"),
        ("discarded", "<i8"),
        ("sum", SUM),
    ]
)
"""Of a block: messages stored; those in runs whose sums are known; those whose sums never will be; discarded
ones of the former; the sum."""


def rows_of(run: Run, sums: Record | None, discarded: Sequences, *, for_good: bool) -> Record:
    """ROW[blocks] of a run of messages [first, end). `for_good`: without sums, these will never be known."""
    first, end = run
    blocks = np.arange(first >> SUM_BITS, ((end - 1) >> SUM_BITS) + 1)
    rows = np.zeros(len(blocks), ROW)
    rows["block"] = blocks
    rows["stored"] = np.minimum(end, (blocks + 1) << SUM_BITS) - np.maximum(first, blocks << SUM_BITS)
    if sums is None:
        rows["lost"] = rows["stored"] if for_good else 0
        return rows
    # Behind the last readable message a footer has no sum.
    count = min(len(sums), len(rows))
    rows["sum"][:count] = sums[:count]
    rows["told"] = rows["stored"]
    at, counts = np.unique((discarded >> SUM_BITS) - blocks[0], return_counts=True)
    rows["discarded"][at] = counts
    return rows


def merge_rows(parts: Sequence[Record]) -> Record:
    """ROW[blocks], ascending: one for each block of these rows."""
    rows = np.concatenate([np.empty(0, ROW), *parts])
    rows = rows[np.argsort(rows["block"], kind="stable")]
    starts = np.flatnonzero(np.diff(rows["block"], prepend=-1))
    merged = rows[starts]
    if len(starts) < len(rows):
        for name in ("stored", "told", "lost", "discarded"):
            merged[name] = np.add.reduceat(rows[name], starts)
        for name in SUM.names or ():
            merged["sum"][name] = np.add.reduceat(rows["sum"][name], starts)
    return merged


@dataclass(slots=True)
class _Book:
    """A book as it was read last."""

    version: object = None
    rows: Record = field(default_factory=lambda: np.empty(0, ROW))
    firsts: set[int] = field(default_factory=set)
    stored: BitMap64 = field(default_factory=BitMap64)
    discarded: BitMap64 = field(default_factory=BitMap64)
    untold: BitMap64 = field(default_factory=BitMap64)
    """Messages of which it is not known whether they were discarded."""
    all_rows: Record = field(default_factory=lambda: np.empty(0, ROW))
    """With discarded messages: the book has no sums of segments that had some."""
    error: str = ""
    """Why it could not be read; then it is what it was before."""


class Spools:
    """The spools at some paths, which a witness looks at again and again."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = list(paths)
        self._books: dict[str, _Book] = {}
        self._sums: dict[tuple[str, int], tuple[int, Record | None]] = {}
        """By spool and first sequence of a segment with discards: how many, and the sums of the others."""

    def look(self) -> list[SpoolSide]:
        """All spools that have a segment. Raises NoSpool, BadOption, UnknownVersion, OSError."""
        return list(self._look())

    def _look(self) -> Iterator[SpoolSide]:
        for (plan, outcomes), copies in self._found():
            expected = self._expected(plan, outcomes)
            yield SpoolSide(
                plan.spool,
                plan.parts[-1].host or "",
                plan.directory,
                plan.footed | {name.encode() for name in outcomes.partitions},
                _names_all(plan, outcomes),
                expected,
                plan.next_sequence,
                self._archived(plan, expected),
                plan.begin,
                self._books[plan.spool].error or copies,
            )

    def _found(self) -> Iterator[tuple[tuple[SpoolPlan, Outcomes], str]]:
        """Each spool with a segment, and a sentence if there are several copies: the newest counts."""
        found: dict[str, list[tuple[SpoolPlan, Outcomes]]] = {}
        for plan, outcomes in plan_with_outcomes(self._paths):
            if outcomes is not None:
                found.setdefault(plan.spool, []).append((plan, outcomes))
        for copies in found.values():
            places = " and ".join(shown(plan.directory) for plan, _ in copies)
            said = f"{places} are copies of one spool: the one that has more is looked at"
            newest = max(copies, key=lambda one: one[0].next_sequence)
            yield newest, said if len(copies) > 1 else ""

    def _expected(self, plan: SpoolPlan, outcomes: Outcomes) -> Expected:
        book = self._book(plan)
        stored, discarded, waiting = book.stored.copy(), book.discarded.copy(), book.untold.copy()
        parts = [book.rows]
        for run, segment in zip(plan.runs, plan.segments, strict=True):
            if not _is_possible(run):
                continue
            # Of what a copy says that waits, no more is believed than there can be.
            _add_runs(waiting, _cut(outcomes.backlog, run))
            if run[0] in book.firsts:
                continue
            gone = outcomes.discarded[slice(*np.searchsorted(outcomes.discarded, run))]
            stored.add_range(*run)
            # As plain numbers they would take many times as long.
            discarded.update(array("Q", gone.tobytes()))
            if not outcomes.marked:
                waiting.add_range(*run)
            sums = self._segment_sums(plan, segment, run, gone, outcomes)
            parts.append(rows_of(run, sums, gone, for_good=_is_old(segment)))
        there = {first for first, _ in plan.runs}
        self._sums = {at: one for at, one in self._sums.items() if at[0] != plan.spool or at[1] in there}
        return _told(stored, discarded, waiting & stored, merge_rows(parts))

    def _archived(self, plan: SpoolPlan, expected: Expected) -> Expected | None:
        """The same for an archive, if it is not equal; footers have the sums of all messages."""
        if not expected.discarded:
            return None
        book = self._book(plan)
        parts = [book.all_rows]
        for run, segment in zip(plan.runs, plan.segments, strict=True):
            if _is_possible(run) and run[0] not in book.firsts:
                is_old = _is_old(segment)
                sums = None if segment.footer is None or is_old else segment.footer.sums
                parts.append(rows_of(run, sums, NO_SEQUENCES, for_good=is_old))
        return _told(expected.stored, BitMap64(), expected.open | expected.discarded, merge_rows(parts))

    def _segment_sums(
        self, plan: SpoolPlan, segment: Segment, run: Run, discarded: Sequences, outcomes: Outcomes
    ) -> Record | None:
        """The sums of what was not discarded of a segment; None: not known, or not yet."""
        if segment.footer is None or _is_old(segment):
            return None
        if not len(discarded):
            return segment.footer.sums
        if plan.address or len(_cut(outcomes.backlog, run)):
            return None
        key = plan.spool, run[0]
        count, sums = self._sums.get(key, (-1, None))
        if count != len(discarded):
            try:
                sums = _read_sums(plan.layout, run[0], discarded)
            except ReadFailed:
                # Not known yet: a later look may find them.
                return None
            self._sums[key] = len(discarded), sums
        return sums

    def _book(self, plan: SpoolPlan) -> _Book:
        book = self._books.setdefault(plan.spool, _Book())
        paths = [older(plan.layout.sums), plan.layout.sums]
        # A mirror of a spool elsewhere is made at each look.
        version = [_version(path) for path in paths]
        if book.version == version and not book.error:
            return book
        fresh = _Book(version)
        try:
            for path in paths:
                _add(fresh, _read_book(path, bytes.fromhex(plan.spool)))
        except OSError as error:
            sentence = f"{error}; messages that have left this spool are not judged"
            if sentence != book.error:
                log.warning("%s", sentence)
            book.error = sentence
            return book
        self._books[plan.spool] = fresh
        return fresh


def _cut(backlog: Runs, run: Run) -> Runs:
    """The parts of the backlog that are in a run of messages."""
    at = slice(np.searchsorted(backlog[:, 1], run[0], "right"), np.searchsorted(backlog[:, 0], run[1]))
    return np.clip(backlog[at], *run)


def _add_runs(numbers: BitMap64, runs: Runs) -> None:
    """Add runs of numbers: one by one they would take many times as long where they are short."""
    first, end = runs.T
    is_long = end - first >= _LONG
    for one in runs[is_long].tolist():
        numbers.add_range(*one)
    first, counts = first[~is_long], (end - first)[~is_long]
    before = np.repeat(np.cumsum(counts) - counts, counts)
    numbers.update(array("Q", (np.arange(len(before)) - before + np.repeat(first, counts)).tobytes()))


def _is_possible(run: Run) -> bool:
    """Whether a segment may have these messages: headers of a copy may say anything."""
    return 0 < run[1] - run[0] <= MOST_MESSAGES and run[1] <= MOST_SEQUENCE


def _told(stored: BitMap64, discarded: BitMap64, waiting: BitMap64, rows: Record) -> Expected:
    """With the blocks of ROW[blocks]."""
    known = rows["told"] == rows["stored"]
    found = rows["sum"]["count"] == rows["stored"] - rows["discarded"]
    unknown = (rows["lost"] > 0) | (known & ~found)
    return Expected(stored, discarded, waiting, rows["block"], rows["sum"], known & found, unknown)


def _add(book: _Book, departed: Iterable[Departed]) -> None:
    """Add the segments of a generation; what an older one has of a segment counts."""
    parts, all_parts = [book.rows], [book.all_rows]
    for one in departed:
        if one.first in book.firsts:
            continue
        run = one.first, one.first + one.messages
        book.firsts.add(one.first)
        book.stored.add_range(*run)
        if one.discarded is None:
            book.untold.add_range(*run)
        else:
            book.discarded.update(array("Q", one.discarded.tobytes()))
        discarded = NO_SEQUENCES if one.discarded is None else one.discarded
        parts.append(rows_of(run, one.sums, discarded, for_good=True))
        sums = one.sums if one.discarded is not None and not len(discarded) else None
        all_parts.append(rows_of(run, sums, NO_SEQUENCES, for_good=True))
    book.rows, book.all_rows = merge_rows(parts), merge_rows(all_parts)


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        told = os.stat(path)
    except OSError:
        return None
    return told.st_ino, told.st_size, told.st_mtime_ns


def _read_book(path: Path, spool: bytes) -> Iterator[Departed]:
    """The records of a generation of a book; none when it is not there. Raises OSError."""
    try:
        with opened(path) as file:
            size = min(os.fstat(file.fileno()).st_size, MOST_BYTES)
            data = read_at(file.fileno(), size, 0)
    except FileNotFoundError:
        return
    yield from decode_departed(spool, data)


def _read_sums(layout: Layout, first: int, discarded: Sequences) -> Record | None:
    """The sums of what was not discarded of a segment; None: it is damaged, or gone. Raises ReadFailed."""
    for suffix in (SEGMENT, SENT):
        try:
            return read_sums(layout.segment(first, suffix), discarded)[0]
        except ReadFailed:
            raise
        except (BadSpool, FileNotFoundError):
            continue
    return None


def _names_all(plan: SpoolPlan, outcomes: Outcomes) -> bool:
    """Whether footers and marks name all topics of delivered messages.

    The marks know those whose messages were sent, also of the segment in use, and of segments that are gone.
    """
    footers = [one.footer for one in plan.segments if one.footer]
    return outcomes.marked and not any(map(has_unlisted, footers))


def _is_old(segment: Segment) -> bool:
    return bool(segment.header["version"] < SUMS_SINCE)
