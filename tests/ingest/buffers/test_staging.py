"""The staging file: ours alone, allocated in full before it is used, and its contents."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path

import pytest

from ingest.buffers.staging import (
    MSGHDR_BYTES,
    NOT_RECEIVED,
    OVERFLOW_BYTES,
    RESERVE,
    SLOT_BYTES,
    Staging,
    load_length,
    overflow_at,
    read_staging,
    slots_at,
    staging_path,
)
from ingest.errors import BadStaging
from spool.errors import NotAFile, NotOurs
from tests.spool.small_disk import fill_up, mounted

SPOOL = bytes(range(16))


@pytest.fixture
def path(memory: Path) -> Path:
    """The path of a staging file."""
    return memory / "staging"


def test_a_new_file_has_received_nothing(path: Path) -> None:
    """Every slot says so, to the worker and to other readers."""
    staging = Staging(path, SPOOL, 8)
    assert (staging.armed, staging.received(0)) == (0, 0)
    assert {load_length(staging.buffer(0), i) for i in range(8)} == {NOT_RECEIVED}
    assert read_staging(path) == []


def test_only_its_owner_can_open_it(path: Path) -> None:
    """Datagrams of all programs are in it: no other user may read them."""
    Staging(path, SPOOL, 8)
    assert path.stat().st_mode & 0o777 == 0o600


def test_slots_lie_as_the_specification_says(path: Path) -> None:
    """Slots are 2 KiB each from a page boundary on, overflow ranges 64 KiB apart, none shared."""
    staging = Staging(path, SPOOL, 8)
    data = path.read_bytes()
    assert data[:8] == b"brucestg"
    assert data[8:16] == (2).to_bytes(4, "little") + (8).to_bytes(4, "little")
    assert data[16:32] == SPOOL
    assert staging.buffer(0) - staging.address == 4096
    assert slots_at(8) % 4096 == 0
    assert overflow_at(8) == slots_at(8) + 8 * SLOT_BYTES
    assert staging.buffer_bytes == overflow_at(8) + 8 * OVERFLOW_BYTES
    assert len(data) == 4096 + (1 + RESERVE) * staging.buffer_bytes
    vectors = 4096 + 8 * MSGHDR_BYTES
    words = [int.from_bytes(data[vectors + 8 * i : vectors + 8 * i + 8], "little") for i in range(32)]
    ranges = sorted(zip(words[::2], words[1::2], strict=True))
    assert all(a + length <= b for (a, length), (b, _) in pairwise(ranges))


def test_a_successor_maps_the_same_memory(path: Path) -> None:
    """The contents that one process leaves are the next one's; pointers are its own, lengths stay."""
    first = Staging(path, SPOOL, 8)
    first._mapping.bytes[4096 + 56 : 4096 + 60] = [5, 0, 0, 0]
    again = Staging(path, SPOOL, 8)
    assert again.received(0) == 1
    assert again.address != first.address


def test_a_file_keeps_its_slots_and_receives_what_is_asked(path: Path) -> None:
    """Fewer slots are asked for than there are: all are looked at in salvage, fewer are received into."""
    Staging(path, SPOOL, 8)
    fewer, more = Staging(path, SPOOL, 3), Staging(path, SPOOL, 100)
    assert (fewer.slots, fewer.burst) == (8, 3)
    assert (more.slots, more.burst) == (8, 8)


def test_attempts_are_counted_and_settled(path: Path) -> None:
    """Attempts survive the process that made them, until the burst is done with."""
    assert Staging(path, SPOOL, 8).attempt() == 1
    assert Staging(path, SPOOL, 8).attempt() == 2
    Staging(path, SPOOL, 8).settle()
    assert Staging(path, SPOOL, 8).attempt() == 1


def test_a_file_of_another_spool_is_refused(path: Path) -> None:
    """A staging file that names another spool is not touched."""
    Staging(path, SPOOL, 8)
    with pytest.raises(BadStaging, match=str(path)):
        Staging(path, bytes(16), 8)


@pytest.mark.parametrize("damage", [b"", b"brucestg", b"something else" * 400])
def test_another_file_is_refused(path: Path, damage: bytes) -> None:
    """A file that is no staging file is named, not overwritten."""
    path.write_bytes(damage)
    path.chmod(0o600)
    with pytest.raises(BadStaging):
        Staging(path, SPOOL, 8)
    assert path.read_bytes() == damage


def test_files_of_others_are_refused(path: Path) -> None:
    """A file that others own or can open, or a link to one, is not trusted: the directory may be public."""
    Staging(path, SPOOL, 8)
    path.chmod(0o644)
    with pytest.raises(NotOurs):
        Staging(path, SPOOL, 8)
    path.chmod(0o600)
    link = path.with_name("link")
    link.symlink_to(path)
    with pytest.raises(NotAFile):
        Staging(link, SPOOL, 8)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
        with pytest.raises(NotOurs):
            Staging(path, SPOOL, 8)


def test_a_file_of_another_length_is_named(path: Path) -> None:
    """Cut or grown: a store behind its end would be a SIGBUS."""
    Staging(path, SPOOL, 8)
    for size in (path.stat().st_size - 1, path.stat().st_size + 1):
        os.truncate(path, size)
        with pytest.raises(BadStaging):
            Staging(path, SPOOL, 8)


def test_a_planted_link_is_not_followed(path: Path) -> None:
    """Somebody leaves a link where the file is made: what it points to stays as it is."""
    victim = path.with_name("victim")
    victim.write_text("precious")
    path.with_name(f"{path.name}.tmp").symlink_to(victim)
    Staging(path, SPOOL, 8)
    assert victim.read_text() == "precious"


def test_without_room_there_is_an_error_and_no_file(tmp_path: Path) -> None:
    """A full tmpfs is an error when the file is made, not a SIGBUS when it is used."""
    with mounted("tmpfs", tmp_path, 1 << 20) as place:
        fill_up(place / "more")
        with pytest.raises(OSError, match="No space left") as caught:
            Staging(place / "staging", SPOOL, 64)
        assert caught.value.filename == str(place / "staging")
        assert [p.name for p in place.iterdir()] == ["more"]


def test_names_differ_by_spool_and_boot(memory: Path) -> None:
    """Two spools, or two boots, never share a staging file."""
    names = {staging_path(memory, s, b) for s in (SPOOL, bytes(16)) for b in (SPOOL, bytes(16))}
    assert len(names) == 4


def test_looking_at_nothing_finds_nothing(memory: Path) -> None:
    """No file, or another one, holds no datagrams."""
    assert read_staging(memory / "none") == []
    (memory / "other").write_bytes(b"other" * 100)
    assert read_staging(memory / "other") == []


@pytest.mark.parametrize("room", [1 << 20, 3 << 20, 7 << 20, 40 << 20])
def test_as_many_slots_as_there_is_memory_for(tmp_path: Path, room: int) -> None:
    """Each slot that is received into has its overflow reserved; on a small tmpfs they are fewer."""
    with mounted("tmpfs", tmp_path, (2 << 20) + room) as place:
        staging = Staging(place / "staging", SPOOL, 512)
        assert staging.slots == 512
        assert staging.grow() == staging.burst == staging.most
        assert 1 <= staging.burst <= min(512, room // OVERFLOW_BYTES + 16)
        assert staging.burst == 512 or staging.burst * OVERFLOW_BYTES >= room // 4
        fill_up(place / "more")
        again = Staging(place / "staging", SPOOL, 512)
        assert again.grow() == staging.burst
        (place / "more").unlink()


def test_a_small_start(memory: Path) -> None:
    """Until bursts are larger, little is reserved; what a process has reserved is there for its successor."""

    def reserved() -> int:
        return 512 * (memory / "staging").stat().st_blocks

    staging = Staging(memory / "staging", SPOOL, 512)
    assert reserved() < 8 << 20
    assert (staging.burst, staging.most) == (64, 512)
    assert staging.grow() == 512
    assert reserved() >= 512 * OVERFLOW_BYTES
    again = Staging(memory / "staging", SPOOL, 512)
    assert (again.burst, again.grow()) == (64, 512)


def test_no_memory_for_one_slot_is_an_error(tmp_path: Path) -> None:
    """It is said at the start, and not found out by a datagram that is lost."""
    with (
        mounted("tmpfs", tmp_path, 1120 << 10) as place,
        pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as caught,
    ):
        Staging(place / "staging", SPOOL, 512)
    assert caught.value.filename == str(place / "staging")
