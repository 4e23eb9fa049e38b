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
from tests.spool.fixture import SpoolFixture

MIB = 1 << 20


def rot(path: Path, chance: random.Random, places: int) -> None:
    """Change random bytes of a file."""
    data = bytearray(path.read_bytes())
    for _ in range(places if data else 0):
        at = chance.randrange(len(data))
        data[at : at + 4] = chance.randbytes(len(data[at : at + 4]))
    path.write_bytes(data)


def read_all(spool: SpoolFixture) -> set[int]:
    """The sequence numbers of all committed messages that a reader finds."""
    reader, found = Reader(SegmentList(spool.layout), Topics()), set[int]()
    reader.allow(spool.keeper._committer.number, int(spool.keeper._committer.tail[0]))
    while batch := reader.next():
        found |= set(batch.sequence.tolist())
    reader.close()
    return found


@pytest.mark.sample(one_of=3)
@pytest.mark.parametrize("seed", range(30))
def test_random_bytes_of_any_file(memory: Path, seed: int) -> None:
    """Segments, marks, ledger, identity, index: one or many bytes, in this boot or the next one."""
    chance, spool = random.Random(seed), SpoolFixture(memory)
    sent = spool.fill(80)
    spool.step()
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    marks.commit(Changes(10, {(1, 0): np.full(CHUNK_BYTES, 3, np.uint8)}))
    marks.close()
    spool.crash()
    files = [path for path in spool.layout.directory.rglob("*") if path.is_file()]
    hit = chance.sample(files, chance.choice((1, 2, len(files))))
    for path in hit:
        rot(path, chance, chance.choice((1, 10, 200)))
    spool.boot += chance.choice((0, 1))
    spool.open()
    whole = {path.name for path in files} - {path.name for path in hit}
    first = spool.append([encode(b"t", b"new")])
    spool.step()
    assert spool.synced > first
    found = read_all(spool)
    assert first in found
    assert found <= set(range(len(sent))) | {first}
    named = spool.layout.list_segments()
    for info, following in pairwise(named):
        if spool.layout.segment(*info).name in whole:
            assert set(range(info[0], min(following[0], len(sent)))) <= found
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    assert marks.low_watermark()[0] <= first
    marks.close()
    spool.crash()


def test_a_segment_that_is_gone_and_the_header_of_the_next(memory: Path) -> None:
    """The repaired header counts too few messages; no good message is skipped because of it."""
    spool = SpoolFixture(memory)
    sent = spool.fill(80)
    spool.step()
    spool.crash()
    _, second, third, fourth = (spool.layout.segment(*pair) for pair in spool.layout.list_segments())
    second.write_bytes(random.Random(1).randbytes(second.stat().st_size))
    third.write_bytes(bytes(HEADER_BYTES) + third.read_bytes()[HEADER_BYTES:])
    spool.open()
    first = spool.append([encode(b"t", b"new")])
    spool.step()
    gone = range(*(int(path.stem) for path in (second, third)))
    assert read_all(spool) == {*range(len(sent)), first} - set(gone)
    assert int(fourth.stem) < len(sent)
    spool.crash()


@pytest.mark.parametrize("boots", [0, 1])
def test_more_rot_than_a_reader_takes_at_once(
    memory: Path, boots: int, caplog: pytest.LogCaptureFixture
) -> None:
    """1.5 MiB of a segment are rot: frames before and behind are kept, new traffic flows, all is counted."""
    spool = SpoolFixture(memory, segment_bytes=4 * MIB, max_bytes=64 * MIB)
    sent = spool.fill(300, messages=4, value=b"v" * 2000)
    spool.keeper.commit()
    path, end = spool.last_path(), int(spool.writer.tail[0])
    spool.crash()
    data = bytearray(path.read_bytes())
    middle = end // 2
    data[middle - 3 * MIB // 4 : middle + 3 * MIB // 4] = random.Random(1).randbytes(3 * MIB // 2)
    path.write_bytes(data)
    spool.boot += boots
    spool.open()
    first = spool.append([encode(b"t", b"new")])
    spool.step()
    found = read_all(spool)
    assert {0, len(sent) - 1, first} <= found
    assert 0 < len(sent) - len(found) < len(sent) * 0.8
    assert int(spool.writer.tail[4]) == len(sent) + 1
    assert "damaged" in caplog.text or boots
    spool.crash()
