"""Packing sealed segments, in a thread that runs when nobody else wants the processor.

What waits for Kafka takes a fraction of the disk then: hours of an outage more. A segment that is delivered
soon is not worth it, so that only those are packed that have been sealed, and not delivered, for a while.

The thread writes beside the segment, under a name that a start removes. The keeper, who alone renames and
removes segments, puts it in the segment's place, in one rename.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from spool.crash_point import reach
from spool.disk import allocated_bytes, make_anew, open_to_read, sync_directory
from spool.errors import BadSpool
from spool.layout import SEGMENT, SENT, Layout
from spool.live import read_footer
from spool.packed import MOST_BYTES, is_packed, pack

log = logging.getLogger("bruce.keeper")

AFTER_S = 60.0
"""A segment is packed when it has been seen sealed and undelivered for so long."""
LOOK_S = 5.0
"""Between two looks for one."""
LEAST_GAIN = 0.1
"""Share of its bytes that packing must save."""
LOWEST_NICE = 19
_UNFINISHED = ".packed.tmp"


class Packer:
    """Packs the segments of one spool, one at a time."""

    def __init__(self, layout: Layout, *, clock: Callable[[], float] = time.monotonic) -> None:
        """What a predecessor left half done is removed."""
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
        """Put in place what is packed, and begin with the next that is due. Raises OSError."""
        if self._task and self._task[1].done():
            done, self._task = self._task, None
            self._finish(*done)
        if self._task is None and self._clock() - self._looked_at >= LOOK_S:
            self._looked_at = self._clock()
            due = self._due()
            if due is not None:
                self._task = due, self._thread.submit(self._pack, self._layout.segment(due))

    def close(self) -> None:
        """Begin with no other."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _due(self) -> int | None:
        """The oldest that has waited long enough. The last segment is not sealed, or soon not the last."""
        waiting = [first for first, suffix in self._layout.list_segments()[:-1] if suffix == SEGMENT]
        now = self._clock()
        self._since = {first: self._since.get(first, now) for first in waiting}
        self._done &= set(waiting)
        due = (f for f in waiting if f not in self._done and now - self._since[f] >= AFTER_S)
        return next(due, None)

    def _pack(self, path: Path) -> Path | None:
        """In the thread: the packed segment, durable, under another name; None when there is no point."""
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
            return  # delivered meanwhile, or removed
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
