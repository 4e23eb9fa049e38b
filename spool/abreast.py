"""Reading several files at once, and having what is in them in order.

In threads, since all that takes time lets go of the interpreter: pread, compiled loops, the search of the C
library. Each takes the next file when it has read one, and waits when nobody takes what it has found, so that
memory is bounded. Whoever takes no more ends them, wherever they are.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

File = TypeVar("File")
Found = TypeVar("Found")

MOST = 8
"""Threads, at most: together they are faster than disks are, and each takes memory."""
WAITING = 4
"""Results of one file that wait to be taken, at most."""

_PATIENCE_S = 1.0
"""For threads that are to end. One that takes longer stands in a system call, and is left there."""

_here = threading.local()


class Ended(BaseException):
    """Nobody wants the results of this thread any more. No error: what catches those lets it pass."""


def checkpoint() -> None:
    """Called now and then by what reads for long. Raises Ended in a thread of `in_order` that is to end."""
    crew: _Crew[Any, Any] | None = getattr(_here, "crew", None)
    if crew is not None and crew.ended:
        raise Ended


def processors() -> int:
    """Those that this process may use (taskset, cpusets of containers); MOST at most."""
    return min(len(os.sched_getaffinity(0)), MOST)


def in_order(
    read: Callable[[File], Iterator[Found]], files: Sequence[File], threads: int | None = None
) -> Iterator[Found]:
    """What `read` yields of each file, in the order of the files; by default with a thread a processor.

    What it yields must stay valid. What it raises is raised here, in its place. With one thread, or one file,
    that is the caller's.
    """
    count = min(processors() if threads is None else threads, len(files))
    if count <= 1:
        for file in files:
            yield from read(file)
        return
    crew = _Crew(read, files, count)
    try:
        yield from crew.results()
    finally:
        crew.end()


class _Results(Generic[Found]):
    """Of one file: what waits to be taken, and what came of reading it."""

    def __init__(self) -> None:
        self.waiting: list[Found] = []
        self.complete = False
        self.error: BaseException | None = None


class _Crew(Generic[File, Found]):
    """Threads, and what they have found. All of it changes under one condition."""

    def __init__(self, read: Callable[[File], Iterator[Found]], files: Sequence[File], threads: int) -> None:
        self.ended = False
        self._read, self._left = read, iter(files)
        self._begun: deque[_Results[Found]] = deque()
        """In order; of the first the results are taken."""
        self._most = 2 * threads
        """Files that are begun and not taken: who meets a slow one is not waited for at once."""
        self._at_work = threads
        self._changed = threading.Condition()
        names = [f"reading-{number}" for number in range(threads)]
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]

    def results(self) -> Iterator[Found]:
        """Of all files, in order. Raises what reading them raised."""
        # Whoever was interrupted between two results may keep this until the end, and compiled code must not
        # come back to an interpreter that is gone.
        atexit.register(self.end)
        for thread in self._threads:
            thread.start()
        while (first := self._first()) is not None:
            while found := self._take(first):
                yield from found
            with self._changed:
                self._begun.popleft()
                self._changed.notify_all()
            if first.error is not None:
                raise first.error

    def end(self) -> None:
        """Let the threads end: those at work do at their next checkpoint."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()
        until = time.monotonic() + _PATIENCE_S
        for thread in filter(threading.Thread.is_alive, self._threads):
            thread.join(max(0.0, until - time.monotonic()))
        atexit.unregister(self.end)

    def _first(self) -> _Results[Found] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._begun or not self._at_work)
            return self._begun[0] if self._begun else None

    def _take(self, results: _Results[Found]) -> list[Found]:
        """What waits of one file; nothing when all was taken."""
        with self._changed:
            self._changed.wait_for(lambda: results.waiting or results.complete)
            found, results.waiting = results.waiting, []
            self._changed.notify_all()
        return found

    def _work(self) -> None:
        _here.crew = self
        while (begun := self._begin()) is not None:
            file, results = begun
            try:
                for found in self._read(file):
                    self._put(results, found)
            except BaseException as error:  # noqa: BLE001  (raised where the results are taken)
                results.error = error
            with self._changed:
                results.complete = True
                self._changed.notify_all()
        with self._changed:
            self._at_work -= 1
            self._changed.notify_all()

    def _begin(self) -> tuple[File, _Results[Found]] | None:
        """The next file, once there is room for its results; None: there is none, or nobody wants it."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended or len(self._begun) < self._most)
            if self.ended:
                return None
            for file in self._left:
                self._begun.append(results := _Results[Found]())
                self._changed.notify_all()
                return file, results
        return None

    def _put(self, results: _Results[Found], found: Found) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.ended or len(results.waiting) < WAITING)
            if self.ended:
                raise Ended
            results.waiting.append(found)
            self._changed.notify_all()
