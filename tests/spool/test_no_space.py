"""ENOSPC from any file operation, at any time: nothing is lost, counts stay exact, and work goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import pytest

from spool.layout import SENT
from spool.log.retention import Ages
from spool.read.overview import take_totals
from spool.shared.state import Field
from spool.storage.disk import keep
from tests.spool.fixture import SEGMENT_BYTES, SpoolFixture
from tests.spool.small_disk import fill_up, mounted

CALLS = ("open", "posix_fallocate", "pwrite", "rename", "fsync", "fdatasync", "ftruncate")
TIMES = (1, 2, 3, 5, 8)


@contextmanager
def refused(name: str, at: int, code: int) -> Iterator[list[int]]:
    """One system call fails for want of room: the `at`-th that would change a file."""
    real, left = getattr(os, name), [at]

    def call(*arguments: object, **more: object) -> object:
        reads = name == "open" and len(arguments) > 1 and not int(str(arguments[1])) & os.O_CREAT
        left[0] -= not reads
        if left[0] == 0 and not reads:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **more)

    with mock.patch.object(os, name, call):
        yield left


def turn(spool: SpoolFixture) -> None:
    """A step of the keeper, which is started again when it dies."""
    try:
        spool.step()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        spool.reopen()


@pytest.mark.sample(one_of=3)
@pytest.mark.parametrize("at", TIMES)
@pytest.mark.parametrize("name", CALLS)
def test_one_refusal_anywhere(memory: Path, name: str, at: int) -> None:
    """Segments are made, named, sealed, delivered and removed, with one call refused on the way."""
    spool = SpoolFixture(memory, max_bytes=24 * SEGMENT_BYTES, keep_delivered_hours=1)
    sent = spool.fill(5, messages=6)
    with refused(name, at, errno.EDQUOT if at % 2 else errno.ENOSPC) as left:
        for round_ in range(12):
            turn(spool)
            sent += spool.fill(5, messages=6)
            if round_ % 3 == 2:
                spool.shared.words[Field.LOW_WATERMARK] = spool.synced // 2
    assert left[0] < at
    for _ in range(4):
        turn(spool)
    assert spool.synced == len(sent)
    records = spool.records()
    assert records == list(enumerate(sent))[records[0][0] :]
    assert records[0][0] <= spool.shared.words[Field.LOW_WATERMARK]
    assert take_totals(spool.layout, list).received == len(sent)
    assert (spool.shared.words[Field.FULL], spool.shared.words[Field.SYNC_ERROR]) == (0, 0)
    assert not [path for path in spool.layout.segments.iterdir() if path.suffix == ".tmp"]
    spool.crash()


def test_what_needs_room_beside_the_log_does_without(tmp_path: Path) -> None:
    """Quarantine and ages on a disk without a free byte: logged or not, never an error, and no half file."""
    with mounted("ext4", tmp_path, 16 << 20) as disk:
        spool = SpoolFixture(disk, tmp_path)
        spool.fill(3)
        spool.step()
        fill_up(disk / "ballast")
        keep(spool.layout, "evidence", [bytes(1 << 20)])
        ages = Ages(spool.layout.ages)
        ages.note(range(100_000))
        ages.save()
        assert not (spool.layout.quarantine / "evidence").exists()
        assert not list(spool.layout.directory.glob("*.tmp"))
        spool.crash()


def test_what_was_left_half_made_is_cleared_away(
    spool: SpoolFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """The start removes and counts temporary and empty files of every part, and removes no others."""
    sent = spool.fill(10)
    spool.step()
    spool.crash()
    left = [spool.layout.segments / "00000000000000000009.spare.tmp", spool.layout.directory / "identity.tmp"]
    left += [spool.layout.quarantine / "burst-1.poison.tmp", spool.layout.segment(7, ".spare")]
    for path in left[:3]:
        path.write_bytes(b"half")
    left[3].write_bytes(b"")
    (spool.layout.quarantine / "burst-1.poison").write_bytes(b"kept")
    with caplog.at_level("INFO", "bruce.spool"):
        spool.open()
    assert "4 half-made or outdated files removed" in caplog.text
    assert not any(path.exists() and path.stat().st_size in (0, 4) for path in left)
    assert (spool.layout.quarantine / "burst-1.poison").exists()
    assert spool.records() == list(enumerate(sent))


def test_more_spares_than_a_lower_max_bytes_allows_are_given_back(memory: Path) -> None:
    """At a start with a lower limit; a spare that was taken into use does not count."""
    spool = SpoolFixture(memory, max_bytes=64 * SEGMENT_BYTES)
    sent = spool.fill(3)
    spool.keeper._provision.rate = 1e9
    with mock.patch("time.monotonic", return_value=spool.keeper._provision._counted_at + 0.1):
        spool.keeper._provision._ahead = lambda _: 9  # type: ignore[method-assign]
        spool.step()
    sent += spool.fill(12, messages=6)
    assert len(spool.layout.list_spares()) >= 8
    spool.crash()
    spool.replace(max_bytes=8 * SEGMENT_BYTES)
    spool.open()
    assert len(spool.layout.list_spares()) <= 2 + 2
    assert [d for _, d in spool.records()] == sent
    spool.crash()


@pytest.mark.long
def test_thousands_of_segments_take_no_descriptors(memory: Path) -> None:
    """With a log of any length, the processes have one segment mapped, and a few files open."""
    spool = SpoolFixture(memory, max_bytes=4096 * SEGMENT_BYTES)

    def held() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().count(str(spool.layout.segments))
        files = 0
        for fd in Path("/proc/self/fd").iterdir():
            # Other threads of this process open and close files.
            with suppress(OSError):
                files += os.readlink(fd).startswith(str(spool.directory))
        return files, maps

    spool.fill(10, messages=30)
    spool.step()
    files, maps = held()
    for _ in range(600):
        spool.fill(1, messages=60)
        spool.keeper.commit()
        spool.keeper._committer.seal_one()
        spool.keeper._restock()
    assert len(spool.layout.list_segments()) > 500
    assert held()[0] <= files + 2
    assert held()[1] <= maps + 1
    spool.shared.words[Field.LOW_WATERMARK] = spool.synced
    spool.step()
    assert len([1 for _, suffix in spool.layout.list_segments() if suffix == SENT]) > 500
    assert held()[0] <= files + 2
    spool.crash()
