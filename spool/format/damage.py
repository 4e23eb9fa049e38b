"""Damage: where a segment holds no good frame, found by one compiled loop, and how a repair marks it.

Damage may be in every place of a segment, so the loop calls no Python for a hole. A hole that ends behind the
bytes in memory, or that frames were cut out of, is left to the reader of the file (spool.format.scan).

A repair leaves a hole in place of bytes that hold no good frame:

    hole := magic:8s="brucegap" bytes:u64 messages:u64 check:u64 zeros

Little-endian. A hole begins where a frame could and takes `bytes` in all; `messages` are lost there, and
`check` is the xxh3 of the 24 bytes before it, seeded with the segment's key. Readers need not know of holes:
to them each is damage like any other, and they go on at the next good frame. A hole tells the next check and
the next repair that this loss is known.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from spool.format.frame import (
    BAD,
    BURST,
    DIGEST,
    END,
    FRAME_AT,
    FULL,
    KEY,
    LEAST_MESSAGE_BYTES,
    MARK,
    POSITION,
    SEQUENCE,
    STORED,
    Frames,
    Tail,
    find,
    follows,
    holds_datagrams,
    stopped_by,
    take,
    verify_by,
)
from spool.format.segment_format import BURST_AT, HEAD_BYTES, OLD_KEYS, PREVIOUS_AT, SEQUENCE_AT, unsigned
from spool.format.version_1 import Offsets, find_linked
from spool.native.digest import digest
from spool.native.kernel import kernel, subkernel
from spool.native.memory import Address, call, load_i64
from spool.storage.disk import read_at

MAGIC = b"brucegap"
_FIELDS = struct.Struct("<8sQQ")
HOLE_MARK_FIELDS = _FIELDS.size
"""Bytes before `check`."""
HOLE_MARK_BYTES = HOLE_MARK_FIELDS + 8
"""No hole is shorter."""
_MAGIC = int.from_bytes(MAGIC, "little")
_LENGTH_AT, _MESSAGES_AT, _CHECK_AT = 8, 16, HOLE_MARK_FIELDS
"""Offsets in a hole, for the compiled loop."""

HOLE = 6
"""int64 fields of a hole."""
AT, BEHIND, FIRST, MISSING, STRAY, KNOWN = range(HOLE)
"""Offsets [AT, BEHIND) without a good frame; the messages that are missing, from FIRST on; whether a frame
there is good by itself; whether a repair has marked the hole already."""

MOST_PLACES = 100
"""Most damaged places of a segment that are reported one by one; the others are reported as a sum."""
Holes = npt.NDArray[np.int64]
"""int64[n, HOLE]."""
Ranges = npt.NDArray[np.int64]
"""int64[n, 2]: (first sequence number, messages) of each."""
_MOST = (1 << 63) - 1


def ranges(*pairs: tuple[int, int]) -> Ranges:
    """The pairs that have messages."""
    listed = [(first, min(messages, _MOST)) for first, messages in pairs if messages > 0]
    return np.array(listed, np.int64).reshape(-1, 2)


@subkernel
def _is_marked(at: Address, room: int, length: int, messages: int, key: int, digest: int) -> bool:
    """Whether a hole of this length is at address `at`, of which `room` bytes may be read."""
    if room < HOLE_MARK_BYTES or load_i64(at) != _MAGIC or load_i64(at + _LENGTH_AT) != length:
        return False
    return load_i64(at + _MESSAGES_AT) == messages and load_i64(at + _CHECK_AT) == call(
        digest, at, HOLE_MARK_FIELDS, key
    )


@kernel
def walk_over(
    base: Address,
    limit: int,
    end: int,
    tail: Tail,
    table: Frames,
    holes: Holes,
    sure: int,
    zeros: bool,
    digest: int,
    linked: Offsets,
) -> tuple[int, int, int]:
    """Like frame.walk, but also over holes that begin below `sure`: (why it stopped, frames, holes).

    Bytes up to offset `limit` are in memory; the segment goes on up to `end`. `tail` int64[TAIL_FIELDS] moves
    along, `table` int64[rows, ROW] receives the frames. `holes` int64[rows of `table`,
    HOLE] receives those that were passed over, each with good frames behind it. `zeros`: zeros may be damage,
    too; else they are the end. `linked` int64[n]: of a segment of version 1 (spool.format.version_1.Links).
    Each byte is searched once, so the work is linear in the bytes.
    """
    rows = passed = 0
    mark, key = tail[MARK], tail[KEY]
    while True:
        why = FULL
        # As frame.walk: with its tables passed on, a call for each hole costs more than the hole's search.
        while rows < table.shape[0]:
            at = Address(base + tail[POSITION])
            why = stopped_by(at, limit - tail[POSITION], mark, key, digest)
            if why < 0 and not follows(at, tail[DIGEST], tail[SEQUENCE], tail[BURST]):
                why = BAD
            if why >= 0:
                break
            take(at, tail, table, rows)
            rows += 1
            why = FULL
        position = tail[POSITION]
        if not (why == BAD or (why == END and zeros)) or position >= sure:
            return why, rows, passed
        at, room = Address(base + position), limit - position
        # If the chain goes on, the walk has just seen that the digest is wrong.
        stray = False
        if room < HEAD_BYTES or not follows(at, tail[DIGEST], tail[SEQUENCE], tail[BURST]):
            stray = verify_by(at, room, mark, key, digest) == 0
        if key == OLD_KEYS.key:
            found, whole = find_linked(base, position, limit, end, tail, linked, digest)
        else:
            found, whole = find(base, position if stray else position + 8, limit, end, tail, digest)
        if found < 0 or whole:
            return why, rows, passed
        missing = load_i64(base + found + SEQUENCE_AT) - tail[SEQUENCE]
        if missing > (found - position) // LEAST_MESSAGE_BYTES:
            return why, rows, passed
        holes[passed, AT] = position
        holes[passed, BEHIND] = found
        holes[passed, FIRST] = tail[SEQUENCE]
        holes[passed, MISSING] = missing
        holes[passed, STRAY] = stray
        holes[passed, KNOWN] = _is_marked(at, room, found - position, missing, key, digest)
        passed += 1
        tail[STORED] += missing
        tail[POSITION] = found
        tail[SEQUENCE] += missing
        tail[BURST] = load_i64(base + found + BURST_AT) - 1
        tail[DIGEST] = load_i64(base + found + PREVIOUS_AT)
        # The search has verified it: a walk would compute its digest again.
        take(Address(base + found), tail, table, rows)
        rows += 1


@kernel
def malformed(base: Address, frames: Frames) -> int:
    """The first of `frames` (rows of walk) that holds anything but well-formed datagrams; -1: none.

    `base` is the address at which offset 0 of the segment would be. `frames` int64[n, ROW]: they have been
    verified.
    """
    for row in range(frames.shape[0]):
        if not holds_datagrams(Address(base + frames[row, FRAME_AT])):
            return row
    return -1


def encode_hole(length: int, messages: int, key: int) -> bytes:
    """A hole of `length` bytes in the segment with this key, with so many messages lost."""
    fields = _FIELDS.pack(MAGIC, length, messages)
    return (fields + digest(fields, unsigned(key)).to_bytes(8, "little")).ljust(length, b"\0")


def read_hole(fd: int, offset: int, key: int) -> tuple[int, int] | None:
    """(bytes, messages) of the hole at an offset of the segment with this key; None if none begins there."""
    data = read_at(fd, HOLE_MARK_BYTES, offset)
    fields, check = data[:HOLE_MARK_FIELDS], data[HOLE_MARK_FIELDS:]
    if not data.startswith(MAGIC) or digest(fields, unsigned(key)).to_bytes(8, "little") != check:
        return None
    _, length, messages = _FIELDS.unpack(fields)
    return length, messages
