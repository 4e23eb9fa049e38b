"""The disk of a spool: room, filesystem, and the permissions of other users."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from cli.doctor import Finding, Level, disk
from cli.doctor.disk import check_owners, check_room, existing, owners
from spool.layout import Layout
from spool.options import Space, SpoolOptions
from tests.spool.small_disk import mounted

GIB = 1 << 30
NOBODY = 65534


@pytest.fixture
def as_nobody() -> Iterator[None]:
    """Act as a user without any rights."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    os.seteuid(NOBODY)
    yield
    os.seteuid(0)


def found(options: SpoolOptions, check: str) -> Finding:
    """The first finding of a check."""
    return next(one for one in disk.look(options) if one.check == check)


def test_room() -> None:
    """max_bytes must fit beside the data of others; existing segments count towards it."""
    options = SpoolOptions(Path("/s"), max_bytes=10 * GIB, min_free_bytes=GIB)
    assert check_room(options, Space(used=6 * GIB, free=5 * GIB, size=100 * GIB)).level is Level.OK
    tight = check_room(options, Space(used=6 * GIB, free=4 * GIB, size=100 * GIB))
    assert (tight.level, "room for 9 GiB" in tight.sentence) == (Level.ADVICE, True)
    assert check_room(options, Space(used=6 * GIB, free=GIB - 1, size=100 * GIB)).level is Level.PROBLEM


def test_room_that_is_not_told(tmp_path: Path) -> None:
    """A filesystem whose statfs is all zeros: whether max_bytes fit is unknown, and not said to be so."""
    silent = os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255))
    with mock.patch.object(os, "statvfs", return_value=silent):
        told = found(SpoolOptions(tmp_path, max_bytes=10 * GIB), "room")
    assert told.level is Level.UNKNOWN
    assert told.sentence == (
        f"the filesystem of {tmp_path} does not tell its free space, so whether the 10 GiB of [spool] "
        "max_bytes fit is not known"
    )


def test_a_spool_that_is_not_there_yet(tmp_path: Path) -> None:
    """The check looks at the parent in which it would be created, and creates nothing."""
    options = SpoolOptions(tmp_path / "a" / "b")
    assert existing(options.directory) == tmp_path
    assert "bruce run makes it" in found(options, "permissions").sentence
    assert list(tmp_path.iterdir()) == []


def test_a_spool_on_a_filesystem_that_promises_less(tmp_path: Path) -> None:
    """The filesystem is named, and the probe leaves nothing behind."""
    with mounted("tmpfs", tmp_path, 1 << 20) as place:
        told = found(SpoolOptions(place), "filesystem")
        assert (told.level, "it is memory" in told.sentence) == (Level.ADVICE, True)
        assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "level"), [(0o750, Level.OK), (0o755, Level.ADVICE), (0o757, Level.PROBLEM)]
)
def test_a_directory_open_to_others(tmp_path: Path, mode: int, level: Level) -> None:
    """A user that may write there can lose others' messages; a user that may read there can read them."""
    directory = tmp_path / "spool"
    directory.mkdir()
    directory.chmod(mode)
    assert found(SpoolOptions(directory), "permissions").level is level


def test_files_of_another_user(tmp_path: Path) -> None:
    """The files of another user in the spool are named, and how to give them back."""
    if os.geteuid() != 0:
        pytest.skip("giving files away needs root")
    layout = Layout(tmp_path / "spool")
    layout.delivery.mkdir(parents=True)
    (layout.delivery / "owner").touch()
    for path in (layout.directory, layout.delivery):
        os.chown(path, NOBODY, NOBODY)
    told = check_owners(layout.directory, NOBODY, owners(layout))
    assert (told.level, f"{layout.delivery / 'owner'} to user 0" in told.sentence) == (Level.PROBLEM, True)
    os.chown(layout.delivery / "owner", NOBODY, NOBODY)
    assert check_owners(layout.directory, NOBODY, owners(layout)).level is Level.OK


def test_what_this_user_may_not_see_is_said(memory: Path, request: pytest.FixtureRequest) -> None:
    """The finding says so, without a guess and without an error."""
    layout = Layout(memory / "spool")
    layout.segments.mkdir(parents=True)
    layout.directory.chmod(0o700)
    request.getfixturevalue("as_nobody")
    told = found(SpoolOptions(layout.directory), "permissions")
    assert (told.level, str(layout.directory) in told.sentence) == (Level.UNKNOWN, True)
