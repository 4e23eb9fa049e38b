"""Segments in stock: which to pack or remove, how to make room for one more, and how much room is left.

Delivered segments and spares are room: they go, or are used, before anything else is refused.

Sealed segments are packed in a thread that runs only when the processors are idle. Messages that wait for
Kafka then take a fraction of the disk, and the spool lasts hours longer in an outage. A segment that is
delivered soon is not worth it: the packer takes only those that have been sealed and undelivered for a while.
The thread writes a file beside the segment, under a name that the next start removes. The keeper, which alone
renames and removes segments, replaces the segment by it in one rename.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from spool.errors import BadSpool, SpoolFull
from spool.format.packed import MOST_BYTES, is_packed, pack
from spool.format.segment import Identity, create_spare
from spool.index.log_end import read_footer
from spool.layout import SEGMENT, SENT, Layout, SegmentNames
from spool.log.departures import Departures
from spool.log.intake_totals import carry_over
from spool.native.digest import digest
from spool.options import Full, Space, SpoolOptions, lack, reserve
from spool.shared.state import Change
from spool.storage.disk import (
    allocated_bytes,
    free_bytes,
    make_anew,
    open_to_read,
    read_text,
    sync_directory,
    write_file,
)
from spool.storage.failpoint import reach

_LACKS = {
    Full.MAX_BYTES: "has reached [spool] max_bytes",
    Full.RESERVE: "would leave less than [spool] min_free_bytes on its filesystem",
}
log = logging.getLogger("bruce.keeper")
_AGES_BYTES = 16 << 20
"""Most bytes of the file: a line for each of some hundred thousand segments."""
_TREND_S = 600.0
"""From less, bursts tell no rate."""
SAVE_S = 60.0
"""A keeper that is killed loses at most this much of the clock."""
AFTER_S = 60.0
"""A segment is packed when it has been seen sealed and undelivered for this long."""
LOOK_S = 5.0
"""Between two looks for a segment to pack."""
LEAST_GAIN = 0.1
"""The share of a segment's bytes that packing must save."""
LOWEST_NICE = 19
_UNFINISHED = ".packed.tmp"


def removable(named: list[tuple[int, str]]) -> int | None:
    """The first sequence of the delivered segment to remove first; None when there is none."""
    return next((first for first, suffix in named if suffix == SENT), None)


def delivered(named: list[tuple[int, str]], low_watermark: int) -> list[int]:
    """First sequences of the segments that are wholly below `low_watermark`, and not yet called sent.

    The last segment is not among them: the appender writes to it.
    """
    ends = pairwise(named)
    return [
        first for (first, suffix), (following, _) in ends if suffix == SEGMENT and following <= low_watermark
    ]


def expired(
    sent: Sequence[tuple[int, int, float]], keep_bytes: int | None, keep_s: float | None
) -> list[int]:
    """First sequences of the delivered segments that need not be kept any longer, the oldest first.

    `sent`: (first sequence, bytes, seconds since it was delivered), in order. None keeps all.
    """
    over = sum(size for _, size, _ in sent) - keep_bytes if keep_bytes is not None else 0
    gone = []
    for first, size, age in sent:
        # In order, without holes: a segment stays while one before it stays.
        if over <= 0 and (keep_s is None or age < keep_s):
            break
        over -= size
        gone.append(first)
    return gone


def undelivered(layout: Layout, low_watermark: int) -> list[tuple[int, int]]:
    """(first sequence, bytes) of the segments that are not delivered, in order, the last one in use."""
    named = layout.list_segments()
    done = set(delivered(named, low_watermark))
    kept = [first for first, suffix in named if suffix == SEGMENT and first not in done]
    return [(first, allocated_bytes(layout.segment(first))) for first in kept]


class Stock:
    """The segment files of one spool, as their keeper counts them."""

    def __init__(self, layout: Layout, identity: Identity, options: SpoolOptions) -> None:
        self.layout, self.identity, self.options = layout, identity, options
        self._names = SegmentNames(layout)
        self._departures = Departures(layout, identity.spool)
        self.leaving: Callable[[], None] = lambda: None
        """Called before segments are removed."""

    def used_bytes(self) -> int:
        """Bytes of disk that all segments and spares take."""
        return sum(allocated_bytes(Path(entry.path)) for entry in os.scandir(self.layout.segments))

    def space(self) -> Space:
        """The room there is. Counted each time: a running sum could be wrong for ever."""
        return Space(self.used_bytes(), *free_bytes(self.layout.segments))

    def make_spare(self, number: int) -> None:
        """Allocate one more segment, removing delivered ones to make room. Raises SpoolFull, OSError."""
        while found := self._lacks():
            if not self._remove_one():
                raise SpoolFull(f"{self.layout.directory} {_LACKS[found]}", why=found)
        try:
            create_spare(self.layout, self.identity, number, self.options.segment_bytes)
        except SpoolFull:
            if not self._remove_one():
                raise
            create_spare(self.layout, self.identity, number, self.options.segment_bytes)

    def _lacks(self) -> Full:
        space, options = self.space(), self.options
        least_free = reserve(options.min_free_bytes, space.size)
        return lack(space, options.segment_bytes, options.max_bytes, least_free)

    def _remove_one(self) -> bool:
        first = removable(self.layout.list_segments())
        if first is None:
            return False
        self.remove([first])
        return True

    def remove(self, sent: Iterable[int]) -> None:
        """Remove delivered segments by first sequence, or the first of them (`carry_over`)."""
        self.leaving()
        going = carry_over(self.layout, list(sent))
        self._departures.note(going)
        for first in going:
            self.layout.segment(first, SENT).unlink(missing_ok=True)
            reach("retire.removed")
        sync_directory(self.layout.segments)

    def give_back_reserve(self) -> int:
        """Remove delivered segments until the reserve, which others have taken, is free again; how many."""
        count = 0
        while True:
            free, size = free_bytes(self.layout.segments)
            if free >= reserve(self.options.min_free_bytes, size) or not self._remove_one():
                return count
            count += 1

    def sent(self) -> list[tuple[int, int]]:
        """(first sequence, bytes) of the segments called sent, in order."""
        named = [first for first, suffix in self.layout.list_segments() if suffix == SENT]
        return [(first, allocated_bytes(self.layout.segment(first, SENT))) for first in named]

    def retire(self, low_watermark: int) -> int:
        """Rename the segments below `low_watermark`, as sent; how many."""
        done = delivered(self._names.look(), low_watermark)
        for first in done:
            os.rename(self.layout.segment(first), self.layout.segment(first, SENT))
            reach("retire.named")
        if done:
            sync_directory(self.layout.segments)
        return len(done)


class Ages:
    """The ages of delivered segments."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._base, self._since = _read(path)
        self._started = self._saved_at = clock()

    def now(self) -> float:
        """Seconds on the spool's clock."""
        return self._base + self._clock() - self._started

    def note(self, sent: Iterable[int]) -> dict[int, float]:
        """Age in seconds by first sequence; a segment that is new here counts as delivered now."""
        now = self.now()
        self._since = {first: min(self._since.get(first, now), now) for first in sent}
        if self._clock() - self._saved_at >= SAVE_S:
            self.save()
        return {first: now - since for first, since in self._since.items()}

    def save(self) -> None:
        """Save the ages; without room, segments count as new after a restart, and nothing is lost."""
        self._saved_at = self._clock()
        lines = [f"clock {self.now():.0f}", *(f"{first} {since:.0f}" for first, since in self._since.items())]
        text = "".join(f"{line}\n" for line in lines)
        try:
            write_file(self._path, f"{text}{digest(text.encode()):016x}\n".encode())
        except OSError as error:
            log.debug("%s cannot be written: %s", self._path, error.strerror)


def _read(path: Path) -> tuple[float, dict[int, float]]:
    """(clock, delivery times by first sequence); a clock at 0 when there is no file, or it is damaged."""
    try:
        *lines, check = read_text(path, _AGES_BYTES).splitlines(keepends=True)
    except (OSError, ValueError):
        # Segments count as new then, and stay for longer.
        return 0.0, {}
    if check != f"{digest(''.join(lines).encode()):016x}\n":
        return 0.0, {}
    (_, clock), *rows = (line.split() for line in lines)
    return float(clock), {int(first): float(since) for first, since in rows}


def waiting_bytes(segments: Sequence[tuple[int, int]], end: int, end_bytes: int, low_watermark: int) -> int:
    """Bytes that messages at or above `low_watermark` take; also resolved ones behind a stuck message.

    `segments`: (first sequence, bytes of disk) of the undelivered ones, in order; the last one is in use, and
    has `end_bytes` of the log up to the sequence `end`. The first segment counts by the part of it above the
    low watermark.
    """
    if not segments:
        return 0
    sizes = [size for _, size in segments[:-1]] + [min(end_bytes, segments[-1][1])]
    first, behind = segments[0][0], segments[1][0] if len(segments) > 1 else end
    done = min(max(low_watermark - first, 0), behind - first)
    return sum(sizes) - (sizes[0] * done // (behind - first) if done else 0)


def capacity(space: Space, max_bytes: int, min_free_bytes: int | None) -> int:
    """Bytes that undelivered messages may take, if others leave the filesystem as it is."""
    return max(0, min(max_bytes, space.free + space.used - reserve(min_free_bytes, space.size)))


def seconds_until_full(
    left: int, minute: Change | None, quarter: Change | None, *, steady: bool
) -> float | None:
    """How long `left` bytes last at the present rate; None when the backlog does not grow, or is not known.

    If it grew all through the last minute (`steady`, see spool.shared.state.grows), the rate is that of the
    minute, so that an outage shows soon, or of the last quarter of an hour where that was faster: packing
    gives room back in waves. Else it is that of the quarter of an hour, once most of one is known: a burst of
    some seconds is no rate.
    """
    if not minute or not quarter or minute.waiting_bytes <= 0:
        return None
    if steady:
        return left / max(change.waiting_bytes / change.seconds for change in (minute, quarter))
    if quarter.seconds < _TREND_S or quarter.waiting_bytes <= 0:
        return None
    return left * quarter.seconds / quarter.waiting_bytes


class Packer:
    """Packs the segments of one spool, one at a time."""

    def __init__(self, layout: Layout, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Remove the files that a predecessor left unfinished."""
        for left in layout.segments.glob(f"*{_UNFINISHED}"):
            left.unlink()
        self._layout, self._clock = layout, clock
        self._thread = ThreadPoolExecutor(1, "packer", initializer=_yield_to_everybody)
        self._task: tuple[int, Future[Path | None]] | None = None
        self._since: dict[int, float] = {}
        """By first sequence: when a segment was first seen waiting."""
        self._done: set[int] = set()
        """Packed, or not worth it."""
        self._looked_at = -LOOK_S

    def step(self) -> None:
        """Put the packed segment in place, and begin with the next that is due. Raises OSError."""
        if self._task and self._task[1].done():
            done, self._task = self._task, None
            self._finish(*done)
        if self._task is None and self._clock() - self._looked_at >= LOOK_S:
            self._looked_at = self._clock()
            due = self._due()
            if due is not None:
                self._task = due, self._thread.submit(self._pack, self._layout.segment(due))

    def close(self) -> None:
        """Start no other segment."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _due(self) -> int | None:
        """The oldest that has waited long enough; never the last segment, which is not sealed or just was."""
        waiting = [first for first, suffix in self._layout.list_segments()[:-1] if suffix == SEGMENT]
        now = self._clock()
        self._since = {first: self._since.get(first, now) for first in waiting}
        self._done &= set(waiting)
        due = (f for f in waiting if f not in self._done and now - self._since[f] >= AFTER_S)
        return next(due, None)

    def _pack(self, path: Path) -> Path | None:
        """In the thread: make the packed segment, durable, under another name; None: not worth it."""
        packed = path.with_name(path.name + _UNFINISHED)
        with contextlib.ExitStack() as files:
            source = open_to_read(path)
            files.callback(os.close, source)
            if is_packed(source, path) or read_footer(source) is None:
                return None
            if os.fstat(source).st_size > MOST_BYTES:
                return None
            target = make_anew(packed)
            files.callback(os.close, target)
            try:
                pack(source, target)
                os.fsync(target)
            except BaseException:
                packed.unlink(missing_ok=True)
                raise
        if allocated_bytes(packed) > (1 - LEAST_GAIN) * allocated_bytes(path):
            packed.unlink()
            return None
        return packed

    def _finish(self, first: int, task: Future[Path | None]) -> None:
        try:
            packed = task.result()
        except FileNotFoundError:
            return  # delivered or removed meanwhile
        except (OSError, BadSpool) as error:
            log.warning("%s is not packed, and tried again later: %s", self._layout.segment(first), error)
            self._since[first] = self._clock()
            return
        self._done.add(first)
        if packed:
            self._put_in_place(first, packed)

    def _put_in_place(self, first: int, packed: Path) -> None:
        reach("pack.synced")
        for suffix in (SEGMENT, SENT):
            segment = self._layout.segment(first, suffix)
            if segment.exists():
                os.rename(packed, segment)
                reach("pack.named")
                sync_directory(self._layout.segments)
                return
        packed.unlink()


def _yield_to_everybody() -> None:
    """Let this thread run when the processors have nothing else to do."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, LOWEST_NICE)
