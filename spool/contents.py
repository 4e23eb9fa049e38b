"""What the frames of a segment hold, as its footer tells it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spool.decode import topic_number
from spool.format import HEAD_BYTES, MARK, MARK_BYTES, PIDS, UIDS, Record, encode_footer
from spool.frame import BURST, DIGEST, DISCARDED, POSITION, STORED, Tail, holds_datagrams
from spool.kernel import address_of, kernel, load_u8, load_u16, load_u32
from spool.record import Topics
from spool.scan import Chunk, digest_address
from spool.wire import load_be16, load_be64

_NOTHING = (0, np.iinfo(np.int64).max, np.iinfo(np.int64).min)
"""Counted of a topic before its first message."""


@kernel
def _count(
    base: int,
    frames: npt.NDArray[np.int64],
    start: npt.NDArray[np.int64],
    slots: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    seed: int,
    digest: int,
) -> int:
    """Count the messages of `frames` from frame start[0], message start[1] on; stop at an unknown topic.

    Returns the offset of that topic's length field, or -1 when all are counted. `start` is moved, so that the
    caller adds the topic and calls again. Offset 0 of the segment would lie at `base`; `counts` has a row for
    each topic in `slots`. Of a frame that holds anything but well-formed datagrams nothing is counted.
    """
    for f in range(start[0], frames.shape[0]):
        at = base + frames[f, 0]
        flags, count = load_u16(at + 14), load_u32(at + 16)
        if start[1] == 0:
            start[2] = frames[f, 0] + HEAD_BYTES + 4 * count * (1 + (flags & UIDS) + ((flags & PIDS) >> 1))
            if not holds_datagrams(at):
                continue
        for i in range(start[1], count):
            length = load_u32(at + HEAD_BYTES + 4 * i)
            topic = start[2] + 10 + 4 * load_u8(base + start[2] + 5)  # 1 where it has a partition key
            topic_bytes = load_be16(base + topic)
            number = topic_number(base + topic + 2, topic_bytes, slots, seed, digest)
            if number < 0:
                start[0], start[1] = f, i
                return topic
            timestamp = load_be64(base + topic + 2 + topic_bytes)
            counts[number, 0] += 1
            counts[number, 1] = min(counts[number, 1], timestamp)
            counts[number, 2] = max(counts[number, 2], timestamp)
            start[2] += length
        start[1] = 0
    return -1


@kernel
def _mark(frames: npt.NDArray[np.int64], least: int, apart: int, rows: npt.NDArray[np.int64]) -> int:
    """Every frame that lies `apart` bytes behind the one marked last, the first at or behind offset `least`.

    Their rows go to `rows`, which has room for all; how many there are is returned.
    """
    marked = 0
    for row in range(frames.shape[0]):
        if frames[row, 0] >= least:
            rows[marked] = row
            marked += 1
            least = frames[row, 0] + apart
    return marked


class Contents:
    """Gathered chunk by chunk, in order."""

    def __init__(self) -> None:
        self._marks: list[npt.NDArray[np.int64]] = []
        """int64[n, 3] each: offset, first sequence, time of reception of frames that are marked."""
        self._least = 0
        """Where the next mark may lie."""
        self._topics = Topics()
        self._counts = np.zeros((0, 3), np.int64)
        """int64[topics, 3]: messages, first and last timestamp."""
        self._received = (0, 0)

    def add(self, chunk: Chunk) -> None:
        """Take in a run of good frames."""
        frames, start = chunk.frames, np.zeros(3, np.int64)
        self._received = self._received[0] or int(frames[0, 3]), int(frames[-1, 3])
        rows = np.empty(len(frames), np.int64)
        if marked := _mark(frames, self._least, MARK_BYTES, rows):
            self._marks.append(frames[rows[:marked]][:, [0, 1, 3]])
            self._least = int(self._marks[-1][-1, 0]) + MARK_BYTES
        base, topics = address_of(chunk.data) - chunk.offset, self._topics
        while (
            miss := _count(base, frames, start, topics.slots, self._counts, topics.seed, digest_address())
        ) >= 0:
            self._add_topic(chunk, miss - chunk.offset)

    def _add_topic(self, chunk: Chunk, at: int) -> None:
        """The one whose length field lies at place `at` of a chunk's data."""
        length = int.from_bytes(chunk.data[at : at + 2].tobytes(), "big")
        self._topics.add(chunk.data[at + 2 : at + 2 + length].tobytes())
        self._counts = np.append(self._counts, np.array([_NOTHING], np.int64), axis=0)

    def footer(self, header: Record, tail: Tail, next_sequence: int) -> bytes:
        """The footer of the segment with this header, `tail` being behind its last good frame."""
        fields = {
            "end": tail[POSITION],
            "count": tail[STORED] - header["stored"].astype(np.int64),
            "next_sequence": next_sequence,
            "digest": tail[DIGEST].astype(np.uint64),
            "burst": tail[BURST],
            "first_received_ns": self._received[0],
            "last_received_ns": self._received[1],
            "first_timestamp": self._counts[:, 1].min() if len(self._counts) else 0,
            "last_timestamp": self._counts[:, 2].max() if len(self._counts) else 0,
            "discarded": tail[DISCARDED:].astype(np.uint64) - header["discarded"],
        }
        rows = [
            (name, int(count), int(first), int(last))
            for name, (count, first, last) in zip(self._topics.names, self._counts, strict=True)
        ]
        marks = [tuple(row) for part in self._marks for row in part.tolist()]
        return encode_footer(fields, np.array(marks, MARK), rows)
