"""The contents of a segment's frames, counted and listed for its footer."""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

from spool.format.block_sums import BlockSums
from spool.format.frame import (
    BURST,
    DIGEST,
    DISCARDED,
    FRAME_AT,
    FRAME_FIRST,
    FRAME_RECEIVED,
    POSITION,
    STORED,
    Frames,
    Tail,
    holds_datagrams,
)
from spool.format.scan import Chunk, digest_address
from spool.format.segment_format import (
    COUNT_AT,
    FLAGS_AT,
    HEAD_BYTES,
    MARK,
    MARK_BYTES,
    MAX_TOPIC_BYTES,
    MAX_TOPICS,
    PIDS,
    TOPIC_BYTES,
    UIDS,
    UNLISTED,
    Record,
    encode_footer,
    topic_room,
)
from spool.format.topic_table import home_bit
from spool.format.wire import TOPIC_SIZE_BYTES, load_be16, load_be64, topic_at
from spool.native.kernel import kernel
from spool.native.memory import Address, call, load_u8, load_u16, load_u32

_COUNT, _FIRST, _LAST, _AT, _BYTES = range(5)
"""Of a topic: messages, first and last timestamp, and where its name is among the names."""
_OTHERS = 0
"""The row of all topics that are not listed."""


@kernel
def _count(
    base: Address,
    frames: Frames,
    slots: npt.NDArray[np.int64],
    homes: npt.NDArray[np.uint8],
    counts: npt.NDArray[np.int64],
    names: npt.NDArray[np.uint8],
    used: npt.NDArray[np.int64],
    seed: int,
    digest: int,
) -> int:
    """Count the messages of `frames` by topic. Offset 0 of the segment would be at `base`.

    `frames` int64[n, ROW]. `slots` int64[a power of two, at least twice the rows of `counts`, 2]: digest and
    row of a topic, row 0: free; `homes` uint8[slots]: as in a topic table. `counts` int64[rows, 5]; `names`
    uint8[bytes]. `used` int64[2]: rows of `counts` and bytes of `names` that are taken; a topic without room
    in these, and every new one after it, counts with the others. A frame that holds anything but well-formed
    datagrams is not counted; returns the first of these, or -1.
    """
    malformed = -1
    mask = slots.shape[0] - 1
    for f in range(frames.shape[0]):
        at = Address(base + frames[f, FRAME_AT])
        if not holds_datagrams(at):
            malformed = f if malformed < 0 else malformed
            continue
        flags, count = load_u16(at + FLAGS_AT), load_u32(at + COUNT_AT)
        datagram = at + HEAD_BYTES + 4 * count * (1 + (flags & UIDS) + ((flags & PIDS) >> 1))
        for i in range(count):
            topic = topic_at(Address(datagram))
            size = load_be16(topic)
            name = topic + TOPIC_SIZE_BYTES
            hashed = call(digest, name, size, seed)
            home, bit, row = hashed & mask, home_bit(hashed), 0
            if homes[home] & bit != 0:
                slot = home
                while slots[slot, 1] != 0 and slots[slot, 0] != hashed:
                    slot = (slot + 1) & mask
                row = slots[slot, 1]
            timestamp = load_be64(Address(name + size))
            fits = used[0] < counts.shape[0] and used[1] + size <= names.shape[0] - TOPIC_BYTES * used[0]
            if row == 0 and size <= MAX_TOPIC_BYTES and not fits:
                used[1] = names.shape[0]  # no later name fits, however short: the first names are listed
            elif row == 0 and size <= MAX_TOPIC_BYTES:
                row, slot = used[0], home
                while slots[slot, 1] != 0:
                    slot = (slot + 1) & mask
                slots[slot, 0], slots[slot, 1] = hashed, row
                homes[home] |= bit
                counts[row, _AT], counts[row, _BYTES] = used[1], size
                for byte in range(size):
                    names[used[1] + byte] = load_u8(name + byte)
                used[0], used[1] = row + 1, used[1] + size
            if counts[row, _COUNT] == 0:
                counts[row, _FIRST] = counts[row, _LAST] = timestamp
            counts[row, _COUNT] += 1
            counts[row, _FIRST] = min(counts[row, _FIRST], timestamp)
            counts[row, _LAST] = max(counts[row, _LAST], timestamp)
            datagram += load_u32(at + HEAD_BYTES + 4 * i)
    return malformed


@kernel
def _mark(frames: Frames, least: int, apart: int, rows: npt.NDArray[np.int64]) -> int:
    """Mark the first frame at or behind offset `least`, then the first one `apart` bytes after each mark.

    `frames` int64[n, ROW]. The marked rows go to `rows` int64[n]. Returns how many there are.
    """
    marked = 0
    for row in range(frames.shape[0]):
        if frames[row, FRAME_AT] >= least:
            rows[marked] = row
            marked += 1
            least = frames[row, FRAME_AT] + apart
    return marked


class Contents:
    """Gathered chunk by chunk, in order. Work is linear in the segment's bytes, memory has a bound."""

    def __init__(self, size: int, mark_bytes: int = MARK_BYTES) -> None:
        """For a segment of at most `size` bytes, with a mark every `mark_bytes`."""
        self._sums = BlockSums()
        self._mark_bytes = mark_bytes
        self._marks: list[npt.NDArray[np.int64]] = []
        """int64[n, 3] each: offset, first sequence, time of reception of frames that are marked."""
        self._least = 0
        """The lowest offset that the next mark may have."""
        room = topic_room(size)
        rows = 1 + min(MAX_TOPICS, room // TOPIC_BYTES)
        self._seed = secrets.randbits(63)
        capacity = 1 << (2 * rows).bit_length()
        self._slots, self._homes = np.zeros((capacity, 2), np.int64), np.zeros(capacity, np.uint8)
        self._counts = np.zeros((rows, 5), np.int64)
        """int64[rows, 5]: _COUNT, _FIRST, _LAST, _AT, _BYTES of a topic; row 0 is that of all others."""
        self._names = np.zeros(room, np.uint8)
        self._used = np.array([1, 0], np.int64)
        self._received = (0, 0)

    def add(self, chunk: Chunk) -> int:
        """Take in a run of good frames; the first that holds anything but well-formed datagrams, or -1."""
        frames = chunk.frames
        self._received = self._received[0] or int(frames[0, FRAME_RECEIVED]), int(frames[-1, FRAME_RECEIVED])
        rows = np.empty(len(frames), np.int64)
        if marked := _mark(frames, self._least, self._mark_bytes, rows):
            self._marks.append(frames[rows[:marked]][:, [FRAME_AT, FRAME_FIRST, FRAME_RECEIVED]])
            self._least = int(self._marks[-1][-1, 0]) + self._mark_bytes
        self._sums.add(chunk)
        counts, names, used = self._counts, self._names, self._used
        slots, homes = self._slots, self._homes
        return int(
            _count(chunk.base, frames, slots, homes, counts, names, used, self._seed, digest_address())
        )

    def _topics(self, room: int) -> list[tuple[bytes, int, int, int]]:
        """A row for each topic, by their first messages, in `room` bytes; then one of the rest."""
        rows = self._counts[: int(self._used[0])]
        taken = np.cumsum(TOPIC_BYTES + rows[1:, _BYTES])
        listed = 1 + int(np.searchsorted(taken, room - TOPIC_BYTES, side="right"))
        names = self._names.tobytes()
        found = [
            (names[at : at + size], count, first, last)
            for count, first, last, at, size in rows[1:listed].tolist()
        ]
        others = np.concatenate((rows[:1], rows[listed:]))
        if len(others := others[others[:, _COUNT] > 0]):
            count, first, last = others[:, _COUNT].sum(), others[:, _FIRST].min(), others[:, _LAST].max()
            found.append((UNLISTED, int(count), int(first), int(last)))
        return found

    def footer(self, header: Record, tail: Tail, next_sequence: int) -> bytes:
        """The footer of the segment with this header, `tail` being behind its last good frame."""
        counted = self._counts[self._counts[:, _COUNT] > 0]
        fields = {
            "end": tail[POSITION],
            "count": tail[STORED] - header["stored"].astype(np.int64),
            "next_sequence": next_sequence,
            "digest": tail[DIGEST].astype(np.uint64),
            "burst": tail[BURST],
            "first_received_ns": self._received[0],
            "last_received_ns": self._received[1],
            "first_timestamp": counted[:, _FIRST].min() if len(counted) else 0,
            "last_timestamp": counted[:, _LAST].max() if len(counted) else 0,
            "discarded": tail[DISCARDED:].astype(np.uint64) - header["discarded"],
        }
        marks = [tuple(row) for part in self._marks for row in part.tolist()]
        topics = self._topics(topic_room(int(tail[POSITION])))
        sums = self._sums.rows(int(header["first_sequence"]))
        return encode_footer(header, fields, np.array(marks, MARK), topics, sums)
