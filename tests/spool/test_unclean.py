"""After a power loss: synced messages are there, all messages are right, and no number is used twice."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spool.format.wire import encode
from spool.index.log_end import EPOCH
from tests.spool.fixture import SECTOR, SpoolFixture

seeds = st.integers(0, 1 << 32)


@settings(max_examples=60)
@given(seeds, st.integers(0, 40), st.integers(0, 40))
def test_what_was_synced_survives(seed: int, synced_frames: int, unsynced_frames: int) -> None:
    """Any sectors lost: synced messages are all there; others are unchanged, in order, or not at all."""
    chance = random.Random(seed)
    directory = tempfile.TemporaryDirectory(dir="/dev/shm")
    spool = SpoolFixture(Path(directory.name))
    sent = spool.fill(synced_frames, messages=2)
    spool.step()
    synced = spool.synced
    assert synced == len(sent)
    for _ in range(unsynced_frames):
        if (
            spool.writer.tail[0] + 400 > spool.writer.capacity
            and spool.shared.words[18] == spool.writer.number
        ):
            break
        burst = [encode(b"t", b"%d" % len(sent) + chance.randbytes(100))]
        spool.writer.append(burst)
        sent += burst
    spool.lose_power(chance)
    spool.open()
    found = spool.records()
    assert found[:synced] == list(enumerate(sent[:synced]))
    assert set(found) <= set(enumerate(sent))
    assert found == sorted(found)
    more = spool.fill(2)
    assert spool.records() == found + [(spool.records()[len(found)][0] + i, d) for i, d in enumerate(more)]
    base = spool.records()[len(found)][0]
    assert base % EPOCH == 0
    assert base > 0 or not found
    spool.crash()
    directory.cleanup()


def test_numbers_go_on_at_the_next_epoch(spool: SpoolFixture) -> None:
    """Each unclean boot that left a segment open begins a new multiple of 2^32, a clean one does not."""
    spool.fill(3)
    spool.step()
    for boot in range(1, 4):
        spool.lose_power(random.Random(boot))
        spool.open()
        first = spool.append([encode(b"t", b"first of boot %d" % boot)])
        assert first == boot * EPOCH
        spool.step()
    spool.stop()
    spool.boot += 1
    spool.open()
    assert spool.append([encode(b"t", b"after a clean stop")]) == 3 * EPOCH + 1


def test_losing_power_while_opening_loses_nothing_more(spool: SpoolFixture) -> None:
    """Power goes repeatedly, before anything new is written: the same messages each time."""
    sent = spool.fill(60)
    spool.step()
    for boot in range(5):
        spool.lose_power(random.Random(boot))
        spool.open()
    assert spool.records() == list(enumerate(sent))


def test_a_torn_tail_is_kept_as_evidence(spool: SpoolFixture, caplog: pytest.LogCaptureFixture) -> None:
    """The bytes cut off behind the last good frame are copied to quarantine, and the log says so."""
    sent = spool.fill(2)
    spool.step()
    spool.fill(1)
    path, end = spool.last_path(), spool.segments()[-1].end
    spool.crash()
    data = bytearray(path.read_bytes())
    data[end - 40 : end] = bytes(40)
    path.write_bytes(data)
    spool.boot += 1
    spool.open()
    torn = list(spool.layout.quarantine.glob("*.torn"))
    assert len(torn) == 1
    assert torn[0].read_bytes().startswith(data[end - 352 :][:8])
    assert "torn frame cut off" in caplog.text
    assert spool.records() == list(enumerate(sent))


def test_frames_behind_a_hole_are_kept(spool: SpoolFixture) -> None:
    """A lost frame before kept ones costs its own messages; the totals include the number of missing ones."""
    sent = spool.fill(1)
    spool.step()
    sent += spool.fill(3)
    path, frames = spool.last_path(), spool.segments()[-1].frames
    spool.crash()
    data = bytearray(path.read_bytes())
    data[frames[1].offset : frames[2].offset] = bytes(frames[2].offset - frames[1].offset)
    path.write_bytes(data)
    spool.boot += 1
    spool.open()
    assert int(spool.writer.tail[4]) == len(sent)
    spool.fill(1)
    sealed, following = spool.segments()
    assert sealed.footer is not None
    assert (sealed.footer["count"], sealed.footer["end"]) == (len(sent), frames[-1].offset + 352)
    assert sum(row[1] for row in sealed.footer["topics"]) == len(sent) - 3  # type: ignore[attr-defined]
    assert following.header["stored"] == len(sent)


def test_spares_of_another_boot_are_not_trusted(spool: SpoolFixture) -> None:
    """A header is lost, the frames behind it are kept: the spare is not used again with old frames inside."""
    spool.fill(6)
    path = spool.last_path()
    spool.crash()
    data = path.read_bytes()
    path.write_bytes(spool.images[path.stat().st_ino][:SECTOR] + data[SECTOR:])
    spool.boot += 1
    spool.open()
    again = spool.fill(1)
    spool.reopen()
    assert [d for _, d in spool.records()] == again
    assert int(spool.writer.tail[4]) == len(again)


def test_segments_of_the_last_boot_are_all_sealed(memory: Path) -> None:
    """Several segments without footers, named and not: all are sealed in order, and their chain holds."""
    spool = SpoolFixture(memory, max_bytes=1 << 20)
    spool.shared.words[8] = 0
    sent = []
    for i in range(200):
        if spool.writer.tail[0] + 700 > spool.writer.capacity:
            spool.keeper._restock()
        burst = [encode(b"t", b"%d" % i + b"v" * 300)]
        spool.writer.append(burst)
        sent += burst
    assert spool.writer.number > 4
    spool.crash()
    spool.boot += 1
    spool.open()
    segments = spool.segments()
    assert all(segment.footer for segment in segments)
    assert spool.records() == list(enumerate(sent))
    ends = [segment.footer["next_sequence"] for segment in segments if segment.footer]
    assert ends[:-1] == [segment.header["first_sequence"] for segment in segments[1:]]
    assert ends[-1] == EPOCH
    spool.crash()
