"""The segments of a spool at a glance, and its messages over time.

`overview` reads headers, footers and the index. `timeline` counts messages, bytes and refused datagrams by
the frames' times of reception.

`take_totals` derives received messages and their outcomes from what is stored, each time:

    received = stored + refused at intake + the ledger + what waits in staging
    backlog  = stored - resolved + what waits in staging
    delivered = resolved - discarded after acceptance

Outcomes are read first and frames second, so that a message which is stored and delivered in between counts
as backlog, never as delivered but not received.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spool.errors import BadSpool
from spool.format.frame import BURST, DISCARDED, SEQUENCE, STORED, Tail
from spool.format.packed import header_of, is_packed
from spool.format.segment import UNBOUND
from spool.format.segment_format import HEADER_BYTES
from spool.format.wire import DEAD_LETTERED
from spool.index.committed import read_committed
from spool.index.environment import UNREADABLE
from spool.index.log_end import committed_end, empty_tail, end_of, live_segment, named_topics, read_footer
from spool.index.segment_list import SegmentList
from spool.index.soundness import has_begun
from spool.layout import SENT, SPARE, Layout
from spool.marks.marks import Marks, Outcomes
from spool.read.files import Span, Unreadable, of_segment, read_frames
from spool.shared.ledger import Discards, read_totals
from spool.shared.runtime import announced
from spool.storage.disk import allocated_bytes, open_to_read

STEPS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 43200, 86400, 604800)
"""Lengths of an interval that people read easily."""
_SECOND = 10**9
Staging = Callable[[], list[tuple[int, int]]]
"""(burst, datagrams received into it) of each that may not be stored yet: read_staging of ingest."""
_TRIES = 5


class State(StrEnum):
    """The state of a segment file."""

    SPARE = "spare"
    """Allocated ahead of need; empty."""
    OPEN = "open"
    """In use, or left by a daemon that died: it has no footer."""
    SEALED = "sealed"
    SENT = "sent"
    """Sealed, and all messages in it are resolved."""
    DAMAGED = "damaged"
    """Its header, or its footer, cannot be read."""


@dataclass(frozen=True, slots=True)
class Overview:
    """One segment file."""

    path: Path
    state: State
    packed: bool = False
    disk_bytes: int = 0
    number: int | None = None
    first_sequence: int | None = None
    next_sequence: int | None = None
    """Behind its last message; for an open one, up to its committed end. None: not known."""
    messages: int | None = None
    first_received_ns: int | None = None
    last_received_ns: int | None = None
    log_bytes: int | None = None
    """Bytes of its frames before packing; None without a footer."""
    topics: tuple[tuple[bytes, int], ...] = ()
    """(topic, messages), from the footer."""
    trouble: str = ""
    """The reason for calling it damaged."""


def overview(paths: Iterable[Path], layout: Layout | None) -> Iterator[Overview]:
    """Look at each of these files, in their order; skip those removed meanwhile. Raises OSError."""
    committed = layout and read_committed(layout.index)

    def look(path: Path) -> Iterator[Overview]:
        yield _look_at(path, committed or None)

    for path in paths:
        yield from of_segment(look, path) if layout else look(path)


def _look_at(path: Path, committed: tuple[int, Tail] | None) -> Overview:
    fd = open_to_read(path)
    try:
        size = allocated_bytes(path)
        try:
            header, packed, footer = header_of(fd, path), is_packed(fd, path), read_footer(fd)
        except BadSpool as error:
            return Overview(path, State.DAMAGED, disk_bytes=size, trouble=str(error))
    finally:
        os.close(fd)
    number, first = int(header["number"]), int(header["first_sequence"])
    if first == UNBOUND:
        return Overview(path, State.SPARE, disk_bytes=size, number=number)
    if footer is None:
        known = committed is not None and committed[0] == number
        tail = committed[1] if known and committed else None
        return Overview(
            path,
            State.OPEN,
            disk_bytes=size,
            number=number,
            first_sequence=first,
            next_sequence=None if tail is None else int(tail[SEQUENCE]),
            messages=None if tail is None else int(tail[STORED]) - int(header["stored"]),
        )
    fields = footer.fields
    return Overview(
        path,
        State.SENT if path.suffix == SENT else State.SEALED,
        packed,
        size,
        number,
        first,
        int(fields["next_sequence"]),
        int(fields["count"]),
        int(fields["first_received_ns"]) or None,
        int(fields["last_received_ns"]) or None,
        int(fields["end"]) - HEADER_BYTES,
        tuple(named_topics(footer)),
    )


def segment_paths(layout: Layout) -> list[Path]:
    """All segment files of a spool, spares at the end."""
    named = [layout.segment(*pair) for pair in layout.list_segments()]
    return named + [layout.segment(number, SPARE) for number in layout.list_spares()]


class TooManyIntervals(ValueError):
    """The given step makes more than `most` intervals. `count`: how many."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} intervals")
        self.count = count


class Timeline(NamedTuple):
    """Columns of one length: a row for each interval, in order, empty ones included."""

    step_s: int
    start_ns: npt.NDArray[np.int64]
    messages: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    """Of the bodies of frames, before any compression."""
    discarded: npt.NDArray[np.int64]
    """Datagrams that were refused at intake."""


def timeline(
    paths: Iterable[Path],
    span: Span,
    most: int,
    damaged: Callable[[str], None],
    step_s: int | None = None,
    *,
    fleeting: bool = False,
) -> Timeline:
    """Count frames by intervals of `step_s`, or of the shortest step that makes at most `most` of them.

    Frames are counted as a whole, by the time range and the sequence range of `span`; segments that by their
    footers have none of it are not read. `fleeting`: a daemon
    may rename or remove files meanwhile; removed ones are skipped. Raises OSError, and TooManyIntervals when
    `step_s` makes more than `most`.
    """
    columns: list[npt.NDArray[np.int64]] = [np.empty((0, 4), np.int64)]

    def rows_of(path: Path) -> Iterator[npt.NDArray[np.int64]]:
        return _rows(path, span, damaged)

    for path in paths:
        columns += of_segment(rows_of, path) if fleeting else rows_of(path)
    return _intervals(_by_second(np.concatenate(columns)), most, step_s)


def _rows(path: Path, span: Span, damaged: Callable[[str], None]) -> Iterator[npt.NDArray[np.int64]]:
    """Rows like those of `_by_second`, chunk by chunk."""
    try:
        for found in read_frames(path, span):
            if isinstance(found, Unreadable):
                damaged(found.sentence)
                continue
            heads = found[1]
            names = ("received_ns", "count", "body_bytes", "discarded")
            rows = np.stack([heads[name].astype(np.int64) for name in names], axis=1)
            first = heads["first_sequence"].astype(np.int64)
            wanted = (rows[:, 0] >= span.from_ns) & (rows[:, 0] < span.to_ns)
            wanted &= (first < span.end) & (first + rows[:, 1] > span.first)
            yield _by_second(rows[wanted])
    except BadSpool as error:
        damaged(f"{error}")


def _by_second(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Rows of (ns, messages, bytes, discarded), one for each second that has any."""
    seconds, place = np.unique(rows[:, 0] // _SECOND, return_inverse=True)
    sums = np.zeros((len(seconds), 4), np.int64)
    np.add.at(sums, place, rows)
    sums[:, 0] = seconds * _SECOND
    return sums


def _intervals(rows: npt.NDArray[np.int64], most: int, step_s: int | None) -> Timeline:
    if not len(rows):
        nothing = np.empty(0, np.int64)
        return Timeline(step_s or STEPS_S[0], nothing, nothing, nothing, nothing)
    seconds = rows[:, 0] // _SECOND

    def count(step: int) -> int:
        return int(seconds[-1] // step - seconds[0] // step) + 1

    step = step_s or next((step for step in STEPS_S if count(step) <= most), STEPS_S[-1])
    if step_s and count(step) > most:
        # A step of a second over a clock that jumped by years would fill gigabytes with zeros.
        raise TooManyIntervals(count(step))
    sums = np.zeros((count(step), 4), np.int64)
    np.add.at(sums, seconds // step - seconds[0] // step, rows)
    start = (seconds[0] // step + np.arange(len(sums))) * step * _SECOND
    return Timeline(step, start, sums[:, 1], sums[:, 2], sums[:, 3])


@dataclass(frozen=True, slots=True)
class SpoolTotals:
    """The totals at one instant. `tail`: the end of the written log."""

    tail: Tail
    staged: int
    low_watermark: int
    resolved: int
    refused: dict[int, int]
    """At intake, the ledger included, by reason."""
    discarded: list[Discards]
    """After acceptance."""

    @property
    def received(self) -> int:
        """Datagrams that senders sent."""
        return int(self.tail[STORED]) + self.staged + sum(self.refused.values())

    @property
    def delivered(self) -> int:
        """Messages that Kafka acknowledged."""
        return self.resolved - sum(d.count for d in self.discarded)

    @property
    def backlog(self) -> int:
        """Messages still to be delivered."""
        return int(self.tail[STORED]) + self.staged - self.resolved

    @property
    def dead_lettered(self) -> int:
        """How many of the discarded messages are in the dead-letter topic."""
        return sum(d.count for d in self.discarded if d.reason & DEAD_LETTERED)

    def by_reason(self) -> dict[int, int]:
        """Everything discarded, by reason, in the dead-letter topic or not."""
        totals = Counter(self.refused)
        for d in self.discarded:
            totals[d.reason & ~DEAD_LETTERED] += d.count
        return {reason: count for reason, count in sorted(totals.items()) if count}


def take_totals(layout: Layout, staging: Staging) -> SpoolTotals:
    """Read the totals. Writes nothing; a daemon may be at work meanwhile. Raises BadSpool, OSError."""
    low_watermark, resolved, discarded = _outcomes(layout)
    for attempt in range(_TRIES):
        try:
            bursts = staging()
            tail = _end(layout)
            break
        except FileNotFoundError:
            # A segment was renamed, or retired, between the listing and the look.
            if attempt == _TRIES - 1:
                raise
    counted, entries = read_totals(layout.ledger)
    stored = max(int(tail[BURST]), counted)
    staged = sum(datagrams for number, datagrams in bursts if number > stored)
    refused = Counter({reason: int(n) for reason, n in enumerate(tail[DISCARDED:].tolist()) if n})
    for entry in entries:
        refused[entry.reason] += entry.count
    return SpoolTotals(tail, staged, max(low_watermark, 0), resolved, dict(refused), discarded)


def _end(layout: Layout) -> Tail:
    known, live = committed_end(layout), live_segment(layout)
    if live is None:
        return empty_tail()
    return end_of(live, known=known, announced=announced(layout.directory, live.header)).tail


def _outcomes(layout: Layout) -> Outcomes:
    segment_list = SegmentList(layout)
    sent = segment_list.sent_below()
    nothing = Outcomes(sent, segment_list.stored_below(sent), [])
    if not has_begun(layout.delivery):
        return nothing
    try:
        marks = Marks(layout.delivery, segment_list, readonly=True)
    except UNREADABLE:
        return nothing
    try:
        return marks.outcomes()
    except UNREADABLE:
        return nothing
    finally:
        marks.close()
