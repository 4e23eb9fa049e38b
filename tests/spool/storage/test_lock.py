"""Lock files: no other user can take a lock, and one who may not open them sees which are held."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spool.index.environment import open_surely
from spool.index.index import Index
from spool.layout import Layout
from spool.storage import lock
from spool.storage.lock import LOCK_FILES, Lock, is_held, is_in_use, read_holder
from spool.storage.ownership import claim
from tests.users import NOBODY, as_user

GROUP = 4321


@pytest.fixture
def layout() -> Iterator[Layout]:
    """The folders of a spool that the group GROUP may read."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-test-") as name:
        Path(name).chmod(0o755)
        made = Layout(Path(name) / "spool")
        for place in (made.directory, made.delivery):
            place.mkdir()
            place.chmod(0o750)
            os.chown(place, -1, GROUP)
        yield made


def as_reader(work: object) -> int:
    """As `as_user`, for a member of GROUP."""
    return as_user(NOBODY, work, [GROUP])  # type: ignore[arg-type]


def locks_of(layout: Layout) -> list[Path]:
    """All lock files in the spool, which belong to GROUP."""
    found = [path for path in layout.directory.rglob("*") if path.name in LOCK_FILES]
    for path in (*found, layout.index):
        os.chown(path, -1, GROUP)
    return found


def take(path: Path) -> None:
    """Take every lock that a descriptor which only reads gives."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_a_reader_of_the_group_takes_no_lock(layout: Layout) -> None:
    """Neither those of processes nor LMDB's, whatever the umask: it could stop the daemon's next start."""
    before = os.umask(0)
    try:
        index, (marks, _) = Index(layout.index, bytes(16), bytes(16)), open_surely(layout.delivery)
        for path in (layout.lock, layout.hold, layout.owner, layout.lease):
            Lock(path, "in use").release()
    finally:
        os.umask(before)
    found = locks_of(layout)
    assert {path.name for path in found} == LOCK_FILES
    assert [as_reader(lambda path=path: take(path)) for path in found] == [1] * 6
    for path in (layout.index / "data.mdb", layout.index / "committed"):
        assert as_reader(path.read_bytes) == 1  # its own group
        os.chown(path, -1, GROUP)
        assert as_reader(path.read_bytes) == 0
    index.close()
    marks.close()


def test_the_locks_of_an_earlier_release_are_taken_back(layout: Layout) -> None:
    """Files of mode 0640: by the claim of the spool, by each lock, and by each opening of LMDB."""
    Index(layout.index, bytes(16), bytes(16)).close()
    open_surely(layout.delivery)[0].close()
    for path in (layout.lock, layout.hold, layout.owner, layout.lease):
        path.touch()
    found = locks_of(layout)

    def modes() -> set[int]:
        return {stat.S_IMODE(path.stat().st_mode) for path in found}

    for each in (False, True):
        for path in found:
            path.chmod(0o640)
        if each:
            for path in (layout.lock, layout.hold, layout.owner, layout.lease):
                Lock(path, "in use").release()
            Index(layout.index, bytes(16), bytes(16)).close()
            open_surely(layout.delivery)[0].close()
        else:
            claim(layout.directory, [layout.delivery, layout.index])
        assert modes() == {0o600}


def test_a_reader_of_the_group_sees_who_has_a_lock(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without opening its file; where other processes may be hidden, a lock that is not seen is not known."""

    def look(expected: object) -> None:
        assert [is_held(layout.lock), is_in_use(layout.index / "lock.mdb")] == expected
        assert read_holder(layout.lock) == ""

    held, index = Lock(layout.lock, "in use"), Index(layout.index, bytes(16), bytes(16))
    locks_of(layout)
    assert as_reader(lambda: look([True, True])) == 0
    held.release()
    index.close()
    monkeypatch.setattr(lock, "_FIRST_PIDS", os.readlink("/proc/self/ns/pid"))
    assert as_reader(lambda: look([False, False])) == 0
    monkeypatch.setattr(lock, "_FIRST_PIDS", "another")
    assert as_reader(lambda: look([None, False])) == 0
    monkeypatch.setattr(lock, "_LOCKS", layout.directory / "none")
    assert as_reader(lambda: look([None, False])) == 0


def test_a_user_without_any_right_is_told_so(layout: Layout) -> None:
    """Not even whether there is a lock file can be seen."""
    Lock(layout.lock, "in use").release()
    layout.directory.chmod(0o700)

    def look() -> None:
        with pytest.raises(PermissionError):
            is_held(layout.lock)
        assert not is_in_use(layout.lock)

    assert as_reader(look) == 0
