"""What the spool asks of the disk: whole or not at all, and durable with the name."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest import mock

import pytest

from spool.disk import (
    allocate,
    allocated_bytes,
    make_directory,
    read_ahead,
    read_at,
    write_at,
    write_file,
)
from spool.errors import SpoolFull


def refusing(name: str, code: int) -> mock._patch:
    """The system call `name`, refused."""
    return mock.patch.object(os, name, side_effect=OSError(code, os.strerror(code)))


def test_an_allocated_file_has_all_its_blocks(tmp_path: Path) -> None:
    """No store into it can ever find the disk full."""
    allocate(tmp_path / "a", b"head", 100_000)
    assert (tmp_path / "a").read_bytes() == b"head" + bytes(99_996)
    assert allocated_bytes(tmp_path / "a") >= 100_000
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["open", "posix_fallocate", "pwrite", "fsync", "rename"])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, call: str, code: int) -> None:
    """ENOSPC and EDQUOT at any step are SpoolFull, and no half-made file takes the room that is left."""
    with refusing(call, code), pytest.raises(SpoolFull, match="no room for 4096 bytes"):
        allocate(tmp_path / "a", b"head", 4096)
    assert list(tmp_path.iterdir()) == []


def test_another_error_is_not_called_full(tmp_path: Path) -> None:
    """EIO is EIO."""
    with refusing("fsync", errno.EIO), pytest.raises(OSError, match=os.strerror(errno.EIO)) as caught:
        allocate(tmp_path / "a", b"", 4096)
    assert not isinstance(caught.value, SpoolFull)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, call: str) -> None:
    """When it fails the old file stands, and no temporary one beside it."""
    write_file(tmp_path / "a", b"old")
    with refusing(call, errno.ENOSPC), pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    write_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_names_are_made_durable_from_the_top(tmp_path: Path) -> None:
    """Each directory that is made is synced into its parent: a power loss leaves no hole in the path."""
    synced = []
    with mock.patch("spool.disk.sync_directory", side_effect=synced.append):
        make_directory(tmp_path / "a/b/c")
        make_directory(tmp_path / "a/b/c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a/b"]
    assert (tmp_path / "a/b/c").stat().st_mode & 0o007 == 0


def test_short_reads_and_writes_are_gone_on_with(tmp_path: Path) -> None:
    """The kernel may do less than asked; all of it is done in the end."""
    data, pread, pwrite = bytes(range(256)) * 10, os.pread, os.pwrite
    fd = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    with (
        mock.patch.object(os, "pwrite", lambda f, part, at: pwrite(f, part[:100], at)),
        mock.patch.object(os, "pread", lambda f, length, at: pread(f, min(length, 70), at)),
    ):
        write_at(fd, data, 5)
        assert read_at(fd, len(data), 5) == data
        assert read_at(fd, 10_000, 5) == data
    os.close(fd)


def test_a_name_whose_directory_was_not_synced_is_taken_back(tmp_path: Path) -> None:
    """Else the next look would find the file, and take it for durable."""
    with (
        mock.patch("spool.disk.sync_directory", side_effect=OSError(errno.EIO, "")),
        pytest.raises(OSError, match="5"),
    ):
        allocate(tmp_path / "a", b"", 4096)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_gone_takes_no_bytes(tmp_path: Path) -> None:
    """Retention counts files that are removed while it looks as nothing."""
    assert allocated_bytes(tmp_path / "gone") == 0


def test_reading_ahead_is_advice(tmp_path: Path) -> None:
    """Of some megabytes at most, of nothing when there is nothing; a pipe, which takes none, is no error."""
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    fd, ends = os.open(path, os.O_RDONLY), os.pipe()
    with mock.patch.object(os, "posix_fadvise") as advised:
        read_ahead(fd, 1, 3)
        read_ahead(fd, 1, 1 << 40)
        read_ahead(fd, 3, 3)
    assert [call.args[:3] for call in advised.call_args_list] == [(fd, 1, 2), (fd, 1, 8 << 20)]
    read_ahead(ends[0], 0, 1)
    for each in (fd, *ends):
        os.close(each)
