"""Version 1 behind damage: frames are found by their links, in time linear in the bytes."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import numpy as np
import pytest

from spool.format.contents import Contents
from spool.format.frame import POSITION, SEQUENCE, tail_at_start
from spool.format.scan import Scan
from spool.format.segment_format import HEAD_BYTES, OLD_KEYS, decode_header
from spool.format.version_1 import Links
from spool.format.wire import encode
from tests.spool.memory import FIRST, Chain


def old_segment(path: Path, frames: int, lost: list[int], *, sealed: bool, size: int = 1 << 20) -> Chain:
    """A segment of version 1, of which the bodies of some frames are damaged."""
    chain = Chain(size, version=1)
    for i in range(frames):
        chain.append([encode(b"t", b"%d" % i + b"v" * 50)], {}, (0, 0))
    end, data = int(chain.tail[POSITION]), bytearray(chain.data())
    for i in lost:
        data[chain.offsets[i] + HEAD_BYTES + 20] ^= 1
    if sealed:
        data[end:] = Contents(0).footer(decode_header(chain.data(), ""), chain.tail, FIRST + frames)
    path.write_bytes(data)
    return chain


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(
    "lost", [[0], [3], [1, 2], [0, 4, 5, 9], list(range(1, 18, 2)), [1, 2, 5, 6, 7, 10, 12, 13]]
)
def test_damage_costs_the_damaged_frames(tmp_path: Path, lost: list[int], *, sealed: bool) -> None:
    """With their heads left, as bit rot leaves them, every other frame is read, with a footer or without."""
    if not sealed:
        # Of two damaged neighbours the second has only its head: its link was the first one's digest.
        lost = [one for one in lost if one - 1 not in lost]
    path = tmp_path / "segment"
    chain = old_segment(path, 20, lost, sealed=sealed)
    fd, found = os.open(path, os.O_RDONLY), list[int]()
    limit = int(chain.tail[POSITION]) if sealed else None
    scan = Scan(fd, tail_at_start(decode_header(chain.data(), "")), limit)
    for chunk in scan.all():
        found += chunk.frames[:, 0].tolist()
    os.close(fd)
    assert found == [offset for i, offset in enumerate(chain.offsets) if i not in lost]
    assert int(scan.tail[SEQUENCE]) == FIRST + 20


def test_a_megabyte_of_heads_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that look like heads of long frames cost one reading of the segment, and no digest."""
    path = tmp_path / "segment"
    chain = old_segment(path, 2, [], sealed=False)
    head = bytearray(HEAD_BYTES)
    head[8:12], head[12:14] = OLD_KEYS.mark.to_bytes(4, "little"), HEAD_BYTES.to_bytes(2, "little")
    head[24:28] = (1 << 19).to_bytes(4, "little")
    data = bytearray(chain.data())
    at = chain.offsets[1]
    data[at:] = bytes(head) * ((len(data) - at) // HEAD_BYTES)
    path.write_bytes(data)
    fd, read = os.open(path, os.O_RDONLY), list[int]()
    monkeypatch.setattr(
        "spool.format.version_1.read_at", lambda fd, n, at: (read.append(n), os.pread(fd, n, at))[1]
    )
    monkeypatch.setattr("spool.format.scan.find_frame", lambda *_: pytest.fail("a digest was made"))
    scan = Scan(fd, tail_at_start(decode_header(chain.data(), "")))
    assert [chunk.frames[:, 0].tolist() for chunk in scan.all()] == [[chain.offsets[0]]]
    os.close(fd)
    assert sum(read) < 2 * len(data)


def test_links_that_turn_in_a_circle_end(tmp_path: Path) -> None:
    """Heads that link to one another do not stop the search."""
    path = tmp_path / "segment"
    chain = old_segment(path, 4, [], sealed=True)
    data = bytearray(path.read_bytes())
    last = chain.offsets[3]
    data[last + 56 : last + 64] = data[last : last + 8]
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    links = Links(fd, chain.offsets[0], len(data))
    assert list(links.behind(chain.offsets[1])) == [chain.offsets[2], last]
    assert np.all(np.diff(list(links.behind(chain.offsets[0]))) > 0)
    os.close(fd)


def test_every_frame_that_names_a_damaged_one_is_found(tmp_path: Path) -> None:
    """Wherever it is in what is read at a time: at its beginning, at its end, in the last bytes of all."""
    path, digest = tmp_path / "segment", b"a digest"
    places = [4096 + 8, 8136, 8200, 40_000, (1 << 16) - HEAD_BYTES]
    data = bytearray(1 << 16)
    data[4096 : 4096 + 8] = digest
    for at in places:
        data[at + 8 : at + 12] = OLD_KEYS.mark.to_bytes(4, "little")
        data[at + 12 : at + 14] = HEAD_BYTES.to_bytes(2, "little")
        data[at + 56 : at + 64] = digest
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    assert list(Links(fd, 4096, len(data)).behind(4096)) == places
    os.close(fd)


@pytest.mark.parametrize("sealed", [False, True])
def test_damage_in_every_place_costs_what_it_has_bytes(tmp_path: Path, *, sealed: bool) -> None:
    """With every second frame damaged: eight times as many take no more than some eight times as long."""

    def seconds(frames: int) -> float:
        path = tmp_path / "segment"
        chain = old_segment(path, frames, list(range(0, frames, 2)), sealed=sealed, size=4 << 20)
        fd = os.open(path, os.O_RDONLY)
        try:
            links, taken = Links(fd, chain.offsets[0], path.stat().st_size), list[float]()
            for _ in range(3):
                began = time.process_time()
                for offset, following in itertools.pairwise(chain.offsets):
                    assert next(links.behind(offset)) == following
                taken.append(time.process_time() - began)
        finally:
            os.close(fd)
        return min(taken)

    assert seconds(16_000) < 16 * seconds(2_000)
