"""Files that no other user can have planted."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spool.errors import NotAFile, NotOurs
from spool.layout import Layout
from spool.log.recovery import open_spool
from spool.options import SpoolOptions
from spool.storage.lock import Lock
from spool.storage.ownership import (
    append_own,
    believed,
    claim,
    is_own_directory,
    open_believed,
    open_own,
    put_own,
    read_believed,
)
from tests.users import NOBODY, as_user


@pytest.fixture
def ours() -> Iterator[Path]:
    """A directory in memory that only this user may change."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-test-") as name:
        yield Path(name)


def write(path: Path, data: bytes = b"ours") -> Path:
    """A file of ours, mode 0600, by its name."""
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def test_a_file_of_ours_is_opened(ours: Path) -> None:
    """We can read, write and append to our own files; they have their mode under any umask."""
    for umask in (0, 0o077, 0o777):
        before = os.umask(umask)
        try:
            put_own(ours / "file", lambda fd: os.write(fd, b"first"), 0o640)
        finally:
            os.umask(before)
        assert stat.S_IMODE((ours / "file").stat().st_mode) == 0o640
    os.close(open_own(ours / "file"))
    fd = append_own(ours / "file")
    os.write(fd, b", more")
    os.close(fd)
    assert read_believed(ours / "file", 100) == b"first, more"
    assert read_believed(ours / "file", 5, 7) == b"more"


PLANTED: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a directory": os.mkdir,
    "a symbolic link": lambda path: path.symlink_to(write(path.with_name("target"))),
    "a socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "names": lambda path: os.link(write(path.with_name("target")), path),
    "others may write": lambda path: write(path).chmod(0o660),
    f"user {NOBODY}": lambda path: os.chown(write(path), NOBODY, NOBODY),
}


@pytest.mark.parametrize("said", PLANTED)
def test_what_could_be_planted_is_refused(ours: Path, said: str) -> None:
    """Only a file of ours with one name is read; for anything else, the error gives its type."""
    PLANTED[said](ours / "file")
    for way in (open_own, open_believed, append_own):
        with pytest.raises((NotOurs, NotAFile), match=said):
            way(ours / "file")


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_directory_that_others_may_write_to_is_none_of_ours(ours: Path, mode: int) -> None:
    """A good file in it is not opened for writing, and none is created there."""
    write(ours / "file")
    ours.chmod(mode)
    assert not is_own_directory(ours)
    for way in (open_own, append_own):
        with pytest.raises(NotOurs, match="chmod go-w"):
            way(ours / "file")
    with pytest.raises(NotOurs, match="chmod go-w"):
        put_own(ours / "other", lambda _: None)
    assert not (ours / "other").exists()
    ours.chmod(0o700)
    assert is_own_directory(ours)


def test_a_directory_of_another_user_is_none_of_ours(ours: Path) -> None:
    """Unless its user is trusted for this spool; a link to a directory of ours is refused, too."""
    os.chown(ours, NOBODY, NOBODY)
    write(ours / "file")
    with pytest.raises(NotOurs, match=f"belongs to user {NOBODY}"):
        open_own(ours / "file")
    os.close(open_own(ours / "file", owners={NOBODY}))
    os.chown(ours, 0, 0)
    link = ours.with_name(f"{ours.name}-link")
    link.symlink_to(ours)
    try:
        assert not is_own_directory(link)
        with pytest.raises(OSError, match="Not a directory"):
            open_own(link / "file")
    finally:
        link.unlink()


def test_what_another_user_planted_as_our_unfinished_file_goes(ours: Path) -> None:
    """A link with the name of our temporary file is not followed: its target stays unchanged."""
    target = write(ours / "target")
    (ours / "file.tmp").symlink_to(target)
    put_own(ours / "file", lambda fd: os.write(fd, b"new"))
    assert target.read_bytes() == b"ours"
    assert not (ours / "file").is_symlink()
    assert (ours / "file").read_bytes() == b"new"


def test_the_owner_of_a_spool_is_believed_about_it(tmp_path: Path) -> None:
    """So is the owner of its segments; without a spool, only root and this user are trusted."""
    assert believed(tmp_path / "none") == {0, os.geteuid()}
    (tmp_path / "segments").mkdir()
    os.chown(tmp_path / "segments", NOBODY, NOBODY)
    assert believed(tmp_path) == {0, os.geteuid(), NOBODY}


def test_a_spool_of_another_user_is_claimed_by_nobody_but_root(ours: Path) -> None:
    """Another user gets an error with the owner and the remedy."""
    spool = ours / "spool"
    spool.mkdir(mode=0o755)
    ours.chmod(0o755)

    def try_it() -> None:
        with pytest.raises(NotOurs, match="belongs to user 1234: run bruce as that user"):
            claim(spool, [])

    os.chown(spool, 1234, 1234)
    claim(spool, [])
    assert as_user(NOBODY, try_it) == 0


@pytest.mark.parametrize("name", ["segments", "delivery/outcomes", "index", "identity", "lock"])
def test_a_spool_has_no_second_owner(tmp_path: Path, name: str) -> None:
    """Root serves a spool of another user's, as in a container, but nothing of a third user's in it."""
    layout, path = Layout(tmp_path / "spool"), tmp_path / "spool" / name
    open_spool(SpoolOptions(layout.directory)).lock.release()
    for folder in (layout.outcomes, layout.index):
        folder.mkdir(exist_ok=True)
    for one in (layout.directory, *layout.directory.rglob("*")):
        os.chown(one, 1234, 1234)
    open_spool(SpoolOptions(layout.directory)).lock.release()
    layout.index.mkdir(exist_ok=True)
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(NotOurs, match=f"{path} belongs to user {NOBODY}"):
        open_spool(SpoolOptions(layout.directory))


def test_a_lock_with_another_name_is_not_written_to(ours: Path) -> None:
    """A member of a group that may write to the spool's directory could link any file of ours there."""
    other = write(ours / "other", b"content")
    os.link(other, ours / "lock")
    Lock(ours / "lock", "in use").release()
    assert other.read_bytes() == b"content"


def test_a_spool_that_everybody_may_change_is_not_claimed(tmp_path: Path) -> None:
    """Neither its directory nor a folder in it may be writable by all."""
    (tmp_path / "segments").mkdir()
    for place in (tmp_path, tmp_path / "segments"):
        before = place.stat().st_mode
        place.chmod(0o777)
        with pytest.raises(NotOurs, match=f"chmod o-w {place}$"):
            claim(tmp_path, [tmp_path / "segments"])
        place.chmod(before)


def test_the_group_loses_the_right_to_write(tmp_path: Path) -> None:
    """Files and folders of an earlier release, under a lax umask; other modes stay unchanged."""
    layout = Layout(tmp_path)
    layout.segments.mkdir()
    layout.segments.chmod(0o770)
    modes = {layout.identity: 0o660, layout.segments / "one": 0o664, layout.segments / "two": 0o600}
    for path, mode in modes.items():
        path.touch()
        path.chmod(mode)
    (layout.segments / "link").symlink_to("/dev/null")
    os.mkfifo(layout.segments / "pipe")
    claim(tmp_path, [layout.segments])
    assert [stat.S_IMODE(path.stat().st_mode) for path in modes] == [0o640, 0o644, 0o600]
    assert stat.S_IMODE(layout.segments.stat().st_mode) == 0o750


def test_a_start_refuses_a_spool_that_everybody_may_change(tmp_path: Path) -> None:
    """The start fails before anything in it is read or changed."""
    spool = tmp_path / "spool"
    spool.mkdir()
    spool.chmod(0o777)
    with pytest.raises(NotOurs, match="chmod o-w"):
        open_spool(SpoolOptions(spool))
    spool.chmod(0o700)
    open_spool(SpoolOptions(spool)).lock.release()
