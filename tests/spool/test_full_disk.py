"""A disk without room: an error and never a SIGBUS, nothing lost, and work goes on when there is room."""

from __future__ import annotations

import math
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spool.errors import MarksFailed, SpoolBusy, SpoolFull
from spool.index.index import Index
from spool.index.segment_list import SegmentList
from spool.layout import SENT
from spool.marks.marks import Marks
from spool.options import Full
from spool.shared.state import Field
from spool.storage.disk import free_bytes
from spool.storage.lock import Lock
from tests.spool.fixture import SpoolFixture
from tests.spool.small_disk import fill_up, mounted

DISK_BYTES = {"tmpfs": 4 << 20, "ext4": 16 << 20}
SEGMENT_BYTES = 256 << 10


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A small filesystem, with a file `ballast` on it that takes most of the room."""
    with mounted(request.param, tmp_path, DISK_BYTES[request.param]) as place:
        room = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
        (place / "ballast").write_bytes(bytes(room - (3 << 20)))
        yield place


def spool_on(disk: Path, min_free_bytes: int = 0) -> SpoolFixture:
    """A spool without any limit except the disk."""
    return SpoolFixture(
        disk, disk.parent, segment_bytes=SEGMENT_BYTES, max_bytes=1 << 40, min_free_bytes=min_free_bytes
    )


def fill_until_full(spool: SpoolFixture) -> list[bytes]:
    """Append until there is no room."""
    sent = []
    for _ in range(10000):
        try:
            sent += spool.fill(1, messages=20, value=b"v" * 1000)
        except SpoolFull:
            return sent
    pytest.fail("the disk has no end")


def test_no_store_into_a_full_disk_is_a_sigbus(disk: Path) -> None:
    """A process fills the disk through mappings to the last reserved byte: it ends with an error."""
    child = os.fork()
    if child == 0:
        try:
            spool = spool_on(disk)
            fill_up(disk / "more")
            fill_until_full(spool)
            os._exit(7)
        finally:
            os._exit(8)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


@pytest.mark.parametrize("folder", ["delivery", "index"])
def test_no_lock_file_of_lmdb_is_a_hole(disk: Path, folder: str) -> None:
    """LMDB stores into its lock file through a mapping: without room for it there is an error, no SIGBUS."""
    spool = spool_on(disk)
    spool.crash()
    place = spool.layout.directory / folder
    shutil.rmtree(place)
    place.mkdir()
    fill_up(disk / "more")
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises((SpoolFull, MarksFailed), match=r"lock\.mdb"):
                Index(place, bytes(16), bytes(16)) if folder == "index" else Marks(
                    place, SegmentList(spool.layout)
                )
            os._exit(7)
        finally:
            os._exit(8)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


@pytest.mark.parametrize(("reserve", "why"), [(0, Full.DISK), (1 << 20, Full.RESERVE)])
def test_intake_resumes_by_itself(disk: Path, reserve: int, why: Full) -> None:
    """Full is announced while it lasts; with room again there are spares, and all messages are there."""
    spool = spool_on(disk, reserve)
    sent = fill_until_full(spool)
    spool.step()
    assert spool.shared.words[Field.FULL] == why or (
        why == Full.DISK and spool.shared.words[Field.FULL] == Full.RESERVE
    )
    assert free_bytes(disk)[0] >= reserve
    assert spool.shared.words[Field.SYNC_ERROR] == 0
    assert spool.synced == len(sent)
    (disk / "ballast").unlink()
    spool.step()
    assert spool.shared.words[Field.FULL] == 0
    sent += spool.fill(50)
    spool.step()
    assert spool.records() == list(enumerate(sent))
    spool.crash()


@pytest.mark.parametrize("unclean", [False, True], ids=["crash", "power loss"])
def test_a_spool_on_a_full_disk_opens(disk: Path, *, unclean: bool) -> None:
    """Without a free byte the spool opens, synced messages are there, and it goes on when there is room."""
    spool = spool_on(disk)
    sent = fill_until_full(spool)
    spool.keeper.commit()
    synced = spool.synced
    fill_up(disk / "more")
    if unclean:
        spool.lose_power(random.Random(1))
    else:
        spool.crash()
    spool.open()
    assert spool.records()[:synced] == list(enumerate(sent))[:synced]
    (disk / "ballast").unlink()
    (disk / "more").unlink()
    spool.step()
    more = spool.fill(5)
    assert [d for _, d in spool.records()][-len(more) :] == more
    spool.crash()


def test_committing_goes_on_while_the_index_has_no_room(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The index cannot grow on a full disk; written messages are synced and announced all the same."""
    spool = spool_on(disk)
    spool.step()
    fill_up(disk / "more")
    sent = []
    while (
        spool.writer.number < spool.shared.words[Field.SPARE]
        or spool.writer.tail[0] + 30000 < spool.writer.capacity
    ):
        sent += spool.fill(1, messages=20, value=b"v" * 1000)
        spool.step()
        assert spool.synced == len(sent)
    assert 0 < caplog.text.count("the index falls behind") < len(sent) // 40
    assert spool.records() == list(enumerate(sent))
    spool.crash()


def test_others_take_the_reserve(disk: Path) -> None:
    """Delivered segments go until the reserve is free again; no more of them than needed, and no others."""
    reserve = 2 * SEGMENT_BYTES
    spool, sent = spool_on(disk, reserve), []
    while len(spool.layout.list_segments()) < 7:
        sent += spool.fill(1, messages=20, value=b"v" * 1000)
    # A new keeper knows of no rate, and wants no more spares.
    spool.reopen()
    half = spool.layout.list_segments()[5][0]
    spool.shared.words[Field.LOW_WATERMARK] = half
    spool.step()
    before = count_sent(spool)
    assert before > 2
    with (disk / "others").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free_bytes(disk)[0] - reserve + SEGMENT_BYTES * 3 // 2)
    assert free_bytes(disk)[0] < reserve - SEGMENT_BYTES
    spool.keeper._expired_at = -math.inf
    spool.step()
    assert free_bytes(disk)[0] >= reserve
    assert count_sent(spool) == before - 2
    assert [d for s, d in spool.records() if s >= half] == sent[half:]
    spool.crash()


def count_sent(spool: SpoolFixture) -> int:
    """The number of delivered segments."""
    return [suffix for _, suffix in spool.layout.list_segments()].count(SENT)


def test_a_lock_needs_no_room(disk: Path) -> None:
    """Without a free byte the directory is locked all the same, and a second process gets that error."""
    path = disk / "lock"
    path.touch()
    fill_up(disk / "more")
    lock = Lock(path, "in use")
    assert path.stat().st_size == 0
    with pytest.raises(SpoolBusy, match="held by process unknown: it is already in use"):
        Lock(path, "in use", patience_s=0.0)
    lock.release()
    Lock(path, "in use").release()
