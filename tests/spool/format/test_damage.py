"""One loop that skips damage finds the same frames as a walk from frame to frame, for any damage."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.format import scan
from spool.format.batch import Topics
from spool.format.contents import Contents
from spool.format.damage import AT, KNOWN, MOST_PLACES, STRAY, encode_hole, walk_over
from spool.format.frame import KEY, POSITION, Tail, tail_at_start
from spool.format.scan import Scan, read_header
from spool.format.segment_format import HEAD_BYTES, VERSION, decode_header
from spool.format.wire import encode
from spool.fsck.check import Check
from spool.fsck.examination import Examination
from spool.fsck.finding import Kind, Severity
from spool.read.files import Span, Unreadable, read_file
from spool.storage.lock import Lock
from tests.spool.memory import FIRST, Chain

FRAMES = 600
Row = tuple[int, int, int, int]


def chain_of(frames: int, value: bytes = b"value", version: int = VERSION) -> Chain:
    """Frames of two messages each."""
    chain = Chain(1 << 18, version=version)
    for i in range(frames):
        chain.append([encode(b"t", value * (i % 5))] * 2, {}, (0, 0))
    return chain


def scan_of(path: Path, *, committed: int = scan.NOWHERE, chunk_bytes: int = scan.CHUNK_BYTES) -> Scan:
    """A scan of a file, which it keeps open."""
    found = Scan(os.open(path, os.O_RDONLY), tail_at_start(read_header(path)), chunk_bytes=chunk_bytes)
    found.committed = committed
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file in a folder of segments, of a spool without processes."""
    (tmp_path / "segments").mkdir()
    return tmp_path / "segments" / f"{1:020d}.spare"


def all_of(one: Scan, step: Callable[[], scan.Chunk | None]) -> tuple[list[int], list[Row], list[int]]:
    """(offsets of frames, holes, the tail) as `step` and then `skip` go on."""
    offsets, holes = list[int](), list[Row]()
    while True:
        while chunk := step():
            offsets += chunk.frames[:, 0].tolist()
            holes += [(at, behind, first, lost) for at, behind, first, lost, *_ in chunk.holes.tolist()]
        at, first = int(one.tail[POSITION]), int(one.tail[1])
        missing = one.skip()
        if missing is None:
            os.close(one.fd)
            return offsets, holes, one.tail.tolist()
        holes.append((at, int(one.tail[POSITION]), first, missing))


@given(st.data())
def test_holes_are_those_that_one_step_after_the_other_finds(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """With any bytes changed, zeroed or overwritten by a frame: the same frames, holes and tail."""
    chain = chain_of(40, version=data.draw(st.sampled_from([1, VERSION])))
    memory, end = chain.memory, int(chain.tail[POSITION])
    places = st.integers(chain.offsets[0], end - 1)
    for at in data.draw(st.lists(places, max_size=12)):
        length = data.draw(st.integers(1, min(300, end - at)))
        kind = data.draw(st.sampled_from(["bit", "zeros", "copy"]))
        if kind == "bit":
            memory[at] ^= 1
        elif kind == "zeros":
            memory[at : at + length] = 0
        else:
            source = data.draw(st.integers(chain.offsets[0], end - length)) & ~7
            memory[at & ~7 :][:length] = memory[source : source + length].copy()
    path = tmp_path_factory.mktemp("holes") / "segment"
    path.write_bytes(chain.data())
    size = data.draw(st.sampled_from([256, 1000, scan.CHUNK_BYTES]))
    slow, fast = scan_of(path), scan_of(path, chunk_bytes=size)
    assert all_of(fast, fast.over) == all_of(slow, slow.next)


@pytest.mark.parametrize("sealed", [False, True])
def test_damage_of_version_1_is_searched_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, sealed: bool
) -> None:
    """Behind the first place, whose search finds the links, Python is not called for each.

    With a footer, whose digest leads back to each frame, the frame behind two damaged ones is found, too.
    """
    chain, lost = chain_of(FRAMES, version=1), [n for n in range(1, FRAMES - 1) if n % (3 if sealed else 2)]
    chain.memory[np.array(chain.offsets)[lost] + HEAD_BYTES] ^= 1
    data, end = bytearray(chain.data()), int(chain.tail[POSITION])
    if sealed:
        data[end:] = Contents(0).footer(decode_header(chain.data(), ""), chain.tail, FIRST + 2 * FRAMES)
    path.write_bytes(data)
    one, skips = scan_of(path), list[int]()
    one.limit, skip = end if sealed else one.limit, one._next_linked
    monkeypatch.setattr(one, "_next_linked", lambda: (skips.append(1), skip())[1])
    offsets, holes, _ = all_of(one, one.over)
    assert offsets == [offset for n, offset in enumerate(chain.offsets) if n not in lost]
    assert len(holes) == FRAMES // (3 if sealed else 2) - (not sealed)
    assert len(skips) == 2, "the first damage, and the end"


def test_a_later_frame_in_an_earlier_place_hides_nothing(path: Path) -> None:
    """A whole frame of the segment, copied to a place too early for the number of messages that it skips."""
    chain = Chain.of(20, even=True)
    at = chain.offsets
    chain.memory[at[3] : at[4]] = chain.memory[at[16] : at[17]].copy()
    path.write_bytes(chain.data())
    one = scan_of(path)
    offsets, holes, _ = all_of(one, one.over)
    assert offsets == [*at[:3], *at[4:]]
    assert [missing for *_, missing in holes] == [2]


def test_much_damage_is_one_call(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage of every second frame does not cost a search of the file for each."""
    chain = chain_of(FRAMES)
    chain.memory[np.array(chain.offsets[1::2]) + HEAD_BYTES] ^= 1
    path.write_bytes(chain.data())
    one, searched = scan_of(path), list[int]()
    find = scan.find_frame

    def counted(fd: int, position: int, limit: int, tail: Tail) -> int:
        searched.append(position)
        return find(fd, position, limit, tail)

    monkeypatch.setattr(scan, "find_frame", counted)
    offsets, holes, _ = all_of(one, one.over)
    assert offsets == chain.offsets[::2]
    assert sum(missing for *_, missing in holes) == FRAMES - 2
    assert len(searched) < 20


def test_a_frame_out_of_place_and_a_gap_are_told(path: Path) -> None:
    """A hole says whether it holds a frame that is good by itself, and whether a repair left a gap."""
    chain = Chain.of(10, even=True)
    at, memory = chain.offsets, chain.memory
    gap = encode_hole(at[3] - at[2], 2, int(chain.tail[KEY]))
    memory[at[2] : at[3]] = np.frombuffer(gap, np.uint8)
    memory[at[7] : at[8]] = memory[at[5] : at[6]].copy()
    path.write_bytes(chain.data())
    one = scan_of(path)
    chunk = one.over()
    os.close(one.fd)
    assert chunk is not None
    assert chunk.holes[:, [AT, KNOWN, STRAY]].tolist() == [[at[2], 1, 0], [at[7], 0, 1]]


def test_what_is_not_committed_is_not_passed_over(path: Path) -> None:
    """Behind the end that a live keeper has committed, a bad frame may still be in the making."""
    chain = chain_of(10)
    for at in (2, 6):
        chain.memory[chain.offsets[at] + HEAD_BYTES] ^= 1
    path.write_bytes(chain.data())
    one = scan_of(path, committed=chain.offsets[4])
    chunk = one.over()
    os.close(one.fd)
    assert chunk is not None
    assert chunk.holes[:, AT].tolist() == [chain.offsets[2]]
    assert int(one.tail[POSITION]) == chain.offsets[6]


def test_a_frame_finished_while_it_is_passed_over_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame that was torn when it was read, and is whole when it is read again, is no damage."""
    chain = chain_of(10)
    whole = chain.data()
    chain.memory[chain.offsets[4] + HEAD_BYTES] ^= 1
    path.write_bytes(chain.data())
    one, walk = scan_of(path), walk_over

    def finishing(*rest: Any) -> tuple[int, int, int]:
        found = walk(*rest)
        path.write_bytes(whole)
        return found

    monkeypatch.setattr(scan, "walk_over", finishing)
    offsets, holes, _ = all_of(one, one.over)
    assert (offsets, holes) == (chain.offsets, [])


def damaged(path: Path) -> Chain:
    """A segment of which every second frame is damaged."""
    chain = chain_of(FRAMES)
    chain.memory[np.array(chain.offsets[1:-1:2]) + HEAD_BYTES] ^= 1
    path.write_bytes(chain.data())
    return chain


def test_a_check_tells_the_first_places_and_the_sum(path: Path) -> None:
    """A segment has a bounded number of findings, whose losses add up; a repair knows every hole."""
    chain = damaged(path)
    one = Examination(path, last=False)
    found = list(one.findings())
    assert [f.kind for f in found] == [Kind.FRAME] * (MOST_PLACES + 1)
    places, lost = FRAMES // 2 - 1 - MOST_PLACES, 2 * (FRAMES // 2 - 1 - MOST_PLACES)
    size = sum(chain.offsets[at + 1] - chain.offsets[at] for at in range(1 + 2 * MOST_PLACES, FRAMES - 1, 2))
    assert found[-1].sentence.startswith(
        f"{size} bytes in {places} further places hold no good frame; {lost} "
    )
    assert found[-1].offset == chain.offsets[1 + 2 * MOST_PLACES]
    assert sum(hole.messages for hole in one.state(None).holes) == FRAMES - 2
    assert one.totals.messages + FRAMES - 2 == 2 * FRAMES


def test_gaps_of_a_repair_are_summed_as_notes(path: Path) -> None:
    """Known gaps beyond the bound are one note, and no damage."""
    chain = chain_of(FRAMES)
    for at in range(1, FRAMES - 1, 2):
        gap = encode_hole(chain.offsets[at + 1] - chain.offsets[at], 2, int(chain.tail[KEY]))
        chain.memory[chain.offsets[at] : chain.offsets[at + 1]] = np.frombuffer(gap, np.uint8)
    path.write_bytes(chain.data())
    found = list(Examination(path, last=False).findings())
    assert {f.severity for f in found} == {Severity.NOTE}
    assert len(found) == MOST_PLACES + 1
    further = FRAMES // 2 - 1 - MOST_PLACES
    assert found[-1].sentence == f"a repair left {further} further gaps for {2 * further} messages"


def test_a_reader_counts_all_that_it_passes_over(path: Path) -> None:
    """The messages that are read and those reported as unreadable are all that were stored."""
    damaged(path)
    read, told = 0, list[Unreadable]()
    for found in read_file(path, Topics(), Span()):
        if isinstance(found, Unreadable):
            told.append(found)
        else:
            read += len(found)
    assert read + sum(one.messages for one in told) == 2 * FRAMES
    assert sum(one.places for one in told) == FRAMES // 2 - 1
    assert len(told) < MOST_PLACES + 10
    assert [one.places for one in told[:MOST_PLACES]] == [1] * MOST_PLACES
    assert f"and in {told[-1].places - 1} places behind it" in told[-1].sentence


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that a check waited."""
    waits: list[float] = []
    # The module's own name for it: threads of other tests sleep, too.
    monkeypatch.setattr("spool.fsck.examination.time", SimpleNamespace(sleep=waits.append))
    return waits


@pytest.mark.parametrize("written", [False, True])
def test_a_torn_end_is_waited_for_where_somebody_writes(
    path: Path, slept: list[float], *, written: bool
) -> None:
    """A check looks again at a bad frame only while the spool's lock is held."""
    chain = chain_of(4)
    chain.memory[chain.offsets[3] + HEAD_BYTES] ^= 1
    path.write_bytes(chain.data())
    lock = Lock(path.parents[1] / "lock", "in use") if written else None
    found = list(Check().files([path]))
    if lock:
        lock.release()
    assert [f.kind for f in found] == [Kind.TORN]
    assert bool(slept) is written
