"""Messages, bytes and refused datagrams over time, by the frames' times of reception."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spool.errors import BadSpool
from spool.files import Span, Unreadable, of_segment
from spool.frames import read_frames

STEPS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 43200, 86400, 604800)
"""Lengths of an interval that people read easily."""
_SECOND = 10**9


class TooManyIntervals(ValueError):
    """The step that was asked for cuts what was found into more than `most`. `count`: how many that were."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} intervals")
        self.count = count


class Timeline(NamedTuple):
    """Columns of one length: an interval each, in order, empty ones included."""

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
    """Count frames by interval: each second, or the shortest step by which there are `most` or fewer.

    Frames are counted as a whole, by the time range and the sequence range of `span`. `fleeting`: a daemon
    may rename or remove files meanwhile; what is gone is passed over. Raises OSError, and TooManyIntervals
    when `step_s` makes more than `most`.
    """
    columns: list[npt.NDArray[np.int64]] = [np.empty((0, 4), np.int64)]

    def rows_of(path: Path) -> Iterator[npt.NDArray[np.int64]]:
        return _rows(path, span, damaged)

    for path in paths:
        columns += of_segment(rows_of, path) if fleeting else rows_of(path)
    return _intervals(_by_second(np.concatenate(columns)), most, step_s)


def _rows(path: Path, span: Span, damaged: Callable[[str], None]) -> Iterator[npt.NDArray[np.int64]]:
    """As `_by_second` has them, chunk by chunk."""
    try:
        for found in read_frames(path):
            if isinstance(found, Unreadable):
                damaged(f"{path}: {found.messages} messages cannot be read at byte {found.offset}")
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
        # A clock that jumped by years, and a step of a second, would be gigabytes of nothing.
        raise TooManyIntervals(count(step))
    sums = np.zeros((count(step), 4), np.int64)
    np.add.at(sums, seconds // step - seconds[0] // step, rows)
    start = (seconds[0] // step + np.arange(len(sums))) * step * _SECOND
    return Timeline(step, start, sums[:, 1], sums[:, 2], sums[:, 3])
