"""What the frames of a segment hold, as its footer tells it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spool.decode import decode
from spool.format import MARK, MARK_BYTES, Record, encode_footer
from spool.frame import BURST, DIGEST, DISCARDED, POSITION, STORED, Tail
from spool.record import Topics
from spool.scan import Chunk, digest_address


class Contents:
    """Gathered chunk by chunk, in order."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, int, int]] = []
        self._topics = Topics()
        self._counts = np.zeros((0, 3), np.int64)
        """int64[topics, 3]: messages, first and last timestamp."""
        self._received = (0, 0)

    def add(self, chunk: Chunk) -> None:
        """Take in a run of good frames."""
        self._mark(chunk.frames)
        self._received = self._received[0] or int(chunk.frames[0, 3]), int(chunk.frames[-1, 3])
        batch = decode(chunk.data, chunk.offset, chunk.frames, self._topics, digest_address())
        self._count(batch.topic, batch.timestamp)

    def _mark(self, frames: npt.NDArray[np.int64]) -> None:
        """Every frame that lies MARK_BYTES behind the one marked last."""
        offsets = frames[:, 0]
        at = int(offsets.searchsorted(self._marks[-1][0] + MARK_BYTES)) if self._marks else 0
        while at < len(frames):
            offset, sequence, _, received, _ = frames[at].tolist()
            self._marks.append((offset, sequence, received))
            at = int(offsets.searchsorted(offset + MARK_BYTES))

    def _count(self, topic: npt.NDArray[np.int32], timestamp: npt.NDArray[np.int64]) -> None:
        topics, limits = len(self._topics.names), np.iinfo(np.int64)
        grown = np.tile(np.array([0, limits.max, limits.min], np.int64), (topics, 1))
        grown[: len(self._counts)] = self._counts
        grown[:, 0] += np.bincount(topic, minlength=topics)
        np.minimum.at(grown[:, 1], topic, timestamp)
        np.maximum.at(grown[:, 2], topic, timestamp)
        self._counts = grown

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
        return encode_footer(fields, np.array(self._marks, MARK), rows)
