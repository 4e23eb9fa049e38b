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
from tests.spool.rig import SECTOR, Rig

seeds = st.integers(0, 1 << 32)


@settings(max_examples=60)
@given(seeds, st.integers(0, 40), st.integers(0, 40))
def test_what_was_synced_survives(seed: int, synced_frames: int, unsynced_frames: int) -> None:
    """Any sectors lost: synced messages are all there; others are unchanged, in order, or not at all."""
    chance = random.Random(seed)
    directory = tempfile.TemporaryDirectory(dir="/dev/shm")
    rig = Rig(Path(directory.name))
    sent = rig.fill(synced_frames, messages=2)
    rig.step()
    synced = rig.synced
    assert synced == len(sent)
    for _ in range(unsynced_frames):
        if rig.writer.tail[0] + 400 > rig.writer.capacity and rig.shared.words[18] == rig.writer.number:
            break
        burst = [encode(b"t", b"%d" % len(sent) + chance.randbytes(100))]
        rig.writer.append(burst)
        sent += burst
    rig.lose_power(chance)
    rig.open()
    found = rig.records()
    assert found[:synced] == list(enumerate(sent[:synced]))
    assert set(found) <= set(enumerate(sent))
    assert found == sorted(found)
    more = rig.fill(2)
    assert rig.records() == found + [(rig.records()[len(found)][0] + i, d) for i, d in enumerate(more)]
    base = rig.records()[len(found)][0]
    assert base % EPOCH == 0
    assert base > 0 or not found
    rig.crash()
    directory.cleanup()


def test_numbers_go_on_at_the_next_epoch(rig: Rig) -> None:
    """Each unclean boot that left a segment open begins a new multiple of 2^32, a clean one does not."""
    rig.fill(3)
    rig.step()
    for boot in range(1, 4):
        rig.lose_power(random.Random(boot))
        rig.open()
        first = rig.append([encode(b"t", b"first of boot %d" % boot)])
        assert first == boot * EPOCH
        rig.step()
    rig.stop()
    rig.boot += 1
    rig.open()
    assert rig.append([encode(b"t", b"after a clean stop")]) == 3 * EPOCH + 1


def test_losing_power_while_opening_loses_nothing_more(rig: Rig) -> None:
    """Power goes repeatedly, before anything new is written: the same messages each time."""
    sent = rig.fill(60)
    rig.step()
    for boot in range(5):
        rig.lose_power(random.Random(boot))
        rig.open()
    assert rig.records() == list(enumerate(sent))


def test_a_torn_tail_is_kept_as_evidence(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """The bytes cut off behind the last good frame are copied to quarantine, and the log says so."""
    sent = rig.fill(2)
    rig.step()
    rig.fill(1)
    path, end = rig.last_path(), rig.segments()[-1].end
    rig.crash()
    data = bytearray(path.read_bytes())
    data[end - 40 : end] = bytes(40)
    path.write_bytes(data)
    rig.boot += 1
    rig.open()
    torn = list(rig.layout.quarantine.glob("*.torn"))
    assert len(torn) == 1
    assert torn[0].read_bytes().startswith(data[end - 352 :][:8])
    assert "torn frame cut off" in caplog.text
    assert rig.records() == list(enumerate(sent))


def test_frames_behind_a_hole_are_kept(rig: Rig) -> None:
    """A lost frame before kept ones costs its own messages; the totals include the number of missing ones."""
    sent = rig.fill(1)
    rig.step()
    sent += rig.fill(3)
    path, frames = rig.last_path(), rig.segments()[-1].frames
    rig.crash()
    data = bytearray(path.read_bytes())
    data[frames[1].offset : frames[2].offset] = bytes(frames[2].offset - frames[1].offset)
    path.write_bytes(data)
    rig.boot += 1
    rig.open()
    assert int(rig.writer.tail[4]) == len(sent)
    rig.fill(1)
    sealed, following = rig.segments()
    assert sealed.footer is not None
    assert (sealed.footer["count"], sealed.footer["end"]) == (len(sent), frames[-1].offset + 352)
    assert sum(row[1] for row in sealed.footer["topics"]) == len(sent) - 3  # type: ignore[attr-defined]
    assert following.header["stored"] == len(sent)


def test_spares_of_another_boot_are_not_trusted(rig: Rig) -> None:
    """A header is lost, the frames behind it are kept: the spare is not used again with old frames inside."""
    rig.fill(6)
    path = rig.last_path()
    rig.crash()
    data = path.read_bytes()
    path.write_bytes(rig.images[path.stat().st_ino][:SECTOR] + data[SECTOR:])
    rig.boot += 1
    rig.open()
    again = rig.fill(1)
    rig.reopen()
    assert [d for _, d in rig.records()] == again
    assert int(rig.writer.tail[4]) == len(again)


def test_segments_of_the_last_boot_are_all_sealed(memory: Path) -> None:
    """Several segments without footers, named and not: all are sealed in order, and their chain holds."""
    rig = Rig(memory, max_bytes=1 << 20)
    rig.shared.words[8] = 0
    sent = []
    for i in range(200):
        if rig.writer.tail[0] + 700 > rig.writer.capacity:
            rig.keeper._restock()
        burst = [encode(b"t", b"%d" % i + b"v" * 300)]
        rig.writer.append(burst)
        sent += burst
    assert rig.writer.number > 4
    rig.crash()
    rig.boot += 1
    rig.open()
    segments = rig.segments()
    assert all(segment.footer for segment in segments)
    assert rig.records() == list(enumerate(sent))
    ends = [segment.footer["next_sequence"] for segment in segments if segment.footer]
    assert ends[:-1] == [segment.header["first_sequence"] for segment in segments[1:]]
    assert ends[-1] == EPOCH
    rig.crash()
