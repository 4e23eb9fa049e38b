"""Parallel reading of files: in order, bounded, like one thread; it ends when the consumer stops."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from spool.storage.parallel import MOST, WAITING, Weights, checkpoint, in_order, processors

PATIENCE_S = 30.0
THREADS = 3


def readers() -> list[threading.Thread]:
    """The live threads of `in_order`."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("reading-")]


def await_true(what: Callable[[], object]) -> None:
    """Wait for a condition."""
    until = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.001)


@pytest.mark.parametrize("threads", [1, 2, THREADS, 50])
def test_results_come_in_the_order_of_the_files(threads: int) -> None:
    """For any number of threads, and any order of completion; a file may have nothing."""
    done = [threading.Event() for _ in range(20)]

    def read(number: int) -> Iterator[tuple[int, int]]:
        # Every other file waits for the one behind it, which another thread reads.
        if threads > 1 and number % 2 == 0:
            assert done[number + 1].wait(PATIENCE_S)
        for part in range(number % WAITING):
            yield number, part
        done[number].set()

    found = list(in_order(read, range(20), threads))
    assert found == [(number, part) for number in range(20) for part in range(number % WAITING)]
    await_true(lambda: not readers())


def test_several_are_read_at_once() -> None:
    """Each waits until all have begun."""
    together = threading.Barrier(THREADS, timeout=PATIENCE_S)

    def read(number: int) -> Iterator[int]:
        together.wait()
        yield number

    assert list(in_order(read, range(THREADS), THREADS)) == [0, 1, 2]


@pytest.mark.parametrize(("files", "threads"), [(5, 1), (1, THREADS)])
def test_one_thread_is_the_callers(files: int, threads: int) -> None:
    """With one processor no file is read before it is wanted, and no thread is made; nor for one file."""
    begun: list[threading.Thread] = []

    def read(number: int) -> Iterator[int]:
        begun.append(threading.current_thread())
        yield number

    found = in_order(read, range(files), threads)
    assert next(found) == 0
    assert begun == [threading.current_thread()]
    found.close()


def test_what_is_not_taken_is_bounded() -> None:
    """For endless files, each thread stops at WAITING results, and goes on as they are taken."""
    made = Counter[int]()

    def read(number: int) -> Iterator[int]:
        while True:
            made[number] += 1
            yield number

    found = in_order(read, range(10), THREADS)
    assert next(found) == 0
    most = WAITING + 1  # one is in the hands of the thread
    await_true(lambda: made[1] == made[2] == most)
    # The first `next` took an unknown part of the first file; WAITING results at most.
    await_true(lambda: most < made[0] <= WAITING + most)
    assert set(made) == set(range(THREADS))
    found.close()
    await_true(lambda: not readers())


def test_files_are_not_begun_far_ahead() -> None:
    """While the first is slow, others are read: as many as there are threads twice over, and no more."""
    go_on, begun = threading.Event(), set[int]()

    def read(number: int) -> Iterator[int]:
        begun.add(number)
        if number == 0:
            assert go_on.wait(PATIENCE_S)
        yield number

    found = in_order(read, range(100), THREADS)
    others: list[int] = []
    taker = threading.Thread(target=lambda: others.extend(found))
    taker.start()
    await_true(lambda: len(begun) == 2 * THREADS)
    assert begun == set(range(2 * THREADS))
    go_on.set()
    taker.join(PATIENCE_S)
    assert others == list(range(100))


@pytest.mark.parametrize("threads", [1, THREADS])
def test_an_error_comes_in_its_place(threads: int) -> None:
    """After the results before it; no later result comes, and the threads are gone."""

    def read(number: int) -> Iterator[int]:
        yield number
        if number == 4:
            raise OSError(5, "the disk", "4.seg")
        yield number

    found = in_order(read, range(10), threads)
    assert list(islice(found, 9)) == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    with pytest.raises(OSError, match="the disk") as raised:
        next(found)
    assert raised.value.filename == "4.seg"
    await_true(lambda: not readers())


def test_who_takes_no_more_ends_what_reads() -> None:
    """In the middle of a file without an end, at the next checkpoint."""

    def read(number: int) -> Iterator[int]:
        yield number
        until = time.monotonic() + 3 * PATIENCE_S  # longer than any test waits
        while time.monotonic() < until:
            checkpoint()

    found = in_order(read, range(10), THREADS)
    assert next(found) == 0
    found.close()
    await_true(lambda: not readers())


def test_control_c_ends_what_reads() -> None:
    """The thread that waits for results gets it."""
    begun = threading.Barrier(THREADS + 1, timeout=PATIENCE_S)

    def read(number: int) -> Iterator[int]:
        begun.wait()
        until = time.monotonic() + 3 * PATIENCE_S  # longer than any test waits
        while time.monotonic() < until:
            checkpoint()
        yield number

    def interrupt() -> None:
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        next(in_order(read, range(10), THREADS))
    sender.join()
    await_true(lambda: not readers())


def test_the_caller_never_waits_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """No signal ends a wait that begins just behind it: the caller looks for signals now and then."""
    ends, real = list[float | None](), threading.Condition.wait_for

    def wait_for(
        self: threading.Condition, claim: Callable[[], object], timeout: float | None = None
    ) -> object:
        if threading.current_thread() is threading.main_thread():
            ends.append(timeout)
        return real(self, claim, timeout)

    def slowly(number: int) -> Iterator[int]:
        if number == 0:
            time.sleep(0.7)
        yield number

    monkeypatch.setattr(threading.Condition, "wait_for", wait_for)
    assert list(in_order(slowly, range(4), 2)) == list(range(4))
    assert None not in ends
    assert len(ends) > 2 * 4


def test_a_thread_that_stands_still_is_left() -> None:
    """It is in a system call that does not return: the end does not wait for it."""
    begun, comes_back = threading.Semaphore(0), threading.Event()

    def read(number: int) -> Iterator[int]:
        yield number
        begun.release()
        comes_back.wait(PATIENCE_S)

    found = in_order(read, range(THREADS), THREADS)
    assert next(found) == 0
    for _ in range(THREADS):
        assert begun.acquire(timeout=PATIENCE_S)
    found.close()
    assert len(readers()) == THREADS
    comes_back.set()
    await_true(lambda: not readers())


def test_processors_are_those_that_may_be_used() -> None:
    """Not all those of the host; and MOST at most."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert processors() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert processors() == min(len(before), MOST)


def test_elsewhere_a_checkpoint_is_nothing() -> None:
    """Also after a reading that was ended."""
    found = in_order(lambda number: iter([number] * 9), range(4), THREADS)
    next(found)
    found.close()
    checkpoint()


def test_files_that_take_memory_share_it() -> None:
    """Those that are read together stay within the bound; one beyond it is read alone; light ones go on."""
    weights = [3, 0, 9, 5, 5, 1, 0, 12, 4, 6] * 20
    lock, now, most = threading.Lock(), 0, 0

    def read(number: int) -> Iterator[int]:
        nonlocal now, most
        with lock:
            now += weights[number]
            assert now <= 10 or now == weights[number]
            most = max(most, now)
        for _ in range(3 * WAITING):
            yield number
        with lock:
            now -= weights[number]

    found = list(in_order(read, range(len(weights)), THREADS, Weights(weights.__getitem__, 10)))
    assert found == [number for number in range(len(weights)) for _ in range(3 * WAITING)]
    assert most == 12
    await_true(lambda: not readers())


def test_a_weight_that_cannot_be_told_is_an_error_in_its_place() -> None:
    """The files behind it are not waited for in vain."""

    def weigh(number: int) -> int:
        if number == 5:
            raise OSError(5, "unreadable")
        return 7

    found = list[int]()
    results = in_order(lambda number: iter([number]), range(20), THREADS, Weights(weigh, 10))
    with pytest.raises(OSError, match="unreadable"):
        found.extend(results)
    assert found == [0, 1, 2, 3, 4]
    await_true(lambda: not readers())
