"""The committed end: two slots in a small file, written by Python and by compiled loops."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.errors import ReadFailed
from spool.format.frame import POSITION, TAIL_FIELDS, Tail
from spool.format.scan import digest_address
from spool.index.committed import NAME, SLOT_BYTES, CommittedFile, read_committed, write_committed
from spool.native.kernel import kernel
from spool.native.libc import Libc, libc
from tests.spool.unreadable import unreadable

OWN, OTHER = b"o" * 16, b"x" * 16


def tail_at(position: int) -> Tail:
    """A tail there."""
    tail = np.arange(TAIL_FIELDS, dtype=np.int64) * 7
    tail[POSITION] = position
    return tail


@kernel
def write_by_loop(
    functions: Libc, fd: int, words: np.ndarray, number: int, tail: np.ndarray, digest_at: int
) -> None:
    """As a compiled loop writes it."""
    write_committed(functions, fd, words, number, tail, digest_at)


def write(file: CommittedFile, number: int, position: int, *, by_loop: bool = False) -> None:
    """Write an end, in one of the two ways."""
    if by_loop:
        write_by_loop(libc(), file.fd, file.words, number, tail_at(position), digest_address())
    else:
        file.write(number, tail_at(position))


def position(directory: Path, spool: bytes | None = None) -> tuple[int, int] | None:
    """The number and the position that a reader finds; all else must be what was written."""
    found = read_committed(directory, spool)
    if found is None:
        return None
    at = int(found[1][POSITION])
    assert found[1].tolist() == tail_at(at).tolist()
    return found[0], at


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(1, 1 << 20), st.booleans())))
def test_the_newest_is_read(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[bool, int, int, bool]]
) -> None:
    """In both ways of writing, and also when another process goes on with the file."""
    directory = tmp_path_factory.mktemp("index")
    file, number, at = CommittedFile(directory, OWN), 1, 0
    assert position(directory) is None
    for by_loop, more, step, again in acts:
        # After rot the end may also be before the one of before.
        number, at = number + more, step if more else abs(at - step)
        write(file, number, at, by_loop=by_loop)
        assert position(directory) == position(directory, OWN) == (number, at)
        if again:
            file.close()
            file = CommittedFile(directory, OWN)
            assert position(directory) == (number, at)
    file.close()


@pytest.mark.parametrize("by_loop", [False, True])
def test_a_torn_slot_leaves_the_other(tmp_path: Path, *, by_loop: bool) -> None:
    """A writer that dies in the middle tears the slot that it writes, and not the one before."""
    file = CommittedFile(tmp_path, OWN)
    ends = []
    for at in (8, 16, 24):
        write(file, 1, at, by_loop=by_loop)
        ends.append((tmp_path / NAME).read_bytes())
    file.close()
    for cut in range(0, SLOT_BYTES, 8):
        torn = bytearray(ends[1])
        torn[:cut] = ends[2][:cut]
        (tmp_path / NAME).write_bytes(torn)
        assert position(tmp_path) == (1, 16)


def test_that_of_another_spool(tmp_path: Path) -> None:
    """It is not read as one's own, and replaced when this spool's is opened."""
    file = CommittedFile(tmp_path, OTHER)
    write(file, 9, 8)
    file.close()
    assert position(tmp_path, OWN) is None
    assert position(tmp_path) == (9, 8)
    file = CommittedFile(tmp_path, OWN)
    write(file, 1, 8)
    file.close()
    assert position(tmp_path) == (1, 8)


@pytest.mark.parametrize("data", [b"", b"\0" * 2 * SLOT_BYTES, b"\xff" * 2 * SLOT_BYTES, b"\xff" * (1 << 20)])
def test_garbage_says_nothing(tmp_path: Path, data: bytes) -> None:
    """Of any length."""
    (tmp_path / NAME).write_bytes(data)
    assert position(tmp_path) is None
    file = CommittedFile(tmp_path, OWN)
    write(file, 1, 8)
    assert position(tmp_path) == (1, 8)
    file.close()


def test_what_is_no_file_says_nothing(tmp_path: Path) -> None:
    """A pipe in its place is not waited for, and nothing at all is there without the folder."""
    os.mkfifo(tmp_path / NAME)
    assert position(tmp_path) is None
    assert position(tmp_path / "nothing") is None


def test_a_sector_that_cannot_be_read_is_no_answer(tmp_path: Path) -> None:
    """A start that took EIO for nothing would forget what was committed."""
    file = CommittedFile(tmp_path, OWN)
    write(file, 1, 8)
    file.close()
    with unreadable(tmp_path / NAME), pytest.raises(ReadFailed):
        read_committed(tmp_path)


def test_a_file_that_cannot_be_written_is_replaced(tmp_path: Path) -> None:
    """It would keep the old end for ever."""
    file = CommittedFile(tmp_path, OWN)
    write(file, 1, 8)
    file.close()
    refused = OSError(errno.EACCES, os.strerror(errno.EACCES))
    with mock.patch("spool.index.committed.open_to_write", side_effect=refused):
        file = CommittedFile(tmp_path, OWN)
    write(file, 1, 16)
    assert position(tmp_path) == (1, 16)
    file.close()


def test_a_full_disk_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log goes on without the file; with room again it is written."""
    file = CommittedFile(tmp_path, OWN)
    write(file, 1, 8)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with mock.patch("spool.index.committed.write_at", side_effect=full):
        write(file, 1, 16)
        write(file, 1, 24)
    assert position(tmp_path) == (1, 8)
    assert caplog.text.count("how far the log is committed") == 1
    write(file, 1, 32)
    assert position(tmp_path) == (1, 32)
    file.close()


def test_a_file_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Writing does nothing then, in both ways."""
    file = CommittedFile(tmp_path / "nothing", OWN)
    for by_loop in (False, True):
        write(file, 1, 8, by_loop=by_loop)
    file.close()
    assert "how far the log is committed" in caplog.text
