"""The forgetful disk itself: what it keeps, and what it forgets."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forgetful.disk import ForgetfulDisk

PAGE = 4096


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ForgetfulDisk]:
    """An empty one."""
    with ForgetfulDisk(tmp_path / "disk") as made:
        yield made


def sync_directory(path: Path) -> None:
    """Make its names durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def make(disk: ForgetfulDisk, size: int = 4 * PAGE) -> int:
    """A file that is durable, with its name."""
    fd = os.open(disk.path / "file", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, size)
    os.fsync(fd)
    sync_directory(disk.path)
    return fd


def test_stores_through_a_mapping(disk: ForgetfulDisk) -> None:
    """Stores before the sync are kept, those after it are forgotten; every process saw both at once."""
    fd = make(disk)
    with mmap.mmap(fd, 4 * PAGE) as mapping:
        mapping[0:5] = b"first"
        os.fdatasync(fd)
        mapping[0:5] = mapping[PAGE : PAGE + 5] = b"later"
        assert os.pread(fd, 5, PAGE) == b"later"
    os.close(fd)
    disk.lose_power()
    data = (disk.path / "file").read_bytes()
    assert (data[:5], data[PAGE : PAGE + 5], len(data)) == (b"first", bytes(5), 4 * PAGE)


def test_names_are_kept_with_their_directory(disk: ForgetfulDisk) -> None:
    """Created, renamed, removed: forgotten, until the directory is synced."""
    os.close(make(disk))
    (disk.path / "file").rename(disk.path / "renamed")
    fd = os.open(disk.path / "new", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"data")
    os.fsync(fd)
    os.close(fd)
    assert sorted(os.listdir(disk.path)) == ["new", "renamed"]
    disk.lose_power()
    assert os.listdir(disk.path) == ["file"]
    (disk.path / "sub").mkdir()
    (disk.path / "file").unlink()
    sync_directory(disk.path)
    disk.lose_power()
    assert os.listdir(disk.path) == ["sub"]


def test_a_sync_after_a_failed_one_lies(disk: ForgetfulDisk) -> None:
    """It succeeds, and what was stored before is not on the disk: as Linux has it."""
    fd = make(disk)
    with mmap.mmap(fd, 4 * PAGE) as mapping:
        mapping[0:5] = b"first"
        disk.fail("FSYNC", "file", errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            os.fdatasync(fd)
        os.fdatasync(fd)
        assert os.pread(fd, 5, 0) == b"first"
    os.close(fd)
    disk.lose_power()
    assert (disk.path / "file").read_bytes()[:5] == bytes(5)


def test_bytes_that_cannot_be_read(disk: ForgetfulDisk) -> None:
    """EIO for one page and no other, from the kernel itself, until it heals; a cached page is forgotten."""
    fd = make(disk)
    os.pwrite(fd, b"x" * 4 * PAGE, 0)
    os.fsync(fd)
    os.close(fd)
    assert (disk.path / "file").read_bytes() == b"x" * 4 * PAGE
    disk.lose("file", 2 * PAGE, 3 * PAGE)
    fd = os.open(disk.path / "file", os.O_RDONLY)
    assert os.pread(fd, 4 * PAGE, 0) == b"x" * 2 * PAGE
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        os.pread(fd, PAGE, 2 * PAGE)
    assert os.pread(fd, PAGE, 3 * PAGE) == b"x" * PAGE
    disk.heal()
    assert os.pread(fd, PAGE, 2 * PAGE) == b"x" * PAGE
    os.close(fd)


def test_no_room(disk: ForgetfulDisk) -> None:
    """ENOSPC comes from reserving and from writing, and goes when there is room."""
    fd = make(disk)
    disk.limit(5 * PAGE)
    with pytest.raises(OSError, match="No space"):
        os.posix_fallocate(fd, 0, 8 * PAGE)
    with pytest.raises(OSError, match="No space"):
        os.pwrite(fd, bytes(PAGE), 7 * PAGE)
    disk.limit(None)
    os.posix_fallocate(fd, 0, 8 * PAGE)
    assert os.fstat(fd).st_size == 8 * PAGE
    os.close(fd)
