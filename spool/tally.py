"""How much of the topics with a quota lies in each segment: for their shares, not for the books.

What this keeper commits is counted frame by frame. Of segments from before its time the footer has the
counts by topic, and their first chunk shows how long a topic's messages are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spool.decode import decode
from spool.disk import open_to_read
from spool.errors import BadSpool, ReadFailed
from spool.frame import tail_at_start
from spool.layout import Layout
from spool.live import read_footer
from spool.record import Topics
from spool.scan import CHUNK_BYTES, Chunk, Scan, digest_address, read_header

LOOKS = 16
"""Segments from before that are looked into at a time."""

Counts = npt.NDArray[np.int64]


@dataclass(slots=True)
class Share:
    """One segment. Columns int64[topics]."""

    first: int
    end: int
    """Sequences."""
    messages: Counts
    bytes: Counts


class Tally:
    """By topic, messages and bytes of the segments of one spool."""

    def __init__(self, layout: Layout, names: Sequence[bytes]) -> None:
        self._layout, self._topics = layout, Topics()
        self._count = len(names)
        for name in names:
            self._topics.add(name)
        self._topics.close()
        self._shares: dict[int, Share] = {}
        """By first sequence."""
        self._unknown = [first for first, _ in layout.list_segments()]

    def add(self, first: int, chunk: Chunk) -> None:
        """Count a run of good frames of the segment that begins with sequence `first`.

        Those that were counted already, and come again since their sync failed, are passed over.
        """
        share = self._shares.setdefault(first, Share(first, first, self._zeros(), self._zeros()))
        fresh = chunk.frames[chunk.frames[:, 1] >= share.end]
        if not len(fresh):
            return
        messages, size = self._measure(Chunk(chunk.data, chunk.offset, fresh))
        share.messages += messages
        share.bytes += size
        share.end = int(fresh[-1, 1] + fresh[-1, 2])

    def above(self, floor: int, place: int) -> tuple[Counts, Counts]:
        """(bytes of messages at or above `place`, mean bytes of a message), of segments not below `floor`."""
        for first in [f for f, share in self._shares.items() if share.end <= floor and share.end > f]:
            del self._shares[first]
        self._look_back(floor)
        messages, total, above = self._zeros(), self._zeros(), self._zeros()
        for share in self._shares.values():
            messages += share.messages
            total += share.bytes
            if share.end > place:
                part = (share.end - max(place, share.first)) / (share.end - share.first)
                above += (share.bytes * part).astype(np.int64)
        return above, total // np.maximum(messages, 1)

    def _look_back(self, floor: int) -> None:
        """Look into some of the segments that were there before, the newest first."""
        for _ in range(LOOKS):
            if not self._unknown:
                return
            first = self._unknown.pop()
            if first in self._shares:
                continue
            share = self._estimate(first)
            if share and share.end > floor:
                self._shares[first] = share

    def _estimate(self, first: int) -> Share | None:
        """What a sealed segment holds; None when it is gone, damaged, unreadable, or not sealed."""
        try:
            header = read_header(path := self._layout.segment(first))
            fd = open_to_read(path)
        except (OSError, BadSpool):
            return None
        try:
            footer = read_footer(fd)
            chunk = Scan(fd, tail_at_start(header), first_bytes=CHUNK_BYTES).next() if footer else None
        except ReadFailed:
            return None
        finally:
            os.close(fd)
        if footer is None:
            return None
        counts = {name: count for name, count, *_ in footer[2]}
        messages = np.array([counts.get(n, 0) for n in self._topics.names[: self._count]], np.int64)
        mean = np.full(self._count, int(footer[0]["end"]) / max(int(footer[0]["count"]), 1))
        if chunk:
            # A packed segment shows no frames: what its messages take on average has to do.
            seen, size = self._measure(chunk)
            mean = np.where(seen > 0, size / np.maximum(seen, 1), mean)
        end = int(footer[0]["next_sequence"])
        return Share(first, end, messages, (messages * mean).astype(np.int64))

    def _measure(self, chunk: Chunk) -> tuple[Counts, Counts]:
        """(messages, bytes) by topic."""
        batch = decode(chunk.data, chunk.offset, chunk.frames, self._topics, digest_address())
        ours = batch.topic < self._count
        topic, size = batch.topic[ours], batch.datagram_bytes[ours]
        messages = np.bincount(topic, minlength=self._count).astype(np.int64)
        return messages, np.bincount(topic, weights=size, minlength=self._count).astype(np.int64)

    def _zeros(self) -> Counts:
        return np.zeros(self._count, np.int64)
