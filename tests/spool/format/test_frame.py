"""Frames in a chain: each is found whole, or not at all, and only in its place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from spool.format.frame import (
    BAD,
    BURST,
    CUT,
    DIGEST,
    DISCARDED,
    END,
    FULL,
    KEY,
    MARK,
    POSITION,
    ROW,
    SEQUENCE,
    STORED,
    Tail,
    tail_at_start,
    verify,
    walk,
)
from spool.format.scan import digest_address
from spool.format.segment_format import HEAD_BYTES, HEADER_BYTES, decode_header, encode_header, unsigned
from spool.format.wire import REASONS, encode
from spool.native.memory import address_of
from tests.spool import plain
from tests.spool.memory import FIRST, Chain
from tests.spool.strategies import datagrams

bursts = st.lists(
    st.tuples(
        st.lists(datagrams, max_size=4),
        st.dictionaries(
            st.integers(1, REASONS - 1), st.tuples(st.integers(1, 500), st.binary(max_size=300)), max_size=3
        ),
        st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    ),
    max_size=6,
)


def walk_all(data: bytes, limit: int | None = None, rows: int = 64) -> tuple[int, list[list[int]], Tail]:
    """(why it stopped, frame table, tail) of a walk over a segment's bytes."""
    memory, table = np.frombuffer(data, np.uint8).copy(), np.zeros((rows, ROW), np.int64)
    tail = tail_at_start(decode_header(data, "x"))
    why, found = walk(address_of(memory), limit or len(data), tail, table, digest_address())
    return why, table[:found].tolist(), tail


@given(bursts)
def test_what_is_finished_is_walked(given_bursts: list) -> None:
    """walk passes every finished frame, and its tail and table agree with the independent reader."""
    chain = Chain()
    for datagram_list, refused, sender in given_bursts:
        chain.append(datagram_list, refused, sender)
    why, table, tail = walk_all(chain.data())
    segment = plain.read_segment(chain.data())
    assert why == END
    assert table == [[f.offset, f.sequence, len(f.datagrams), f.received_ns, f.flags] for f in segment.frames]
    assert [d for f in segment.frames for d in f.datagrams] == [d for ds, _, _ in given_bursts for d in ds]
    assert tail[POSITION] == segment.end
    assert tail[SEQUENCE] == FIRST + tail[STORED] == FIRST + len(segment.messages())
    assert {r: n for r, n in enumerate(tail[DISCARDED:].tolist()) if n} == segment.refused()
    assert (tail == chain.tail).all()
    for frame, (_, refused, sender) in zip(segment.frames, given_bursts, strict=True):
        assert {(u, p) for u, p in zip(frame.uids, frame.pids, strict=True)} <= {sender}
        assert frame.rows == [(r, n, s[:256]) for r, (n, s) in refused.items()]


@pytest.mark.parametrize(
    ("head", "row", "counted"), [(5, 5, 5), (5, (1 << 32) - 1, 5), ((1 << 31) + 1, 5, None), (7, 5, 5)]
)
def test_no_count_of_discards_is_believed_without_bound(head: int, row: int, counted: int | None) -> None:
    """A right digest does not help: a row has no more than its frame, a frame no more than a burst may."""
    chain = Chain()
    before = chain.tail.copy()
    chain.append([encode(b"t", b"v")], {1: (row, b"")}, (0, 0))
    at = chain.offsets[0]
    body = int.from_bytes(chain.memory[at + 24 : at + 28].tobytes(), "little")
    chain.memory[at + 20 : at + 24] = list(head.to_bytes(4, "little"))
    seed = unsigned(int(before[DIGEST] ^ before[KEY]))
    value = xxh3_64_intdigest(chain.memory[at + 8 : at + HEAD_BYTES + body].tobytes(), seed)
    chain.memory[at : at + 8] = list(value.to_bytes(8, "little"))
    _, table, tail = walk_all(chain.data())
    assert len(table) == (counted is not None)
    assert int(tail[DISCARDED + 1] - before[DISCARDED + 1]) == (counted or 0)


def test_a_walk_goes_on_where_its_table_was_full() -> None:
    """A walk with room for one frame at a time sees the same frames."""
    chain = Chain.of(5)
    memory, table = np.frombuffer(chain.data(), np.uint8).copy(), np.zeros((1, ROW), np.int64)
    tail = tail_at_start(decode_header(chain.data(), "x"))
    seen = []
    while walk(address_of(memory), len(memory), tail, table, digest_address()) == (FULL, 1):
        seen.append(int(table[0, 0]))
    assert seen == chain.offsets


def test_a_limit_inside_the_last_frame_cuts_it() -> None:
    """A frame that goes on behind the limit is CUT, and nothing behind the limit is believed."""
    chain = Chain.of(3)
    for limit in range(chain.offsets[2], int(chain.tail[POSITION])):
        why, table, tail = walk_all(chain.data(), limit)
        assert (why, len(table)) == (CUT, 2)
        assert tail[POSITION] == chain.offsets[2]


def test_every_flipped_byte_ends_the_walk_before_it() -> None:
    """If any byte of a frame is changed, the walk stops before that frame and keeps those before it."""
    chain = Chain.of(4)
    data, end = chain.data(), int(chain.tail[POSITION])
    padding = {at for f in plain.read_segment(data).frames for at in chain.padding(f)}
    for at in range(HEADER_BYTES, end):
        changed = bytearray(data)
        changed[at] ^= 0x10
        _, table, _ = walk_all(bytes(changed))
        hit = sum(offset <= at for offset in chain.offsets) - 1
        assert len(table) == (4 if at in padding else hit), at


def test_a_missing_frame_breaks_the_chain() -> None:
    """If a frame is cut out and the rest moved up, the walk stops there."""
    chain = Chain.of(4, even=True)
    size = chain.offsets[1] - chain.offsets[0]
    data = chain.data()
    moved = data[: chain.offsets[1]] + data[chain.offsets[2] :] + bytes(size)
    why, table, _ = walk_all(moved)
    assert (why, len(table)) == (BAD, 1)


def test_swapped_frames_break_the_chain() -> None:
    """Two frames of the same length that have changed places do not pass."""
    chain = Chain.of(4, even=True)
    a, b, c = chain.offsets[1:4]
    data = chain.data()
    swapped = data[:a] + data[b:c] + data[a:b] + data[c:]
    why, table, _ = walk_all(swapped)
    assert (why, len(table)) == (BAD, 1)


def test_stale_frames_do_not_pass() -> None:
    """A good frame of an earlier use of these bytes, in its old place, does not continue the chain."""
    old, new = Chain.of(4, even=True), Chain.of(2, even=True, value=b"new")
    stale = new.data()[: int(new.tail[POSITION])] + old.data()[int(new.tail[POSITION]) :]
    why, table, _ = walk_all(stale)
    assert (why, len(table)) == (BAD, 2)


def test_the_first_frame_is_bound_to_its_header() -> None:
    """Frames behind the header of another segment do not pass."""
    chain = Chain.of(2)
    other = encode_header(number=2, first_sequence=FIRST, previous=99) + chain.data()[HEADER_BYTES:]
    assert walk_all(other)[0] == BAD
    other = encode_header(number=2, first_sequence=FIRST + 1) + chain.data()[HEADER_BYTES:]
    assert walk_all(other)[0] == BAD
    other = encode_header(number=2, first_sequence=FIRST, burst=1) + chain.data()[HEADER_BYTES:]
    assert walk_all(other)[0] == BAD


@given(st.binary(min_size=HEAD_BYTES, max_size=300), st.integers(0, 300))
def test_random_bytes_are_no_frame(data: bytes, room: int) -> None:
    """No length in random bytes is believed: verify says CUT or BAD and reads nothing behind its room."""
    changed = bytearray(data)
    changed[8:14] = int(Chain().tail[MARK]).to_bytes(4, "little") + b"\x40\x00"
    for candidate in (data, bytes(changed)):
        memory = np.frombuffer(candidate, np.uint8).copy()
        assert verify(address_of(memory), min(room, len(memory)), Chain().tail, digest_address()) in (
            CUT,
            BAD,
        )


@pytest.mark.parametrize("at", [32, 40, 48])
def test_a_number_that_nobody_can_have_given(at: int) -> None:
    """A negative or huge sequence number or burst, or a negative time, is refused in spite of its digest."""
    chain = Chain.of(1)
    memory = chain.memory[chain.offsets[0] :].copy()
    frame = memory[: int(chain.tail[POSITION]) - chain.offsets[0]]

    def sign() -> None:
        body = int(frame[24:28].view(np.uint32)[0])
        signed = frame[8 : HEAD_BYTES + body].tobytes()
        seed = int(frame[56:64].view(np.uint64)[0]) ^ unsigned(int(chain.tail[KEY]))
        frame[:8].view(np.uint64)[0] = xxh3_64_intdigest(signed, seed)

    sign()
    assert verify(address_of(memory), len(frame), chain.tail, digest_address()) == END
    for number in (-5, 1 << 62) if at < 48 else (-5,):
        frame[at : at + 8].view(np.int64)[0] = number
        sign()
        assert verify(address_of(memory), len(frame), chain.tail, digest_address()) == BAD


def test_the_largest_frame_is_walked() -> None:
    """A burst of 512 datagrams of 64 KiB is a frame like any other."""
    chain = Chain(size=40 << 20)
    value = b"v" * (65536 - len(encode(b"t", b"")))
    chain.append([encode(b"t", value)] * 512, {1: (3, b"")}, (0, 0))
    chain.append([encode(b"t", b"small")], {}, (0, 0))
    memory, table = chain.memory, np.zeros((4, ROW), np.int64)
    tail = tail_at_start(decode_header(memory[:HEADER_BYTES].tobytes(), "x"))
    assert walk(address_of(memory), len(memory), tail, table, digest_address()) == (END, 2)
    assert (tail[BURST], tail[STORED], tail[DIGEST]) == (2, 513, chain.tail[DIGEST])
