"""Quotas: the shared state tells the appender which topics have more undelivered than their share.

    page word QUOTAS        how many topics are over their quota; 0: the appender looks no further
              QUOTA_TOPICS  how many have one
              READ_POSITION of the deliverer: it has read so far, and knows what is open below
    from QUOTA_ROWS on, a row of 48 words for each topic:
        0 over: 1 or 0      1 since, ns      2 undelivered, bytes      3 quota, bytes      4 bytes of the name
        8 of the deliverer: messages open below READ_POSITION          16 the name

A topic is over its quota from the quota on, until it is a tenth below it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spool.errors import BadSpool, ReadFailed
from spool.format.batch import Topics, decode
from spool.format.frame import FRAME_COUNT, FRAME_FIRST, tail_at_start
from spool.format.scan import CHUNK_BYTES, Chunk, Scan, digest_address, read_header
from spool.index.log_end import read_footer
from spool.layout import Layout
from spool.options import over_quota
from spool.shared.state import QUOTA_ROW, Field, SharedState
from spool.storage.disk import open_to_read
from spool.words import clipped

log = logging.getLogger("bruce.keeper")

LOOK_S = 0.2
OVER, SINCE, BACKLOG, ALLOWED, NAME_BYTES, OPEN, NAME = 0, 1, 2, 3, 4, 8, 16


def row_at(number: int) -> int:
    """The word at which the row of a topic begins."""
    return int(Field.QUOTA_ROWS) + number * QUOTA_ROW


def publish_open(shared: SharedState, place: int, counts: npt.NDArray[np.int64]) -> None:
    """The deliverer's side: publish how many messages of each topic are open below the sequence `place`."""
    for number, count in enumerate(counts.tolist()):
        shared.words[row_at(number) + OPEN] = count
    shared.words[Field.READ_POSITION] = place


def is_over(words: npt.NDArray[np.int64], topic: bytes) -> bool:
    """Whether a topic is over its quota. `words`: those of the shared state."""
    if not words[Field.QUOTAS]:
        return False
    for number in range(int(words[Field.QUOTA_TOPICS])):
        row = words[row_at(number) :][:QUOTA_ROW]
        if row[OVER] and row[NAME_BYTES] == len(topic) and row[NAME:].tobytes()[: len(topic)] == topic:
            return True
    return False


class Quotas:
    """The keeper's side."""

    def __init__(
        self,
        layout: Layout,
        shared: SharedState,
        quotas: Mapping[bytes, float],
        max_bytes: int,
        *,
        look_s: float = LOOK_S,
    ) -> None:
        """`quotas`: by topic, a part of `max_bytes`. `look_s`: from one look to the next."""
        self._shared, self._names = shared, sorted(quotas)
        self._open_bytes = OpenBytes(layout, self._names) if quotas else None
        self._look_s, self._looked_at = look_s, 0.0
        words = shared.words
        words[[Field.QUOTAS, Field.QUOTA_TOPICS]] = 0
        for number, name in enumerate(self._names):
            row = words[row_at(number) :][:QUOTA_ROW]
            row[[OVER, BACKLOG]] = 0
            row[ALLOWED], row[NAME_BYTES] = int(quotas[name] * max_bytes), len(name)
            row[NAME:].view(np.uint8)[: len(name)] = np.frombuffer(name, np.uint8)
        words[Field.QUOTA_TOPICS] = len(self._names)

    def add(self, first: int, chunk: Chunk) -> None:
        """These frames were committed, of the segment that begins with sequence `first`."""
        if self._open_bytes:
            self._open_bytes.add(first, chunk)

    @property
    def looks(self) -> bool:
        """Whether any topic has a quota."""
        return self._open_bytes is not None

    def look(self) -> None:
        """Find out which topics are over their quota, and tell the appender."""
        if self._open_bytes is None or time.monotonic() - self._looked_at < self._look_s:
            return
        self._looked_at = time.monotonic()
        words = self._shared.words
        read_position, low_watermark = int(words[Field.READ_POSITION]), int(words[Field.LOW_WATERMARK])
        above, mean = self._open_bytes.above(low_watermark, max(read_position, low_watermark))
        over = 0
        for number, name in enumerate(self._names):
            row = words[row_at(number) :][:QUOTA_ROW]
            row[BACKLOG] = above[number] + row[OPEN] * mean[number]
            is_over = over_quota(int(row[BACKLOG]), int(row[ALLOWED]), before=bool(row[OVER]))
            if is_over != bool(row[OVER]):
                self._say(name, row, is_over=is_over)
            row[OVER] = is_over
            over += is_over
        words[Field.QUOTAS] = over

    def _say(self, name: bytes, row: npt.NDArray[np.int64], *, is_over: bool) -> None:
        shown = clipped(name.decode(errors="replace"))
        if is_over:
            row[SINCE] = time.time_ns()
            log.error("topic %s has used up its quota; new messages of it are discarded", shown)
        else:
            log.warning("topic %s has room again; new messages of it are accepted", shown)


LOOKS = 16
"""How many of the older segments to look into at a time."""

Counts = npt.NDArray[np.int64]


@dataclass(slots=True)
class Share:
    """One segment; columns int64[topics]."""

    first: int
    end: int
    """Sequences."""
    messages: Counts
    bytes: Counts


class OpenBytes:
    """Messages and bytes of the segments of one spool, by topic."""

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

        Frames that were counted already, and come again since their sync failed, are skipped.
        """
        share = self._shares.setdefault(first, Share(first, first, self._zeros(), self._zeros()))
        fresh = chunk.frames[chunk.frames[:, FRAME_FIRST] >= share.end]
        if not len(fresh):
            return
        messages, size = self._measure(Chunk(chunk.data, chunk.offset, fresh))
        share.messages += messages
        share.bytes += size
        share.end = int(fresh[-1, FRAME_FIRST] + fresh[-1, FRAME_COUNT])

    def above(self, low_watermark: int, place: int) -> tuple[Counts, Counts]:
        """(bytes of messages at or above `place`, mean bytes of a message), from `low_watermark` on."""
        for first in [f for f, share in self._shares.items() if share.end <= low_watermark and share.end > f]:
            del self._shares[first]
        self._look_back(low_watermark)
        messages, total, above = self._zeros(), self._zeros(), self._zeros()
        for share in self._shares.values():
            messages += share.messages
            total += share.bytes
            if share.end > place:
                part = (share.end - max(place, share.first)) / (share.end - share.first)
                above += (share.bytes * part).astype(np.int64)
        return above, total // np.maximum(messages, 1)

    def _look_back(self, low_watermark: int) -> None:
        """Look into some of the segments that existed before, the newest first."""
        for _ in range(LOOKS):
            if not self._unknown:
                return
            first = self._unknown.pop()
            if first in self._shares:
                continue
            share = self._estimate(first)
            if share and share.end > low_watermark:
                self._shares[first] = share

    def _estimate(self, first: int) -> Share | None:
        """Estimate the share of a sealed segment; None if it is gone, damaged, unreadable, or not sealed."""
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
        counts = {name: count for name, count, *_ in footer.topics}
        messages = np.array([counts.get(n, 0) for n in self._topics.names[: self._count]], np.int64)
        mean = np.full(self._count, int(footer.fields["end"]) / max(int(footer.fields["count"]), 1))
        if chunk:
            # A packed segment shows no frames: take the mean size of its messages.
            seen, size = self._measure(chunk)
            mean = np.where(seen > 0, size / np.maximum(seen, 1), mean)
        end = int(footer.fields["next_sequence"])
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
