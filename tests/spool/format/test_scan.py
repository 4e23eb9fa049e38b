"""Reading a segment by pread: in chunks, over damage, never further than allowed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spool.format.contents import Contents
from spool.format.frame import BAD, BURST, END, POSITION, SEQUENCE, STORED, Tail, tail_at_start
from spool.format.scan import CHUNK_BYTES, FIRST_BYTES, READ_MESSAGES, Scan, find_frame, read_header
from spool.format.segment_format import HEAD_BYTES, HEADER_BYTES, decode_header
from spool.format.wire import encode
from tests.spool.memory import FIRST, Chain


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file for a segment."""
    return tmp_path / "segment"


@pytest.fixture
def opened(path: Path) -> Iterator[list[int]]:
    """Descriptors to close."""
    fds: list[int] = []
    yield fds
    for fd in fds:
        os.close(fd)


def scan_of(path: Path, data: bytes, opened: list[int], **options: int) -> Scan:
    """A scan over a file with these bytes."""
    path.write_bytes(data)
    opened.append(os.open(path, os.O_RDONLY))
    return Scan(opened[-1], tail_at_start(read_header(path)), **options)


def offsets(scan: Scan) -> list[int]:
    """The offsets of the frames that `all` gives."""
    return [int(offset) for chunk in scan.all() for offset in chunk.frames[:, 0]]


@pytest.mark.parametrize("chunk_bytes", [64, 100, 1000, 4096])
def test_frames_longer_than_the_buffer_are_read(path: Path, opened: list[int], chunk_bytes: int) -> None:
    """With a buffer of any size, every frame is seen once, in order."""
    chain = Chain(1 << 14)
    for i in range(10):
        chain.append([encode(b"t", b"x" * 17 * i * i)] * 2, {}, (0, 0))
    scan = scan_of(path, chain.data(), opened, chunk_bytes=chunk_bytes)
    assert offsets(scan) == chain.offsets
    assert (scan.tail == chain.tail).all()
    assert scan.stopped == END


def test_the_buffer_shrinks_behind_a_large_frame(path: Path, opened: list[int]) -> None:
    """One large frame does not keep its memory for the life of the scan."""
    chain = Chain(4 << 20)
    chain.append([encode(b"t", b"v" * 60000)] * 50, {}, (0, 0))
    chain.append([encode(b"t", b"small")], {}, (0, 0))
    scan = scan_of(path, chain.data(), opened)
    assert scan.next() is not None
    assert len(scan._buffer) > CHUNK_BYTES
    while scan.next():
        continue
    assert len(scan._buffer) <= CHUNK_BYTES
    assert (scan.tail == chain.tail).all()


@pytest.mark.parametrize("lost", [[0], [2], [0, 1, 2], [1, 3], [4, 5], list(range(7))])
def test_damage_is_skipped_and_counted(path: Path, opened: list[int], lost: list[int]) -> None:
    """The scan goes over damaged frames to the next good one, and counts the missing messages."""
    chain = Chain.of(8)
    data = bytearray(chain.data())
    for i in lost:
        data[chain.offsets[i] + 70] ^= 0xFF
    scan = scan_of(path, bytes(data), opened)
    assert offsets(scan) == [o for i, o in enumerate(chain.offsets) if i not in lost]
    assert scan.tail[STORED] == 16
    assert scan.tail[SEQUENCE] == FIRST + 16


def test_zeroed_frames_are_damage_when_good_ones_follow(path: Path, opened: list[int]) -> None:
    """Zeros end the walk, but not a search: a lost page before a kept one hides nothing."""
    chain = Chain.of(4)
    data = bytearray(chain.data())
    data[chain.offsets[1] : chain.offsets[3]] = bytes(chain.offsets[3] - chain.offsets[1])
    scan = scan_of(path, bytes(data), opened)
    assert offsets(scan) == [chain.offsets[0], chain.offsets[3]]


def anywhere(chain: Chain) -> Tail:
    """A tail that lets every frame of the chain follow."""
    tail = chain.tail.copy()
    tail[POSITION] = 0
    return tail


def forged_frames(first: int, burst: int, **fields: object) -> bytes:
    """A frame of one message with these numbers, made by a sender that guesses all but the secret."""
    chain = Chain(4096, first, **fields)
    chain.tail[SEQUENCE], chain.tail[BURST] = FIRST + 1, burst - 1
    chain.append([encode(b"forged", b"")], {}, (0, 0))
    return chain.data()[HEADER_BYTES : int(chain.tail[POSITION])]


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("burst", [2, 3, 1 << 40, (1 << 62) - 1])
def test_a_forged_frame_inside_a_datagram_is_passed_over(
    path: Path, opened: list[int], burst: int, version: int, *, sealed: bool
) -> None:
    """A datagram that holds whole frames, whose numbers fit, does not lead a search astray.

    Their digests are right for version 1, for version 2 with another secret, and for another segment. In a
    segment of version 1 that has a footer, and where the damaged frame's digest is left, the search goes on.
    """
    secret = {"secret": b"own secret of 16"} if version > 1 else {}
    forged = b"".join(
        (
            forged_frames(FIRST, burst, version=1),
            forged_frames(FIRST, burst, secret=b"another of 16 by"),
            forged_frames(FIRST - 1, burst, **secret, version=version),
        )
    )
    chain = Chain(version=version, **secret)
    chain.append([encode(b"t", b"before")], {}, (0, 0))
    chain.append([encode(b"t", b"".join(bytes(shift) + forged for shift in range(8)))], {}, (0, 0))
    chain.append([encode(b"t", b"behind")], {}, (0, 0))
    end, data = int(chain.tail[POSITION]), bytearray(chain.data())
    data[chain.offsets[1] + 80] ^= 1
    if sealed:
        header = decode_header(chain.data(), "")
        data[end:] = Contents(0).footer(header, chain.tail, FIRST + 3)
        data[chain.offsets[1] : chain.offsets[1] + 8] = bytes(8)
    scan = scan_of(path, bytes(data), opened)
    assert offsets(scan) == [chain.offsets[0], chain.offsets[2]]


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_torn_off_version_1_is_not_searched(path: Path, opened: list[int], version: int) -> None:
    """With neither the damaged frame's digest nor a footer, true and forged frames of version 1 are alike."""
    chain = Chain(version=version)
    for i in range(3):
        chain.append([encode(b"t", b"%d" % i)], {}, (0, 0))
    data = bytearray(chain.data())
    data[chain.offsets[1] : chain.offsets[1] + 8] = bytes(8)
    scan = scan_of(path, bytes(data), opened)
    assert offsets(scan) == [o for i, o in enumerate(chain.offsets) if i == 0 or (i == 2 and version == 2)]


@settings(max_examples=30)
@given(position=st.integers(0, 3000), window=st.integers(HEAD_BYTES, 400))
def test_find_frame_finds_the_next_whatever_its_window(
    tmp_path_factory: pytest.TempPathFactory, position: int, window: int
) -> None:
    """The next good frame at or behind any position, with any window, or -1."""
    chain = Chain.of(12, value=b"x" * 60)
    path = tmp_path_factory.getbasetemp() / "found"
    path.write_bytes(chain.data())
    fd = os.open(path, os.O_RDONLY)
    found = find_frame(fd, position, len(chain.memory), anywhere(chain), window)
    os.close(fd)
    assert found == next((o for o in chain.offsets if o >= position), -1)


def test_a_claim_that_the_file_does_not_hold_ends_the_search(path: Path, opened: list[int]) -> None:
    """A head that claims more bytes than there are, in a file that shrank, is skipped, not awaited."""
    chain = Chain.of(3)
    path.write_bytes(chain.data()[: int(chain.tail[POSITION]) - 8])
    opened.append(os.open(path, os.O_RDONLY))
    assert find_frame(opened[0], chain.offsets[2], 1 << 20, anywhere(chain)) == -1
    assert find_frame(opened[0], chain.offsets[1] + 1, 1 << 20, anywhere(chain)) == -1


def test_absurd_lengths_cost_no_memory(path: Path, opened: list[int]) -> None:
    """A head that claims four gigabytes is BAD at once; the buffer does not grow for it."""
    chain = Chain.of(2)
    data = bytearray(chain.data())
    data[chain.offsets[1] + 24 : chain.offsets[1] + 28] = b"\xff" * 4
    scan = scan_of(path, bytes(data), opened)
    assert offsets(scan) == chain.offsets[:1]
    assert scan.stopped == BAD
    assert len(scan._buffer) <= CHUNK_BYTES


def test_the_first_frames_are_there_before_the_rest_is_read(path: Path, opened: list[int]) -> None:
    """Chunks begin small and double, up to CHUNK_BYTES: ten messages take no reading of thousands."""
    chain = Chain(6 << 20)
    for _ in range(100):
        chain.append([encode(b"t", b"v" * 1000)] * 50, {}, (0, 0))
    scan, sizes = scan_of(path, chain.data(), opened), []
    while scan.next():
        sizes.append(len(scan._buffer))
    assert sizes[0] == FIRST_BYTES
    assert all(after in (before, 2 * before) for before, after in itertools.pairwise(sizes))
    assert max(sizes) == CHUNK_BYTES
    assert (scan.tail == chain.tail).all()


def test_small_messages_make_small_chunks(path: Path, opened: list[int]) -> None:
    """However small messages are, a chunk holds few enough for their columns to stay in the cache."""
    chain = Chain(4 << 20)
    for _ in range(160):
        chain.append([encode(b"t", b"")] * 500, {}, (0, 0))
    scan = scan_of(path, chain.data(), opened)
    counts = [int(chunk.frames[:, 2].sum()) for chunk in iter(scan.next, None)]
    assert sum(counts) == 80_000
    assert READ_MESSAGES / 2 < max(counts) <= READ_MESSAGES
    assert (scan.tail == chain.tail).all()


def test_the_kernel_is_told_of_who_reads_on(
    path: Path, opened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, when chunks have their full size, up to the limit; not for a reader of a few messages."""
    chain, told = Chain(6 << 20), list[tuple[int, int]]()
    for _ in range(100):
        chain.append([encode(b"t", b"v" * 1000)] * 50, {}, (0, 0))
    monkeypatch.setattr("spool.format.scan.read_ahead", lambda _, start, end: told.append((start, end)))
    scan = scan_of(path, chain.data(), opened)
    sizes = []
    while not told and (chunk := scan.next()):
        sizes.append(len(scan._buffer))
    assert sizes[0] == FIRST_BYTES
    assert sizes[-1] == CHUNK_BYTES
    assert chunk is not None
    assert told == [(chunk.offset, scan.limit)]
    while scan.next():
        pass
    assert len(told) == 1


def test_random_rot_never_stops_the_scan(path: Path, opened: list[int]) -> None:
    """Kilobytes of random bytes in the middle: every frame outside them is read."""
    chain, chance = Chain.of(14, value=b"x" * 30), np.random.default_rng(7)
    for _ in range(20):
        data = bytearray(chain.data())
        start = int(chance.integers(HEADER_BYTES, int(chain.tail[POSITION])))
        length = int(chance.integers(1, 1500))
        data[start : start + length] = chance.bytes(length)
        data = data[: len(chain.memory)]
        found = offsets(scan_of(path, bytes(data), opened))
        ends = [*chain.offsets[1:], int(chain.tail[POSITION])]
        untouched = [o for o, e in zip(chain.offsets, ends, strict=True) if e <= start or o >= start + length]
        assert [o for o in found if o in untouched] == untouched
