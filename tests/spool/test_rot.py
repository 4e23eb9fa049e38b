"""Rot anywhere: the spool opens, new messages are taken and committed, and undamaged ones are kept."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from spool.format.batch import Topics
from spool.format.segment_format import HEADER_BYTES
from spool.format.wire import encode
from spool.index.segment_list import SegmentList
from spool.marks.discarded import Changes
from spool.marks.marks import Marks
from spool.native.digest import CHUNK_BYTES
from spool.read.reader import Reader
from tests.spool.rig import Rig

MIB = 1 << 20


def rot(path: Path, chance: random.Random, places: int) -> None:
    """Change random bytes of a file."""
    data = bytearray(path.read_bytes())
    for _ in range(places if data else 0):
        at = chance.randrange(len(data))
        data[at : at + 4] = chance.randbytes(len(data[at : at + 4]))
    path.write_bytes(data)


def read_all(rig: Rig) -> set[int]:
    """The sequence numbers of all committed messages that a reader finds."""
    reader, found = Reader(SegmentList(rig.layout), Topics()), set[int]()
    reader.allow(rig.keeper._committer.number, int(rig.keeper._committer.tail[0]))
    while batch := reader.next():
        found |= set(batch.sequence.tolist())
    reader.close()
    return found


@pytest.mark.sample(one_of=3)
@pytest.mark.parametrize("seed", range(30))
def test_random_bytes_of_any_file(memory: Path, seed: int) -> None:
    """Segments, marks, ledger, identity, index: one or many bytes, in this boot or the next one."""
    chance, rig = random.Random(seed), Rig(memory)
    sent = rig.fill(80)
    rig.step()
    marks = Marks(rig.layout.delivery, SegmentList(rig.layout))
    marks.commit(Changes(10, {(1, 0): np.full(CHUNK_BYTES, 3, np.uint8)}))
    marks.close()
    rig.crash()
    files = [path for path in rig.layout.directory.rglob("*") if path.is_file()]
    hit = chance.sample(files, chance.choice((1, 2, len(files))))
    for path in hit:
        rot(path, chance, chance.choice((1, 10, 200)))
    rig.boot += chance.choice((0, 1))
    rig.open()
    whole = {path.name for path in files} - {path.name for path in hit}
    first = rig.append([encode(b"t", b"new")])
    rig.step()
    assert rig.synced > first
    found = read_all(rig)
    assert first in found
    assert found <= set(range(len(sent))) | {first}
    named = rig.layout.list_segments()
    for info, following in pairwise(named):
        if rig.layout.segment(*info).name in whole:
            assert set(range(info[0], min(following[0], len(sent)))) <= found
    marks = Marks(rig.layout.delivery, SegmentList(rig.layout))
    assert marks.low_watermark()[0] <= first
    marks.close()
    rig.crash()


def test_a_segment_that_is_gone_and_the_header_of_the_next(memory: Path) -> None:
    """The repaired header counts too few messages; no good message is skipped because of it."""
    rig = Rig(memory)
    sent = rig.fill(80)
    rig.step()
    rig.crash()
    _, second, third, fourth = (rig.layout.segment(*pair) for pair in rig.layout.list_segments())
    second.write_bytes(random.Random(1).randbytes(second.stat().st_size))
    third.write_bytes(bytes(HEADER_BYTES) + third.read_bytes()[HEADER_BYTES:])
    rig.open()
    first = rig.append([encode(b"t", b"new")])
    rig.step()
    gone = range(*(int(path.stem) for path in (second, third)))
    assert read_all(rig) == {*range(len(sent)), first} - set(gone)
    assert int(fourth.stem) < len(sent)
    rig.crash()


@pytest.mark.parametrize("boots", [0, 1])
def test_more_rot_than_a_reader_takes_at_once(
    memory: Path, boots: int, caplog: pytest.LogCaptureFixture
) -> None:
    """1.5 MiB of a segment are rot: frames before and behind are kept, new traffic flows, all is counted."""
    rig = Rig(memory, segment_bytes=4 * MIB, max_bytes=64 * MIB)
    sent = rig.fill(300, messages=4, value=b"v" * 2000)
    rig.keeper.commit()
    path, end = rig.last_path(), int(rig.writer.tail[0])
    rig.crash()
    data = bytearray(path.read_bytes())
    middle = end // 2
    data[middle - 3 * MIB // 4 : middle + 3 * MIB // 4] = random.Random(1).randbytes(3 * MIB // 2)
    path.write_bytes(data)
    rig.boot += boots
    rig.open()
    first = rig.append([encode(b"t", b"new")])
    rig.step()
    found = read_all(rig)
    assert {0, len(sent) - 1, first} <= found
    assert 0 < len(sent) - len(found) < len(sent) * 0.8
    assert int(rig.writer.tail[4]) == len(sent) + 1
    assert "damaged" in caplog.text or boots
    rig.crash()
