"""The folder of runtime files, and that no other user decides it."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spool.errors import NotOurs
from spool.shared import runtime
from spool.shared.runtime import (
    find_shared_state,
    memory,
    own_runtime,
    runtime_directory,
    runtime_of,
    shared_state_path,
)
from spool.shared.state import Field, SharedState, read_shared_state
from tests.users import NOBODY, as_user

SPOOL, BOOT = bytes(range(16)), bytes(16)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A shared directory in memory, in the place of /dev/shm, and no /run/bruce."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-test-") as name:
        place = Path(name) / "shm"
        place.mkdir()
        Path(name).chmod(0o755)
        place.chmod(0o1777)
        monkeypatch.setattr(runtime, "MEMORY", place)
        monkeypatch.setenv("BRUCE_RUNTIME_DIRECTORY", f"{name}/none")
        yield place


def named(shared: Path) -> Path:
    """The folder of the user that runs the tests."""
    return shared / f"bruce-{os.geteuid()}"


def mode_of(path: Path) -> int:
    """In the form that chmod takes."""
    return stat.S_IMODE(path.stat().st_mode)


def test_in_a_directory_of_everybodys_we_have_our_own(shared: Path) -> None:
    """It is made once, under any umask, and others can neither list nor change it."""
    for umask in (0, 0o077):
        before = os.umask(umask)
        try:
            assert runtime_directory() == named(shared)
        finally:
            os.umask(before)
        assert mode_of(named(shared)) == 0o710
        named(shared).rmdir()
    assert memory() == shared


def test_a_directory_of_ours_is_used_as_it_is(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One made by systemd; also a link to it, which an operator may have made."""
    made = shared.parent / "run"
    made.mkdir(mode=0o755)
    link = shared.parent / "link"
    link.symlink_to(made)
    for place in (made, link):
        monkeypatch.setenv("BRUCE_RUNTIME_DIRECTORY", str(place))
        assert runtime_directory() == memory() == made


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_directory_that_others_may_change_is_not_used(
    shared: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """Without the sticky bit any user there can rename our files: the other place is taken."""
    made = shared.parent / "run"
    made.mkdir()
    made.chmod(mode)
    monkeypatch.setenv("BRUCE_RUNTIME_DIRECTORY", str(made))
    assert runtime_directory() == named(shared)


def test_memory_that_outlives_processes_is_chosen(
    shared: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A directory on a disk is not taken, nor one that is missing; without any the error gives the remedy."""
    for place in ("/proc", tmp_path, tmp_path / "missing"):
        monkeypatch.setenv("BRUCE_RUNTIME_DIRECTORY", str(place))
        assert runtime_directory() == named(shared)
    named(shared).rmdir()
    shared.chmod(0o777)
    with pytest.raises(NotOurs, match="mode 1777"):
        runtime_directory()


TAKEN: dict[str, Callable[[Path], None]] = {
    "directory": Path.mkdir,
    "file": Path.touch,
    "link": lambda path: path.symlink_to("/dev/shm"),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_a_name_that_is_taken_stops_no_start(shared: Path, kind: str) -> None:
    """Another user has a directory, a file or a link of our name: another name is found, and found again."""
    name = named(shared)
    assert as_user(NOBODY, lambda: TAKEN[kind](name)) == 0
    assert name.lstat().st_uid == NOBODY
    found = runtime_directory()
    assert found.name.startswith(f"bruce-{os.geteuid()}-")
    assert found.stat().st_uid == os.geteuid()
    assert runtime_directory() == found


def test_a_directory_of_another_users_planted_beside_ours_is_not_ours(shared: Path, tmp_path: Path) -> None:
    """With any name, and any shared state in it."""
    planted = shared / f"bruce-{os.geteuid()}-00"

    def plant() -> None:
        planted.mkdir()
        SharedState(shared_state_path(planted, SPOOL, BOOT)).words[Field.WRITTEN] = 8

    assert as_user(NOBODY, plant) == 0
    assert runtime_of(tmp_path, SPOOL, BOOT) != planted
    assert own_runtime(tmp_path, SPOOL, BOOT) == named(shared)


def test_a_page_is_found_where_it_is(shared: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also if /run/bruce was made after the daemon's start, or if it is closed to the reader."""
    made = shared_state_path(own_runtime(tmp_path, SPOOL, BOOT), SPOOL, BOOT)
    SharedState(made)
    run = shared.parent / "run"
    run.mkdir(mode=0o755)
    monkeypatch.setenv("BRUCE_RUNTIME_DIRECTORY", str(run))
    assert runtime_of(tmp_path, SPOOL, BOOT) == own_runtime(tmp_path, SPOOL, BOOT) == named(shared)
    assert own_runtime(tmp_path, BOOT, SPOOL) == run
    made.unlink()
    SharedState(shared_state_path(run, SPOOL, BOOT))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert runtime_of(tmp_path, SPOOL, BOOT) == run


def test_a_page_of_the_spools_owner_is_believed(shared: Path, tmp_path: Path) -> None:
    """By root, for a daemon of another user; but not for a spool that is not that user's."""
    spool, other = tmp_path / "spool", tmp_path / "other"
    for place in (spool, other):
        place.mkdir()
    os.chown(spool, NOBODY, NOBODY)

    def start() -> None:
        SharedState(shared_state_path(runtime_directory(), SPOOL, BOOT)).words[Field.WRITTEN] = 8

    assert as_user(NOBODY, start) == 0
    path = find_shared_state(spool, SPOOL, BOOT)
    assert path.parent == shared / f"bruce-{NOBODY}"
    words = read_shared_state(path, {NOBODY})
    assert words is not None
    assert words[Field.WRITTEN] == 8
    assert read_shared_state(path) is None
    assert read_shared_state(find_shared_state(other, SPOOL, BOOT)) is None


def test_a_group_may_look_at_the_page_alone(shared: Path, tmp_path: Path) -> None:
    """A member of bruce's group reads it by its name, but lists and writes nothing, and sees no staging."""
    os.chown(own_runtime(tmp_path, SPOOL, BOOT), -1, 4321)
    path = shared_state_path(named(shared), SPOOL, BOOT)
    SharedState(path)
    os.chown(path, -1, 4321)
    staging = path.with_suffix(".staging")
    staging.touch(mode=0o600)
    tries = {
        "read": path.read_bytes,
        "write": lambda: path.open("r+b"),
        "cut": lambda: os.truncate(path, 0),
        "list": lambda: list(path.parent.iterdir()),
        "plant": (path.parent / "new").touch,
        "remove": path.unlink,
        "staging": staging.read_bytes,
    }
    done = {name for name, work in tries.items() if as_user(NOBODY, work, groups=[4321]) == 0}
    assert done == {"read"}


def leave(place: Path, owner: int = -1) -> dict[str, Path]:
    """The files of an earlier release, by suffix, with distinct contents."""
    shared = shared_state_path(place, SPOOL, BOOT)
    found = {suffix: shared.with_suffix(suffix) for suffix in (".page", ".lines", ".staging")}
    for suffix, path in found.items():
        path.write_text(suffix)
        path.chmod(0o660 if suffix == ".page" else 0o600)
        os.chown(path, owner, owner)
    return found


def test_what_an_earlier_release_left_is_moved(shared: Path, tmp_path: Path) -> None:
    """Shared state, streams and staging, in one place with all contents; the group may write to none."""
    left = leave(shared)
    place = own_runtime(tmp_path, SPOOL, BOOT)
    assert place == named(shared)
    for suffix, path in left.items():
        assert not path.exists()
        assert (place / path.name).read_text() == suffix
        assert mode_of(place / path.name) == (0o640 if suffix == ".page" else 0o600)
    assert own_runtime(tmp_path, SPOOL, BOOT) == place


def test_what_was_left_is_moved_to_the_end(shared: Path, tmp_path: Path) -> None:
    """After a kill during the move, the next start goes on with the remaining files."""
    left = leave(shared)
    place = own_runtime(tmp_path, SPOOL, BOOT)
    for suffix in (".lines", ".staging"):
        (place / left[suffix].name).rename(left[suffix])
    assert own_runtime(tmp_path, SPOOL, BOOT) == place
    assert {path.read_text() for path in place.iterdir()} == set(left)


def test_what_was_left_where_others_may_change_it_is_not_passed_over(
    shared: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It may hold accepted messages: the start gives the remedy, and the next start has them."""
    run = shared.parent / "run"
    run.mkdir()
    run.chmod(0o775)
    monkeypatch.setenv("BRUCE_RUNTIME_DIRECTORY", str(run))
    leave(run)
    with pytest.raises(NotOurs, match=f"chmod go-w {run}"):
        own_runtime(tmp_path, SPOOL, BOOT)
    run.chmod(0o755)
    assert own_runtime(tmp_path, SPOOL, BOOT) == run


def test_what_another_user_left_is_passed_over(shared: Path, tmp_path: Path) -> None:
    """Files with the names of an earlier release: none of their content is taken, and bruce starts."""
    leave(shared, NOBODY)
    place = own_runtime(tmp_path, SPOOL, BOOT)
    assert place == named(shared)
    assert not list(place.iterdir())


def test_what_the_owner_of_the_spool_left_is_not_passed_over(shared: Path, tmp_path: Path) -> None:
    """Root gets an error on the spool of another user, with a killed daemon: start bruce as that user."""
    leave(shared, NOBODY)
    os.chown(tmp_path, NOBODY, NOBODY)
    with pytest.raises(NotOurs, match="start bruce as that user"):
        own_runtime(tmp_path, SPOOL, BOOT)


def test_a_file_of_ours_with_another_name_is_not_moved(shared: Path, tmp_path: Path) -> None:
    """Another user can link it if the kernel lets him: its origin is unknown."""
    left = leave(shared)
    os.link(left[".staging"], shared / "another")
    with pytest.raises(NotOurs, match="2 names"):
        own_runtime(tmp_path, SPOOL, BOOT)
