"""The index is derived: deleted, replaced by an old copy or rotten, it changes nothing."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import lmdb
import pytest

from spool.format.frame import POSITION, SEQUENCE
from spool.index.committed import read_committed
from spool.index.index import Entry, Index, IndexReader, read_entries
from spool.index.log_end import empty_tail
from tests.spool import plain
from tests.spool.fixture import SpoolFixture

Damage = Callable[[Path, Path], None]


def deleted(index: Path, _older: Path) -> None:
    """The index was removed."""
    shutil.rmtree(index)


def put_back(index: Path, older: Path) -> None:
    """An older copy came back, from a backup or from an unsynced cache."""
    shutil.rmtree(index)
    shutil.copytree(older, index)


def emptied(index: Path, _older: Path) -> None:
    """A crash of the filesystem left empty files."""
    for path in index.iterdir():
        path.write_bytes(b"")


def cut(index: Path, _older: Path) -> None:
    """Half of the file is gone: reading behind its end through a mapping would be a SIGBUS."""
    data = (index / "data.mdb").read_bytes()
    (index / "data.mdb").write_bytes(data[: len(data) // 2])


def rotten(index: Path, _older: Path, seed: int = 1) -> None:
    """Random bytes all over the file."""
    chance = random.Random(seed)
    data = bytearray((index / "data.mdb").read_bytes())
    for _ in range(50):
        at = chance.randrange(len(data) - 16)
        data[at : at + 16] = chance.randbytes(16)
    (index / "data.mdb").write_bytes(data)


def no_lmdb(index: Path, _older: Path) -> None:
    """Another file of that name."""
    (index / "data.mdb").write_bytes(b"not a database" * 1000)


@pytest.mark.parametrize("damage", [deleted, put_back, emptied, cut, rotten, no_lmdb])
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "crashed"])
def test_opening_gives_the_same_spool(spool: SpoolFixture, damage: Damage, *, clean: bool) -> None:
    """With any damage to the index: the same watermark, records and next numbers."""
    sent = spool.fill(20)
    spool.step()
    older = spool.directory / "older"
    shutil.copytree(spool.layout.index, older)
    sent += spool.fill(200)
    spool.step()
    synced, place = spool.synced, spool.shared.words[16]
    if clean:
        spool.stop()
    else:
        spool.crash()
    damage(spool.layout.index, older)
    spool.open()
    assert (spool.synced, spool.records()) == (synced, list(enumerate(sent)))
    assert spool.shared.words[16] == place
    committed = read_committed(spool.layout.index)
    assert committed is not None
    assert committed[1][SEQUENCE] == synced
    sent += spool.fill(5)
    spool.step()
    assert spool.records() == list(enumerate(sent))
    assert spool.synced == len(sent)


def test_entries_lead_to_frames(tmp_path: Path) -> None:
    """Every sequence number finds an entry at or before it, and there a frame with that chain behind it."""
    spool = SpoolFixture(tmp_path, segment_bytes=1 << 20, max_bytes=16 << 20)
    for _ in range(25):
        spool.fill(4, value=b"v" * 3000)
        spool.step()
    reader, frames = spool.index(), spool.segments()[0].frames
    entries = {reader.entry(sequence) for sequence in range(480)}
    reader.close()
    assert len(entries) > 10
    by_offset = {f.offset: f for f in frames}
    for entry in entries:
        assert entry is not None
        first, number, offset, digest, burst = entry
        assert (number, first, digest) == (1, by_offset[offset].sequence, by_offset[offset].previous)
        assert burst == by_offset[offset].burst - 1
    spool.crash()


def test_sealed_segments_have_no_entries(spool: SpoolFixture) -> None:
    """Sealing removes the entries: the footer of a sealed segment has its own marks."""
    spool.fill(100)
    for _ in range(20):
        spool.step()
    reader = spool.index()
    live = plain.read_segment(spool.last_path().read_bytes()).header["first_sequence"]
    assert reader.entry(0) is None
    assert reader.entry(10**9) is not None
    assert reader.entry(10**9)[0] == live  # type: ignore[index]
    reader.close()


def test_an_index_of_another_boot_or_spool_is_begun_anew(tmp_path: Path) -> None:
    """After a power loss such a file may read silently wrong, so it is not read."""
    tail = empty_tail()
    tail[POSITION] = 4096
    index = Index(tmp_path / "index", b"s" * 16, b"a" * 16)
    index.commit(3, tail, [])
    index.close()
    same = Index(tmp_path / "index", b"s" * 16, b"a" * 16)
    assert read_committed(tmp_path / "index") is not None
    same.close()
    for spool, boot in ((b"s", b"b"), (b"t", b"b")):
        other = Index(tmp_path / "index", spool * 16, boot * 16)
        assert read_committed(tmp_path / "index") is None
        other.commit(3, tail, [])
        other.close()


def test_reading_writes_nothing(spool: SpoolFixture, tmp_path: Path) -> None:
    """A reader leaves a copy of the index unchanged, the lock file included; without one it returns None."""
    spool.fill(3)
    spool.stop()
    before = {p.name: p.read_bytes() for p in spool.layout.index.iterdir()}
    committed = read_committed(spool.layout.index)
    assert committed is not None
    assert committed[1][SEQUENCE] == 9
    assert {p.name: p.read_bytes() for p in spool.layout.index.iterdir()} == before
    assert read_committed(tmp_path / "nothing") is None
    with pytest.raises(lmdb.Error):
        IndexReader(tmp_path / "nothing")


def test_threads_of_a_process_look_one_after_the_other(spool: SpoolFixture) -> None:
    """LMDB refuses a second opening in a process; no thread takes that for an unreadable index."""
    spool.fill(10)
    spool.step()
    spool.crash()
    directory, read = spool.layout.index, IndexReader.entries

    def slowly(reader: IndexReader) -> list[Entry]:
        time.sleep(0.01)
        return read(reader)

    with mock.patch.object(IndexReader, "entries", slowly), ThreadPoolExecutor(4) as pool:
        found = list(pool.map(read_entries, 20 * [directory]))
    assert None not in found
