"""While the keeper waits, a compiled loop commits what is ordinary, and leaves all else as it was."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from spool.format.frame import BURST, DIGEST, POSITION, SEQUENCE
from spool.format.segment_format import MARK_BYTES
from spool.format.wire import encode
from spool.index.committed import read_committed
from spool.log import group_commit
from spool.log.group_commit import READ_BYTES, SOONER, GroupCommit
from spool.native.libc import libc
from spool.native.memory import function_address
from spool.shared.state import Field
from tests.spool.fixture import SpoolFixture

LONG_S, SHORT_S = 30.0, 0.05


@pytest.fixture
def ordinary(memory: Path) -> Iterator[SpoolFixture]:
    """A spool with a segment in use that has its name: what comes next in it is ordinary."""
    spool = SpoolFixture(memory)
    spool.fill(1)
    spool.step()
    yield spool
    spool.crash()


def wait(spool: SpoolFixture, rest_s: float = LONG_S, busy_s: float = 0.0) -> bool:
    """Wait as the keeper does: until one commit, or for `rest_s`; whether something is left."""
    return spool.keeper._group.wait(spool.keeper._committer, rest_s, busy_s)


def replacing(**functions: Callable[..., int]) -> mock._patch:
    """The loop calls these in place of functions of the C library; each has one argument at most."""
    kinds = {
        "fdatasync": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int),
        "pwrite": ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, *[ctypes.c_size_t] * 3),
    }
    other = ctypes.CFUNCTYPE(ctypes.c_void_p)
    made = {name: kinds.get(name, other)(function) for name, function in functions.items()}
    found = libc()._replace(**{name: function_address(one) for name, one in made.items()})

    def changed() -> Any:
        # The addresses are good only while `made` is there.
        assert made
        return found

    return mock.patch.object(group_commit, "libc", changed)


def test_what_is_written_is_committed_while_the_keeper_waits(ordinary: SpoolFixture) -> None:
    """The watermark moves, and index and counts learn of it, without the committer's own way."""
    sent = ordinary.fill(5)
    with mock.patch.object(ordinary.keeper._committer, "_commit", side_effect=AssertionError):
        assert not wait(ordinary)
    assert ordinary.synced == 3 + len(sent)
    committed = read_committed(ordinary.layout.index)
    assert committed is not None
    assert committed[1].tolist() == ordinary.writer.tail.tolist()
    assert ordinary.keeper._senders._count.burst == int(ordinary.writer.tail[BURST])


def test_a_bell_ends_the_rest_for_a_single_message(ordinary: SpoolFixture) -> None:
    """The keeper says that it sleeps, and one bell is enough: nothing waits for a second message."""
    words, slept = ordinary.shared.words, threading.Event()

    def send() -> None:
        deadline = time.monotonic() + LONG_S
        while not words[Field.KEEPER_WAITS] and time.monotonic() < deadline:
            time.sleep(0.001)
        if words[Field.KEEPER_WAITS]:
            slept.set()
        ordinary.writer.append([encode(b"t", b"v")])
        os.eventfd_write(ordinary.bell, 1)

    sender = threading.Thread(target=send)
    sender.start()
    began = time.monotonic()
    assert not wait(ordinary, 10 * LONG_S)
    assert time.monotonic() - began < 5 * LONG_S
    sender.join()
    assert slept.is_set()
    assert not words[Field.KEEPER_WAITS]
    assert ordinary.synced == 4


def test_those_who_read_are_told(memory: Path) -> None:
    """Each of their bells rings once for a commit."""
    spool, bells = SpoolFixture(memory), [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3)]
    options = spool.options
    spool.fill(1)
    spool.step()
    group = GroupCommit(spool.shared, spool.bell, bells, interval_s=0, most_bytes=options.sync_bytes)
    spool.fill(2)
    assert not group.wait(spool.keeper._committer, LONG_S, 0.0)
    assert [os.eventfd_read(bell) for bell in bells] == [1, 1, 1]
    for bell in bells:
        os.close(bell)
    spool.crash()


@pytest.mark.parametrize(
    ("options", "word", "fills", "commits"),
    [
        ({}, 0, 1, False),
        ({"sync": "always"}, 0, 1, True),
        ({}, 4, 1, True),
        ({"sync_bytes": 2048}, 0, 10, True),
    ],
    ids=["within the interval", "always", "wanted", "many bytes"],
)
def test_the_interval(memory: Path, options: Any, word: int, fills: int, *, commits: bool) -> None:
    """A commit begins an interval after the last one, or at once if that is configured, asked for, or due."""
    spool = SpoolFixture(memory, sync_interval_ms=60_000, **options)
    spool.fill(1)
    spool.step()
    spool.fill(fills)
    spool.shared.words[Field.SYNC_WANTED] = word
    began = time.monotonic()
    assert not wait(spool, LONG_S if commits else SHORT_S, 0.0)
    assert (spool.synced > 3) == commits
    took = time.monotonic() - began
    assert took < LONG_S / 2 if commits else took >= SHORT_S
    spool.crash()


def test_a_sync_that_is_wanted_ends_the_interval(memory: Path) -> None:
    """A worker sets the word and rings, while the keeper waits for the interval."""
    spool = SpoolFixture(memory, sync_interval_ms=10_000)
    spool.fill(1)
    spool.step()
    spool.fill(1)

    def ask() -> None:
        spool.shared.words[Field.SYNC_WANTED] = 6
        os.eventfd_write(spool.bell, 1)

    timer = threading.Timer(0.2, ask)
    timer.start()
    began = time.monotonic()
    assert not wait(spool, LONG_S)
    timer.join()
    assert spool.synced == 6
    assert time.monotonic() - began < 8.0
    spool.crash()


@pytest.mark.parametrize(("age_s", "commits"), [(0, False), (60 / SOONER, True)])
def test_a_sync_that_is_wanted_soon(memory: Path, age_s: float, *, commits: bool) -> None:
    """It begins when a part of the interval is over."""
    spool = SpoolFixture(memory, sync_interval_ms=60_000)
    spool.fill(1)
    spool.step()
    spool.fill(1)
    spool.shared.words[Field.SYNC_SOON] = 6
    group = spool.keeper._group
    group._array[group_commit._SYNCED_AT_NS] -= int(age_s * 1e9)
    assert not wait(spool, LONG_S if commits else SHORT_S, 0.0)
    assert (spool.synced == 6) == commits
    spool.crash()


def test_readers_know_before_the_watermark_moves(ordinary: SpoolFixture) -> None:
    """A reader that hears of a watermark finds the committed end there, or behind it."""
    seen: list[int] = []

    def note(fd: int, at: int, length: int, offset: int) -> int:
        seen.append(ordinary.synced)
        return os.pwrite(fd, ctypes.string_at(at, length), offset)

    ordinary.fill(1)
    with replacing(pwrite=note):
        assert not wait(ordinary)
    assert seen == [3]
    assert ordinary.synced == 6


def test_a_committed_end_without_room_is_said_once(
    ordinary: SpoolFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Readers are behind then; the log goes on."""
    reason = ctypes.c_int(errno.ENOSPC)
    with replacing(pwrite=lambda *_: -1, errno_location=lambda: ctypes.addressof(reason)):
        for _ in range(2):
            ordinary.fill(1)
            assert not wait(ordinary)
    assert ordinary.synced == 9
    assert caplog.text.count("how far the log is committed") == 1


def test_a_turn_goes_on_while_messages_come(ordinary: SpoolFixture) -> None:
    """Python runs when the time of a turn is over, and not for each commit."""
    synced: list[int] = []

    def sync(fd: int) -> int:
        os.fdatasync(fd)
        synced.append(fd)
        if len(synced) < 5:
            ordinary.writer.append([encode(b"t", b"v")])
        return 0

    ordinary.fill(1)
    with replacing(fdatasync=sync):
        assert not wait(ordinary, 1.0, 1.0)
    assert len(synced) == 5
    assert ordinary.synced == int(ordinary.writer.tail[SEQUENCE])


def test_the_committed_end_is_as_new_as_the_watermark(ordinary: SpoolFixture) -> None:
    """Also in the middle of a turn: should all processes die then, a reader finds what was promised."""
    seen: list[tuple[int, int]] = []

    def sync(fd: int) -> int:
        os.fdatasync(fd)
        committed = read_committed(ordinary.layout.index)
        assert committed is not None
        seen.append((int(committed[1][SEQUENCE]), ordinary.synced))
        if len(seen) < 5:
            ordinary.writer.append([encode(b"t", b"v")])
        return 0

    ordinary.fill(1)
    with replacing(fdatasync=sync):
        assert not wait(ordinary, 1.0, 1.0)
    assert seen == [(n, n) for n in (3, 6, 7, 8, 9)]


def test_a_slow_disk_does_not_keep_python_away(memory: Path) -> None:
    """Behind each sync something else is written; a turn ends all the same when its time is over."""
    spool = SpoolFixture(memory, sync="always", segment_bytes=1 << 20, max_bytes=8 << 20)
    spool.fill(1)
    spool.step()
    synced: list[int] = []

    def sync(fd: int) -> int:
        os.fdatasync(fd)
        synced.append(fd)
        spool.writer.append([encode(b"t", b"v")])
        return 0

    spool.fill(1)
    with replacing(fdatasync=sync):
        assert not wait(spool, LONG_S, 0.0)
    assert len(synced) == 1
    spool.crash()


def test_a_bell_for_something_else_ends_the_rest(ordinary: SpoolFixture) -> None:
    """The appender rings, too, when it needs a segment: nothing is written then, and upkeep is due."""
    os.eventfd_write(ordinary.bell, 1)
    began = time.monotonic()
    assert not wait(ordinary, 10 * LONG_S)
    assert time.monotonic() - began < 5 * LONG_S


def test_a_watermark_ahead_of_what_is_written_is_waited_for(ordinary: SpoolFixture) -> None:
    """Behind rot an appender that starts again may begin before the synced end: the keeper sleeps."""
    words = ordinary.shared.words
    words[Field.WRITTEN] -= 1
    began = time.process_time()
    assert not wait(ordinary, 1.0)
    assert time.process_time() - began < 0.5
    words[Field.WRITTEN] += 1


def test_the_first_frame_of_a_segment_is_left(memory: Path) -> None:
    """A spare gets its name first, so the committer takes it into use."""
    spool = SpoolFixture(memory)
    spool.fill(1)
    assert wait(spool)
    assert spool.synced == 0
    spool.step()
    assert spool.synced == 3
    spool.crash()


def test_the_end_of_a_segment_is_left(ordinary: SpoolFixture) -> None:
    """The committer does the rest of the old segment, and the beginning of the new one."""
    while ordinary.writer.number == 1:
        ordinary.fill(1)
    ordinary.fill(1)
    before = ordinary.synced
    assert wait(ordinary)
    assert ordinary.synced == before
    ordinary.step()
    assert before < ordinary.synced == int(ordinary.writer.tail[SEQUENCE])


def test_damage_is_left_with_the_tail_where_it_was(
    ordinary: SpoolFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a burst with a rotten frame in it nothing is committed here; the committer goes over it."""
    ordinary.fill(3)
    frames = ordinary.segments()[-1].frames
    with ordinary.last_path().open("r+b") as file:
        file.seek(frames[2].offset + 100)
        file.write(b"\xff\xfe")
    before = ordinary.keeper._committer.tail.copy()
    assert wait(ordinary)
    assert ordinary.keeper._committer.tail.tolist() == before.tolist()
    assert ordinary.synced == 3
    ordinary.step()
    assert ordinary.synced == 12
    assert "3 messages cannot be read" in caplog.text


def test_a_flood_is_left(memory: Path) -> None:
    """More than the loop has room for goes the committer's way, all of it."""
    spool = SpoolFixture(memory, segment_bytes=1 << 20, max_bytes=8 << 20)
    spool.fill(1)
    spool.step()
    spool.fill(READ_BYTES // 5000 + 1, messages=100)
    assert wait(spool)
    assert spool.synced == 3
    spool.step()
    assert spool.synced == int(spool.writer.tail[SEQUENCE])
    spool.crash()


def test_a_sync_that_fails_is_final(ordinary: SpoolFixture, caplog: pytest.LogCaptureFixture) -> None:
    """Commits of before stay; the rest is not announced, and the segment is suspect at once."""
    calls: list[int] = []
    reason = ctypes.c_int(errno.EIO)

    def sync(fd: int) -> int:
        calls.append(fd)
        if len(calls) == 1:
            os.fdatasync(fd)
            ordinary.writer.append([encode(b"t", b"second")])
            return 0
        return -1

    ordinary.fill(1)
    with replacing(fdatasync=sync, errno_location=lambda: ctypes.addressof(reason)):
        assert wait(ordinary, LONG_S, LONG_S)
    assert len(calls) == 2
    words, committed = ordinary.shared.words, read_committed(ordinary.layout.index)
    assert ordinary.synced == 6
    assert int(ordinary.keeper._committer.tail[SEQUENCE]) == 6
    assert committed is not None
    assert int(committed[1][SEQUENCE]) == 6
    assert int(words[Field.SUSPECT]) == ordinary.writer.number
    assert int(words[Field.SYNC_ERROR]) == errno.EIO
    assert os.strerror(errno.EIO) in caplog.text
    # The appender goes to the next segment; the suspect is rewritten, with all that it has.
    ordinary.fill(1)
    ordinary.step()
    assert ordinary.synced == 10
    assert int(words[Field.RENEWED]) == 1


def test_a_failed_sync_is_noted_before_anything_else(ordinary: SpoolFixture) -> None:
    """A keeper that dies of what comes next has a successor that does not sync the file again.

    Also when the reason is not known.
    """
    reason = ctypes.c_int(0)
    ordinary.fill(1)
    with (
        replacing(fdatasync=lambda _: -1, errno_location=lambda: ctypes.addressof(reason)),
        mock.patch.object(ordinary.keeper._committer, "take_over", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        wait(ordinary)
    assert int(ordinary.shared.words[Field.SUSPECT]) == ordinary.writer.number
    assert ordinary.synced == 3


def test_a_sync_that_a_signal_ends_is_left(ordinary: SpoolFixture) -> None:
    """It proves nothing about the disk: the committer syncs again."""
    reason = ctypes.c_int(errno.EINTR)
    ordinary.fill(1)
    with replacing(fdatasync=lambda _: -1, errno_location=lambda: ctypes.addressof(reason)):
        assert wait(ordinary)
    assert not ordinary.shared.words[Field.SUSPECT]
    assert ordinary.synced == 3
    ordinary.step()
    assert ordinary.synced == 6


def test_a_suspect_segment_is_left(ordinary: SpoolFixture) -> None:
    """A second sync of a file proves nothing, so the loop does not even try."""
    ordinary.keeper._committer._suspect(OSError(errno.EIO, "it failed"))
    ordinary.fill(1)
    with replacing(fdatasync=lambda _: pytest.fail("it is synced")):
        assert wait(ordinary)
    assert ordinary.synced == 3


def test_a_signal_ends_the_rest(ordinary: SpoolFixture) -> None:
    """A keeper that shall stop does not sleep on, and the appender has no reason to ring."""
    main = threading.main_thread().ident
    assert main is not None
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _frame: came.append(number))
    timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGUSR1))
    timer.start()
    began = time.monotonic()
    try:
        assert not wait(ordinary, 10 * LONG_S)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert time.monotonic() - began < 5 * LONG_S
    assert came
    assert not ordinary.shared.words[Field.KEEPER_WAITS]


def test_entries_of_the_index_are_those_of_the_committer(memory: Path) -> None:
    """At least MARK_BYTES apart, with the digest and the burst before each: the log can be entered there."""
    spool = SpoolFixture(memory, segment_bytes=1 << 20, max_bytes=8 << 20)
    spool.fill(1)
    spool.step()
    tails = {}
    for _ in range(40):
        tails[int(spool.writer.tail[POSITION])] = spool.writer.tail.copy()
        spool.fill(1, messages=100)
        assert not wait(spool)
    entries = spool.index().entries()
    offsets = [offset for _, _, offset, _, _ in entries]
    assert len(offsets) > 3
    assert all(b - a >= MARK_BYTES for a, b in pairwise(offsets))
    for sequence, number, offset, before, burst in entries[1:]:
        tail = tails[offset]
        assert (sequence, number, burst) == (int(tail[SEQUENCE]), 1, int(tail[BURST]))
        assert before == int(tail[DIGEST]) & 0xFFFFFFFFFFFFFFFF
    spool.crash()


@pytest.mark.parametrize("seed", range(4))
def test_by_turns_with_the_committer(memory: Path, seed: int) -> None:
    """Whichever commits, in any order, and through crashes: what is synced is what was written, each once."""
    chance, spool, sent = random.Random(seed), SpoolFixture(memory), list[bytes]()
    for _ in range(60):
        sent += spool.fill(chance.randrange(4), messages=chance.randrange(1, 5))
        act = chance.choice(["wait", "wait", "wait", "step", "reopen"])
        if act == "step":
            spool.step()
        elif act == "reopen":
            spool.reopen()
        elif wait(spool, 0.0):
            spool.keeper.commit()
        assert spool.synced <= len(sent)
        if act != "wait" or spool.shared.words[Field.WRITTEN] == spool.shared.words[Field.SYNCED]:
            assert spool.synced == len(sent)
    # Each frame is counted once, whoever committed it.
    assert spool.keeper._senders._count.burst == int(spool.writer.tail[BURST])
    assert [datagram for _, datagram in spool.records()] == sent
    assert [sequence for sequence, _ in spool.records()] == list(range(len(sent)))
    spool.crash()
