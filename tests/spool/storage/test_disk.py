"""Changes to the disk: whole or not at all, and durable together with the name."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.errors import NotAFile, ReadFailed, SpoolFull
from spool.layout import Layout
from spool.options import Full, Space, lack, reserve
from spool.storage import disk
from spool.storage.disk import (
    PROBE,
    allocate,
    allocated_bytes,
    can_reserve,
    end_of_bytes,
    free_bytes,
    keep,
    make_directory,
    read_ahead,
    read_at,
    read_parts,
    set_mode,
    weaknesses,
    write_at,
    write_file,
)
from tests.spool.small_disk import fill_up, mounted


def refusing(name: str, code: int) -> mock._patch:
    """The system call `name` fails."""
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


@given(st.data(), st.integers(1, 9))
def test_evidence_is_copied_a_part_at_a_time(data: st.DataObject, part: int) -> None:
    """Without the zeros at its end, whatever the size of a part; memory holds one part."""
    held = data.draw(st.lists(st.sampled_from([0, 0, 0, 7]), max_size=40).map(bytes))
    begin = data.draw(st.integers(0, len(held)))
    fd = os.memfd_create("held")
    try:
        os.write(fd, held)
        end = end_of_bytes(fd, begin, len(held), part)
        parts = list(read_parts(fd, begin, end, part))
    finally:
        os.close(fd)
    assert b"".join(parts) == held[begin:].rstrip(b"\0")
    assert max(map(len, parts), default=0) <= part


def test_evidence_that_cannot_be_read_ends_the_work(tmp_path: Path) -> None:
    """A bad sector is no lack of room: nothing may be cut off of which no copy was made."""
    layout = Layout(tmp_path)
    layout.quarantine.mkdir()

    def parts() -> Iterator[bytes]:
        yield b"good"
        raise ReadFailed(errno.EIO, os.strerror(errno.EIO), "segment")

    with pytest.raises(ReadFailed, match="segment"):
        keep(layout, "torn", parts())
    assert not list(layout.quarantine.iterdir())


def test_a_filesystem_that_does_not_tell_is_not_full(tmp_path: Path) -> None:
    """All zeros, as of a tmpfs without a limit: a spool gets its next segment. One that is full tells."""
    tells = os.statvfs(tmp_path)
    assert free_bytes(tmp_path)[1] == tells.f_blocks * tells.f_frsize
    full = os.statvfs_result((4096, 4096, 1000, 0, 0, 0, 0, 0, 0, 255))
    silent = os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255))
    for found, why in ((full, Full.RESERVE), (silent, Full.ROOM)):
        with mock.patch.object(os, "statvfs", return_value=found):
            free, size = free_bytes(tmp_path)
        assert lack(Space(0, free, size), 1 << 20, 1 << 30, reserve(None, size)) is why
        assert lack(Space(0, free, size), 1 << 20, 1 << 30, reserve(1 << 30, size)) is why


def test_another_error_is_not_called_full(tmp_path: Path) -> None:
    """EIO stays EIO."""
    with refusing("fsync", errno.EIO), pytest.raises(OSError, match=os.strerror(errno.EIO)) as caught:
        allocate(tmp_path / "a", b"", 4096)
    assert not isinstance(caught.value, SpoolFull)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, call: str) -> None:
    """If the write fails, the old file stays, and no temporary one is left."""
    write_file(tmp_path / "a", b"old")
    with refusing(call, errno.ENOSPC), pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as caught:
        write_file(tmp_path / "a", b"new")
    assert caught.value.filename == str(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    write_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_names_are_made_durable_from_the_top(tmp_path: Path) -> None:
    """Each new directory is synced into its parent: a power loss leaves no hole in the path."""
    synced = []
    with mock.patch("spool.storage.disk.sync_directory", side_effect=synced.append):
        make_directory(tmp_path / "a/b/c")
        make_directory(tmp_path / "a/b/c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a/b"]
    assert (tmp_path / "a/b/c").stat().st_mode & 0o007 == 0


def test_short_reads_and_writes_are_gone_on_with(tmp_path: Path) -> None:
    """The kernel may do less than requested; in the end all of it is done."""
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
    """Otherwise the next look would find the file, and take it for durable."""
    with (
        mock.patch("spool.storage.disk.sync_directory", side_effect=OSError(errno.EIO, "")),
        pytest.raises(OSError, match="5"),
    ):
        allocate(tmp_path / "a", b"", 4096)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_gone_takes_no_bytes(tmp_path: Path) -> None:
    """Retention counts files that are removed during its look as zero bytes."""
    assert allocated_bytes(tmp_path / "gone") == 0


def test_no_mode_is_set_through_a_link(tmp_path: Path) -> None:
    """The target of a link keeps its mode: a user that plants one opens or closes no file of ours."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"")
    target.chmod(0o600)
    link.symlink_to(target)
    with pytest.raises(NotAFile):
        set_mode(link, 0o644)
    assert target.stat().st_mode & 0o777 == 0o600
    set_mode(target, 0o640)
    assert target.stat().st_mode & 0o777 == 0o640


def test_reading_ahead_is_advice(tmp_path: Path) -> None:
    """For some megabytes at most; an empty range, and a pipe, which takes no advice, are no errors."""
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


@contextmanager
def mount(kind: str, directory: Path, *options: str) -> Iterator[Path]:
    """Mount a filesystem that needs no device."""
    place = directory / kind
    place.mkdir()
    subprocess.run(
        ["mount", "-t", kind, *options, kind, str(place)], check=True, capture_output=True, timeout=60
    )
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=60)


def test_a_local_disk_is_no_matter(tmp_path: Path) -> None:
    """Ext4 has no weakness, with room or without, and the probe leaves nothing behind."""
    with mounted("ext4", tmp_path, 16 << 20) as place:
        assert list(weaknesses(place)) == []
        fill_up(place / "ballast")
        assert can_reserve(place)
        assert not (place / PROBE).exists()


def test_memory_is_said_to_be_memory(tmp_path: Path) -> None:
    """A spool on tmpfs does not outlive the host."""
    with mounted("tmpfs", tmp_path, 1 << 20) as place:
        (found,) = weaknesses(place)
        assert found.sentence.startswith(f"{place} is on tmpfs: it is memory")


def test_what_cannot_reserve_is_found_by_trying(tmp_path: Path) -> None:
    """Ramfs has no fallocate: the C library would write zeros, and a full disk would be found by a store."""
    if os.geteuid() != 0:
        pytest.skip("small disk: mounting needs root")
    with mount("ramfs", tmp_path) as place:
        assert not can_reserve(place)
        assert "cannot reserve space" in list(weaknesses(place))[-1].sentence
        assert not any("cannot reserve" in found.sentence for found in weaknesses(place, probe=False))
        assert list(place.iterdir()) == []


def test_the_layer_of_a_container(tmp_path: Path) -> None:
    """A spool on overlay disappears with its container."""
    if os.geteuid() != 0:
        pytest.skip("small disk: mounting needs root")
    with mounted("tmpfs", tmp_path, 1 << 20) as base:
        parts = [base / name for name in ("lower", "upper", "work")]
        for part in parts:
            part.mkdir()
        options = "lowerdir={},upperdir={},workdir={}".format(*parts)
        with mount("overlay", tmp_path, "-o", options) as place:
            assert "mount a volume" in next(iter(weaknesses(place))).remedy


@pytest.mark.parametrize(("number", "name"), [(0x6969, "nfs"), (0x9123683E, "btrfs"), (0x2FC12FC1, "zfs")])
def test_those_that_are_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    """Filesystems that a test cannot mount are recognized by their number."""
    monkeypatch.setattr(disk, "_type", lambda _: number)
    (found,) = weaknesses(tmp_path)
    assert f"is on {name}: " in found.sentence


def test_a_kill_before_a_folder_has_its_mode(tmp_path: Path) -> None:
    """Never wider than wanted, and under an ordinary umask not narrower: the next start leaves it so."""
    killed = mock.patch.object(Path, "chmod", side_effect=KeyboardInterrupt)
    before = os.umask(0o022)
    try:
        with killed, pytest.raises(KeyboardInterrupt):
            make_directory(tmp_path / "run", 0o755)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o755
