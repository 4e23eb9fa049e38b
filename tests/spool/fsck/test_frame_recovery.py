"""Frames are found in an image by themselves, and only those of these spools are verified."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from spool.format.frame import POSITION, length_of
from spool.format.scan import Chunk
from spool.format.segment import list_files
from spool.format.segment_format import HEAD, HEAD_BYTES, HEADER_BYTES, decode_header, keys_of
from spool.format.wire import encode
from spool.fsck.frame_recovery import Carver, Run
from spool.read.files import heads_of
from spool.storage.disk import read_at
from tests.spool.fixture import SpoolFixture
from tests.spool.memory import Chain

BLOCK = 4096


def carve(path: Path, *spools: Path) -> Iterator[tuple[Run, Chunk]]:
    """The frames found in an image, with the secrets of these spools."""
    carver = Carver(path, spools)
    try:
        yield from carver.runs()
    finally:
        carver.close()


def test_a_frame_of_a_sender_is_not_verified(tmp_path: Path) -> None:
    """Whole frames and a whole header in a message, found because the frame around them is damaged."""
    spool, forged = SpoolFixture(tmp_path / "spool"), Chain.of(2, first=4711)
    spool.append(
        [encode(b"t", bytes(shift) + forged.data()[: int(forged.tail[POSITION])]) for shift in range(8)]
    )
    spool.append([encode(b"t", b"mine")])
    spool.step()
    spool.crash()
    (path,) = list_files(spool.layout)
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 24] ^= 1
    image = tmp_path / "disk.img"
    image.write_bytes(bytes(BLOCK) + data)
    found = {(run.first_sequence, run.verified) for run, _ in carve(image, spool.layout.directory)}
    assert found == {(4711, False), (8, True)}


def test_an_image_that_begins_inside_a_message_is_not_verified(tmp_path: Path) -> None:
    """A fragment of a disk whose first bytes are a segment that a sender made, header and all."""
    forged = Chain.of(2, first=4711)
    image = tmp_path / "fragment.img"
    image.write_bytes(forged.data())
    assert [(run.first_sequence, run.verified) for run, _ in carve(image)] == [(4711, False)]


def test_many_long_claims_cost_no_more_than_the_image(tmp_path: Path) -> None:
    """Heads that claim the largest frames, end to end, are read a few times in all."""
    head = bytearray(HEAD_BYTES)
    head[12:14], head[16:20] = (64).to_bytes(2, "little"), (1).to_bytes(4, "little")
    head[24:28] = (2 << 20).to_bytes(4, "little")
    path = tmp_path / "disk.img"
    path.write_bytes(bytes(head) * ((4 << 20) // HEAD_BYTES))
    read = 0

    def counted(fd: int, length: int, offset: int) -> bytes:
        nonlocal read
        data = read_at(fd, length, offset)
        read += len(data)
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spool.fsck.frame_recovery.read_at", counted)
        assert list(carve(path)) == []
    assert read < 8 * path.stat().st_size


def test_parts_of_what_was_found(tmp_path: Path) -> None:
    """Pieces of a segment, in any order, that overlap and begin at any block: each frame counts once."""
    data = segment_of(tmp_path, 3000)
    chosen = random.Random(5)
    cuts = sorted(chosen.sample(range(len(data.rstrip(bytes(1))) // BLOCK), 6))
    pieces = [data[a * BLOCK : b * BLOCK] for a, b in itertools.combinations(cuts, 2)]
    chosen.shuffle(pieces)
    path = tmp_path / "disk.img"
    path.write_bytes(bytes(BLOCK).join(pieces))
    found = list[int]()
    for _, chunk in carve(path):
        found += heads_of(chunk)[1]["digest"].tolist() if len(chunk.frames) else []
    assert len(found) == len(set(found)) > 100
    mark = keys_of(decode_header(data, "")).mark.to_bytes(4, "little")
    seen = {int(digest) for piece in pieces for digest in whole_frames(piece, mark)}
    assert set(found) == seen


def whole_frames(piece: bytes, mark: bytes) -> list[int]:
    """Digests of the frames that are entirely in it."""
    found, at = [], piece.find(mark, 8)
    while 0 <= at <= len(piece) - HEAD_BYTES:
        head = np.frombuffer(piece, HEAD, 1, at - 8)[0]
        if at - 8 + length_of(head) <= len(piece):
            found.append(int(head["digest"]))
        at = piece.find(mark, at + 1)
    return found


@pytest.mark.long
def test_memory_on_a_large_image(tmp_path: Path) -> None:
    """Carving keeps little memory for each chunk of frames, and none for holes or single frames."""
    data = segment_of(tmp_path, 40_000)
    path = tmp_path / "disk.img"
    with path.open("wb") as image:
        for offset in (256 << 20, 768 << 20):
            image.seek(offset)
            image.write(data)
        image.truncate(1 << 30)
    runs, kept = dict[int, Run](), 0
    tracemalloc.start()
    try:
        for run, _ in carve(path):
            runs[run.offset] = run
            kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    one, other = runs.values()
    assert (one.frames, one.again, other.frames, other.again) == (40_000, 0, 0, 40_000)
    assert kept < 3 << 20


def segment_of(directory: Path, frames: int) -> bytes:
    """A segment with this many frames of one message."""
    spool = SpoolFixture(directory, segment_bytes=16 << 20, max_bytes=128 << 20)
    datagram = encode(b"t", b"value")
    for _ in range(frames):
        spool.writer.append([datagram])
    spool.step()
    spool.crash()
    (path,) = list_files(spool.layout)
    return path.read_bytes()
