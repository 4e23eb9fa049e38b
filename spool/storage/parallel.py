"""Parallel map over files: several are read at once, and their results come in order.

In threads, since all slow steps release the interpreter's lock: pread, compiled loops, the search of the C
library. A thread takes the next file when it has read one, and waits while its results are not taken, so that
memory is bounded. Files that take much memory have a weight, and those that are read together a bound for the
sum. When the caller takes no more results, all threads end at their next checkpoint.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

File = TypeVar("File")
Found = TypeVar("Found")

MOST = 8
"""Threads, at most: together they are faster than disks are, and each takes memory."""
WAITING = 4
"""Results of one file that wait to be taken, at most."""

_PATIENCE_S = 1.0
"""For threads that are to end. One that takes longer is in a system call, and is left there."""
_SIGNALS_S = 0.5
"""Between two looks for signals."""

_here = threading.local()


class Ended(BaseException):
    """The results of this thread are not wanted any more. Not an Exception: handlers of those let it pass."""


def checkpoint() -> None:
    """To be called now and then in a long read. Raises Ended in a thread of `in_order` that is to end."""
    crew: _Crew[Any, Any] | None = getattr(_here, "crew", None)
    if crew is not None and crew.ended:
        raise Ended


def processors() -> int:
    """Processors that this process may use (taskset, cpusets of containers); MOST at most."""
    return min(len(os.sched_getaffinity(0)), MOST)


class Weights(NamedTuple, Generic[File]):
    """How files share memory."""

    of: Callable[[File], int]
    """Bytes that reading a file takes. Raises OSError."""
    most: int
    """Of the files that are read together. One that has more is read while no other is."""


def in_order(
    read: Callable[[File], Iterator[Found]],
    files: Sequence[File],
    threads: int | None = None,
    weights: Weights[File] | None = None,
) -> Iterator[Found]:
    """The results of `read` for each file, in the order of the files; by default with a thread a processor.

    Results must stay valid. An error of `read`, or of a weight, is raised here, in its place. With one
    thread, or one file, `read` runs in the caller's thread.
    """
    count = min(processors() if threads is None else threads, len(files))
    if count <= 1:
        for file in files:
            yield from read(file)
        return
    crew = _Crew(read, files, count, weights)
    try:
        yield from crew.results()
    finally:
        crew.end()


class _Results(Generic[Found]):
    """The results of one file that wait to be taken, and how reading it ended."""

    def __init__(self, number: int) -> None:
        self.number = number
        """Of the file, from 0."""
        self.waiting: list[Found] = []
        self.complete = False
        self.error: BaseException | None = None


class _Crew(Generic[File, Found]):
    """Threads and their results. One condition guards all of it."""

    def __init__(
        self,
        read: Callable[[File], Iterator[Found]],
        files: Sequence[File],
        threads: int,
        weights: Weights[File] | None,
    ) -> None:
        self.ended = False
        self._read, self._left, self._weights = read, iter(files), weights
        self._weight = self._weighed = 0
        """The sum for the files that are being read; files that were added to it so far."""
        self._begun: deque[_Results[Found]] = deque()
        """In order; the caller takes the results of the first."""
        self._most = 2 * threads
        """Most files that are begun and not taken: the others go on while one thread has a slow file."""
        self._count, self._at_work = 0, threads
        self._changed = threading.Condition()
        names = [f"reading-{number}" for number in range(threads)]
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]

    def results(self) -> Iterator[Found]:
        """The results of all files, in order. Raises the errors of `read`."""
        # A caller that was interrupted between two results may keep this iterator until the process exits,
        # and compiled code must not return to an interpreter that is gone.
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
        """End the threads: those at work end at their next checkpoint."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()
        until = time.monotonic() + _PATIENCE_S
        for thread in filter(threading.Thread.is_alive, self._threads):
            thread.join(max(0.0, until - time.monotonic()))
        atexit.unregister(self.end)

    def _first(self) -> _Results[Found] | None:
        with self._changed:
            self._await(lambda: bool(self._begun) or not self._at_work)
            return self._begun[0] if self._begun else None

    def _take(self, results: _Results[Found]) -> list[Found]:
        """The waiting results of one file; none when all were taken."""
        with self._changed:
            self._await(lambda: bool(results.waiting) or results.complete)
            found, results.waiting = results.waiting, []
            self._changed.notify_all()
        return found

    def _await(self, claim: Callable[[], bool]) -> None:
        """Wait in the caller's thread: a Control-C that comes just before a wait does not end that wait."""
        while not self._changed.wait_for(claim, _SIGNALS_S):
            continue

    def _work(self) -> None:
        _here.crew = self
        while (begun := self._begin()) is not None:
            file, results = begun
            weight = 0
            try:
                weight = self._take_up(file, results.number)
                for found in self._read(file):
                    self._put(results, found)
            except BaseException as error:  # noqa: BLE001  (raised where the results are taken)
                results.error = error
            with self._changed:
                results.complete = True
                self._weight -= weight
                self._changed.notify_all()
        with self._changed:
            self._at_work -= 1
            self._changed.notify_all()

    def _begin(self) -> tuple[File, _Results[Found]] | None:
        """The next file, once there is room for its results; None: there is none, or threads are to end."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended or len(self._begun) < self._most)
            if self.ended:
                return None
            for file in self._left:
                self._begun.append(results := _Results[Found](self._count))
                self._count += 1
                self._changed.notify_all()
                return file, results
        return None

    def _take_up(self, file: File, number: int) -> int:
        """Wait until there is room for the weight of a file, which is returned.

        In the order of the files: the first of them never waits for one whose results wait to be taken.
        """
        weights, weight = self._weights, 0
        try:
            weight = weights.of(file) if weights else 0
        finally:
            with self._changed:
                self._changed.wait_for(lambda: self.ended or self._has_room(number, weight))
                self._weighed, self._weight = self._weighed + 1, self._weight + weight
                self._changed.notify_all()
        return weight

    def _has_room(self, number: int, weight: int) -> bool:
        free = self._weights is None or not self._weight or self._weight + weight <= self._weights.most
        return number == self._weighed and free

    def _put(self, results: _Results[Found], found: Found) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.ended or len(results.waiting) < WAITING)
            if self.ended:
                raise Ended
            results.waiting.append(found)
            self._changed.notify_all()
