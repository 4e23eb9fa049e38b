"""Frames as compiled loops see them: finish one, verify one, walk a chain of them, find the next.

The position in a log is a `Tail`: an int64 array that the kernels advance in place.

    tail[POSITION]    offset in the segment, behind the last good frame
    tail[SEQUENCE]    of the next message
    tail[BURST]       of the last frame
    tail[DIGEST]      of the last frame
    tail[STORED]      messages stored since the spool began
    tail[KEY]         of the segment (spool.format.segment_format.Keys)
    tail[MARK]        of the segment
    tail[DISCARDED:]  datagrams refused at intake since the spool began, by reason
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spool.format.segment_format import (
    BODY_BYTES_AT,
    BURST_AT,
    COUNT_AT,
    DISCARD_BYTES_AT,
    DISCARDED_AT,
    FLAGS_AT,
    HEAD_BYTES,
    HEAD_BYTES_AT,
    HEADER_BYTES,
    MARK_AT,
    MAX_BODY_BYTES,
    MAX_MESSAGES,
    PIDS,
    PREVIOUS_AT,
    RECEIVED_AT,
    ROW_COUNT_AT,
    ROW_HEAD_BYTES,
    ROW_REASON_AT,
    ROW_SIZE_AT,
    SEQUENCE_AT,
    UIDS,
    Record,
    keys_of,
)
from spool.format.wire import REASONS, REST_BYTES, TOPIC_AT, TOPIC_SIZE_BYTES, check_message
from spool.native.kernel import kernel, subkernel
from spool.native.memory import (
    Address,
    call,
    load_i64,
    load_u16,
    load_u32,
    publish_i64,
    store_i64,
    store_u16,
    store_u32,
)

POSITION, SEQUENCE, BURST, DIGEST, STORED, KEY, MARK, DISCARDED = range(8)
TAIL_FIELDS = DISCARDED + REASONS

END, FULL, CUT, BAD = range(4)
"""Why a walk stopped: zeros, the table is full, a frame goes on behind the limit, a frame does not verify."""

Tail = npt.NDArray[np.int64]
"""int64[TAIL_FIELDS]."""

FRAME_ROW = np.dtype(
    [("offset", "<i8"), ("first_sequence", "<i8"), ("count", "<i8"), ("received_ns", "<i8"), ("flags", "<i8")]
)
"""A row of a frame table, as `walk` fills it."""

ROW = len(FRAME_ROW.names or ())
"""int64 fields in a FRAME_ROW."""
FRAME_AT, FRAME_FIRST, FRAME_COUNT, FRAME_RECEIVED, FRAME_FLAGS = range(ROW)
"""The same as columns of a table int64[n, ROW]."""
Frames = npt.NDArray[np.int64]
"""int64[n, ROW], rows of FRAME_ROW."""

LEAST_DATAGRAM_BYTES = TOPIC_AT + TOPIC_SIZE_BYTES + 1 + REST_BYTES
"""The shortest well-formed datagram: a topic of one byte, no key and no value."""
LEAST_MESSAGE_BYTES = 12 + LEAST_DATAGRAM_BYTES
"""The shortest message in a frame: its columns and its datagram."""
_MOST = 1 << 62
"""Every number in a frame is below this."""
_MOST_DISCARDED = 1 << 31
"""Messages that one frame says were refused: more than any burst has, of batches on streams."""
_STRIDE = 64
"""Bytes that a search passes at once where the mark is nowhere."""
_MOST_BURSTS = 1 << 48
"""Bursts that the ledger may have taken between two frames: more than come in a century."""


def tail_at_start(header: Record) -> Tail:
    """The tail of an empty segment with this header."""
    tail = np.zeros(TAIL_FIELDS, np.int64)
    tail[POSITION] = HEADER_BYTES
    tail[SEQUENCE] = header["first_sequence"]
    tail[BURST] = header["burst"]
    tail[DIGEST] = header["previous"].astype(np.int64)
    tail[STORED] = header["stored"]
    tail[KEY], tail[MARK] = keys_of(header)
    tail[DISCARDED:] = header["discarded"].astype(np.int64)
    return tail


@kernel
def padded(length: int) -> int:
    """`length`, up to a multiple of 8."""
    return (length + 7) & ~7


@kernel
def finish(
    base: Address,
    tail: Tail,
    count: int,
    discarded: int,
    body_bytes: int,
    discard_bytes: int,
    flags: int,
    burst: int,
    received_ns: int,
    digest: int,
) -> None:
    """Write the head of the frame whose body is already behind `tail` int64[TAIL_FIELDS], and advance it.

    `base` is the address of the segment's first byte, `digest` of the digest function. The digest is
    stored last: a process that dies before has written no frame, one that dies after has written all of it.
    """
    at = Address(base + tail[POSITION])
    store_u32(at + MARK_AT, tail[MARK])
    store_u16(at + HEAD_BYTES_AT, HEAD_BYTES)
    store_u16(at + FLAGS_AT, flags)
    store_u32(at + COUNT_AT, count)
    store_u32(at + DISCARDED_AT, discarded)
    store_u32(at + BODY_BYTES_AT, body_bytes)
    store_u32(at + DISCARD_BYTES_AT, discard_bytes)
    store_i64(at + SEQUENCE_AT, tail[SEQUENCE])
    store_i64(at + BURST_AT, burst)
    store_i64(at + RECEIVED_AT, received_ns)
    store_i64(at + PREVIOUS_AT, tail[DIGEST])
    value = call(digest, at + MARK_AT, HEAD_BYTES - MARK_AT + body_bytes, tail[DIGEST] ^ tail[KEY])
    publish_i64(at, value)
    _advance(at, tail, value)


@subkernel
def _advance(at: Address, tail: Tail, value: int) -> None:
    """Move `tail` int64[TAIL_FIELDS] behind the good frame at address `at`, whose digest is `value`."""
    count, body_bytes, discard_bytes = (
        load_u32(at + COUNT_AT),
        load_u32(at + BODY_BYTES_AT),
        load_u32(at + DISCARD_BYTES_AT),
    )
    row = at + HEAD_BYTES + body_bytes - discard_bytes
    end = at + HEAD_BYTES + body_bytes
    left = load_u32(at + DISCARDED_AT)
    while row + ROW_HEAD_BYTES <= end:
        reason = load_u16(row + ROW_REASON_AT)
        if reason < REASONS:
            # The rows of a frame have no more together than its head says.
            discarded = min(load_u32(row + ROW_COUNT_AT), left)
            tail[DISCARDED + reason] += discarded
            left -= discarded
        row += ROW_HEAD_BYTES + load_u16(row + ROW_SIZE_AT)
    tail[POSITION] += HEAD_BYTES + padded(body_bytes)
    tail[SEQUENCE] += count
    tail[BURST] = load_i64(at + BURST_AT)
    tail[DIGEST] = value
    tail[STORED] += count


@subkernel
def verify(at: Address, room: int, tail: Tail, digest: int) -> int:
    """Whether a frame of the segment of `tail` is at address `at`, of which `room` bytes may be read.

    `tail` int64[TAIL_FIELDS]. Returns as `verify_by`.
    """
    return verify_by(at, room, tail[MARK], tail[KEY], digest)


@subkernel
def verify_by(at: Address, room: int, mark: int, key: int, digest: int) -> int:
    """Whether a frame with this mark and key is at address `at`, of which `room` bytes may be read.

    Returns 0, CUT or BAD. Every length is bounded before it is used, and every number before it is believed.
    The digest is checked with the frame's own `previous`; the caller compares that with the frame before it.
    With `digest` 0 the key is not known, and the digest is not checked. Loops over small frames call this:
    each array that is passed on costs a reference count, as much as half a digest.
    """
    if room < HEAD_BYTES:
        return CUT
    flags, count = load_u16(at + FLAGS_AT), load_u32(at + COUNT_AT)
    body_bytes, discard_bytes = load_u32(at + BODY_BYTES_AT), load_u32(at + DISCARD_BYTES_AT)
    if (
        load_u32(at + MARK_AT) != mark
        or load_u16(at + HEAD_BYTES_AT) != HEAD_BYTES
        or count > MAX_MESSAGES
        or load_u32(at + DISCARDED_AT) > _MOST_DISCARDED
    ):
        return BAD
    columns = 1 + (flags & UIDS) + ((flags & PIDS) >> 1)
    if 4 * count * columns + discard_bytes > body_bytes or body_bytes > MAX_BODY_BYTES:
        return BAD
    sequence, burst = load_i64(at + SEQUENCE_AT), load_i64(at + BURST_AT)
    if sequence < 0 or sequence >= _MOST or burst < 0 or burst >= _MOST or load_i64(at + RECEIVED_AT) < 0:
        return BAD
    if HEAD_BYTES + padded(body_bytes) > room:
        return CUT
    if digest != 0 and load_i64(at) != call(
        digest, at + MARK_AT, HEAD_BYTES - MARK_AT + body_bytes, load_i64(at + PREVIOUS_AT) ^ key
    ):
        return BAD
    return 0


@subkernel
def holds_datagrams(at: Address) -> bool:
    """Whether the good frame at address `at` holds well-formed datagrams, and nothing else."""
    flags, count = load_u16(at + FLAGS_AT), load_u32(at + COUNT_AT)
    lengths = at + HEAD_BYTES
    datagram = lengths + 4 * count * (1 + (flags & UIDS) + ((flags & PIDS) >> 1))
    end = lengths + load_u32(at + BODY_BYTES_AT) - load_u32(at + DISCARD_BYTES_AT)
    for i in range(count):
        length = load_u32(lengths + 4 * i)
        if length > end - datagram or check_message(Address(datagram), length) != 0:
            return False
        datagram += length
    return datagram == end


@subkernel
def walk(base: Address, limit: int, tail: Tail, table: Frames, digest: int) -> tuple[int, int]:
    """Advance `tail` over the good frames below offset `limit`: (why it stopped, frames passed).

    `base` is the address at which offset 0 of the segment would be; only [tail[POSITION], limit) is read.
    `tail` int64[TAIL_FIELDS]. `table` int64[rows, ROW] receives a FRAME_ROW a frame; the walk stops when it
    is full.
    """
    rows = 0
    while rows < table.shape[0]:
        at, room = Address(base + tail[POSITION]), limit - tail[POSITION]
        found = stopped_by(at, room, tail[MARK], tail[KEY], digest)
        if found < 0 and not follows(at, tail[DIGEST], tail[SEQUENCE], tail[BURST]):
            found = BAD
        if found >= 0:
            return found, rows
        take(at, tail, table, rows)
        rows += 1
    return FULL, rows


@subkernel
def stopped_by(at: Address, room: int, mark: int, key: int, digest: int) -> int:
    """Why a walk stops before the bytes at address `at`, of which `room` may be read; -1: a good frame.

    The caller knows whether the frame `follows`.
    """
    if room < COUNT_AT:
        return CUT
    if load_i64(at) == 0 and load_u32(at + MARK_AT) == 0:
        return END
    found = verify_by(at, room, mark, key, digest)
    return found if found != 0 else -1


@subkernel
def follows(at: Address, previous: int, sequence: int, burst: int) -> bool:
    """Whether the head at address `at` continues the chain behind the frame with this digest and burst."""
    if load_i64(at + PREVIOUS_AT) != previous or load_i64(at + SEQUENCE_AT) != sequence:
        return False
    return 0 < load_i64(at + BURST_AT) - burst <= _MOST_BURSTS


@subkernel
def take(at: Address, tail: Tail, table: Frames, row: int) -> None:
    """Note the verified frame at address `at` in `table` int64[rows, ROW], and move `tail` behind it."""
    table[row, FRAME_AT] = tail[POSITION]
    table[row, FRAME_FIRST] = tail[SEQUENCE]
    table[row, FRAME_COUNT] = load_u32(at + COUNT_AT)
    table[row, FRAME_RECEIVED] = load_i64(at + RECEIVED_AT)
    table[row, FRAME_FLAGS] = load_u16(at + FLAGS_AT)
    _advance(at, tail, load_i64(at))


@kernel
def find(base: Address, position: int, limit: int, end: int, after: Tail, digest: int) -> tuple[int, int]:
    """The next frame at or behind `position` that verifies by itself: (offset, 0); (-1, 0) without one.

    Bytes up to offset `limit` are in memory; the segment goes on up to `end`. (offset, bytes): a frame may
    begin there, but the memory does not hold these bytes of it. A frame that cannot be behind the tail
    `after` int64[TAIL_FIELDS] is passed over; with after[POSITION] = 0 every frame may be. Nothing but frames
    of the segment has its mark, so digests are computed for these alone, and the search is linear in the
    bytes.
    """
    position = padded(position)
    anywhere, mark, key = after[POSITION] == 0, after[MARK], after[KEY]
    sequence, burst, most, looked = after[SEQUENCE], after[BURST], end // LEAST_MESSAGE_BYTES, position
    while position + HEAD_BYTES <= limit:
        at = Address(base + position)
        if position >= looked and position + _STRIDE + HEAD_BYTES <= limit:
            marked = False
            for ahead in range(0, _STRIDE, 8):
                marked |= load_u32(at + ahead + MARK_AT) == mark
            if not marked:
                position += _STRIDE
                continue
            looked = position + _STRIDE
        if load_u32(at + MARK_AT) == mark and (anywhere or can_follow(at, most, sequence, burst)):
            found = verify_by(at, limit - position, mark, key, digest)
            if found == 0:
                return position, 0
            whole = HEAD_BYTES + padded(load_u32(at + BODY_BYTES_AT))
            if found == CUT and position + whole <= end:
                return position, whole
        position += 8
    return -1, 0


@subkernel
def can_follow(at: Address, most: int, sequence: int, burst: int) -> bool:
    """Whether the numbers of the frame at address `at` fit behind these, with frames between them missing.

    `most`: messages that can be missing.
    """
    missing = load_i64(at + SEQUENCE_AT) - sequence
    if missing < 0 or missing > most:
        return False
    return 0 < load_i64(at + BURST_AT) - burst <= _MOST_BURSTS


def length_of(head: Record) -> int:
    """Bytes that a frame with this head takes."""
    return HEAD_BYTES + (int(head["body_bytes"]) + 7 & ~7)


def skip_to(tail: Tail, offset: int, head: Record) -> int:
    """Move `tail` over damage to the frame at `offset` with this head; returns how many messages miss."""
    missing = int(head["first_sequence"]) - int(tail[SEQUENCE])
    tail[STORED] += missing
    tail[POSITION], tail[SEQUENCE] = offset, head["first_sequence"]
    tail[BURST], tail[DIGEST] = int(head["burst"]) - 1, head["previous"].astype(np.int64)
    return missing
