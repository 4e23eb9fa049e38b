"""Stored bytes to columns: the datagrams of a run of frames, parsed by one compiled loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spool.format import HEAD_BYTES, PIDS, UIDS
from spool.frame import LEAST_DATAGRAM_BYTES, ROW
from spool.kernel import address_of, kernel, load_i64, load_u8, load_u16, load_u32
from spool.record import Batch, Topics
from spool.topics import enter, topic_number
from spool.wire import load_be16, load_be32, load_be64

__all__ = ["decode", "topic_number"]

_NARROW = 6
"""int32 columns that `_fill` writes: topic, keyed, partition_key, key, value and datagram bytes."""
_WIDE = 6
"""int64 columns that `_fill` writes: sequence, timestamp, key_at, value_at, datagram_at, received_ns."""


@kernel
def _fill(
    base: int,
    frames: npt.NDArray[np.int64],
    start: npt.NDArray[np.int64],
    wide: npt.NDArray[np.int64],
    narrow: npt.NDArray[np.int32],
    senders: npt.NDArray[np.uint32],
    digest: int,
    slots: npt.NDArray[np.int64],
    seed: int,
    words: npt.NDArray[np.int64],
    names: npt.NDArray[np.int64],
    arena: npt.NDArray[np.uint8],
    arena_at: int,
    welcome: npt.NDArray[np.int64],
) -> bool:
    """Parse from frame start[0], message start[1], row start[2] on; a topic that is new is entered.

    False where that has no room (behind `digest`: spool.topics.Table). `start` is moved, so that the caller
    makes room and calls again. Offsets count from `base`. A right digest says that a frame is
    as it was written, not by whom: one that has no room for what its datagrams say they hold has no rows.
    """
    row = start[2]
    for f in range(start[0], frames.shape[0]):
        head = frames[f, 0]
        at = base + head
        flags, count = load_u16(at + 14), load_u32(at + 16)
        lengths = at + HEAD_BYTES
        columns = 1 + (flags & UIDS) + ((flags & PIDS) >> 1)
        room = head + HEAD_BYTES + load_u32(at + 24) - load_u32(at + 28)
        if start[1] == 0:
            start[3] = head + HEAD_BYTES + 4 * count * columns
        for i in range(start[1], count):
            datagram = start[3]
            length = load_u32(lengths + 4 * i)
            end = datagram + length
            if length < LEAST_DATAGRAM_BYTES or end > room:
                row -= i
                break
            keyed = load_u8(base + datagram + 5)
            topic = datagram + 10 + 4 * (keyed & 1)
            topic_bytes = load_be16(base + topic)
            field = topic + 2 + topic_bytes
            if keyed > 1 or topic_bytes < 1 or field + 16 > end:
                row -= i
                break
            key_bytes = load_be32(base + field + 8)
            if key_bytes < 0 or field + 16 + key_bytes > end:
                row -= i
                break
            value_bytes = load_be32(base + field + 12 + key_bytes)
            if field + 16 + key_bytes + value_bytes != end:
                row -= i
                break
            name = base + topic + 2
            # Most names are there, and each array that is passed on counts a reference.
            number = topic_number(name, topic_bytes, slots, seed, digest)
            if number < 0:
                number = enter(name, topic_bytes, digest, slots, seed, words, names, arena, arena_at, welcome)
            if number < 0:
                start[0], start[1], start[2] = f, i, row
                return False
            wide[0, row] = load_i64(at + 32) + i
            wide[1, row] = load_be64(base + field)
            wide[2, row] = field + 12
            wide[3, row] = field + 16 + key_bytes
            wide[4, row] = datagram
            wide[5, row] = load_i64(at + 48)
            narrow[0, row] = number
            narrow[1, row] = keyed
            narrow[2, row] = load_be32(base + datagram + 10) if keyed else 0
            narrow[3, row] = key_bytes
            narrow[4, row] = value_bytes
            narrow[5, row] = length
            if flags & UIDS:
                senders[0, row] = load_u32(lengths + 4 * (count + i))
            if flags & PIDS:
                senders[1, row] = load_u32(lengths + 4 * (count * (columns - 1) + i))
            start[3] = end
            row += 1
        start[1] = 0
    start[2] = row
    return True


def decode(
    data: npt.NDArray[np.uint8], offset: int, frames: npt.NDArray[Any], topics: Topics, digest: int
) -> Batch:
    """The messages of `frames` (int64[n, 5], as `walk` left them), whose bytes lie in `data`.

    `offset` is where in the segment `data` begins. `digest` is the digest function's address.
    Offsets in the result count from the start of `data`. The frames must have been verified; one that holds
    anything but whole datagrams has no messages in the result.
    """
    total = int(frames[:, 2].sum())
    wide, narrow = np.empty((_WIDE, total), np.int64), np.empty((_NARROW, total), np.int32)
    senders = np.zeros((2, total), np.uint32)
    rows = np.ascontiguousarray(frames).reshape(-1, ROW).copy()
    rows[:, 0] -= offset
    start = np.zeros(4, np.int64)
    while not _fill(address_of(data), rows, start, wide, narrow, senders, digest, *topics.table):
        topics.make_room()
    parsed = int(start[2])
    wide, narrow, senders = wide[:, :parsed], narrow[:, :parsed], senders[:, :parsed]
    return Batch(
        data=data,
        topics=topics,
        sequence=wide[0],
        topic=narrow[0],
        keyed=narrow[1].astype(np.bool_),
        partition_key=narrow[2],
        timestamp=wide[1],
        key_at=wide[2],
        key_bytes=narrow[3],
        value_at=wide[3],
        value_bytes=narrow[4],
        datagram_at=wide[4],
        datagram_bytes=narrow[5],
        received_ns=wide[5],
        uid=senders[0],
        pid=senders[1],
    )
