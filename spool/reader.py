"""Reading the log in order: committed messages as batches, across segments, over damage.

A reader goes no further than it is told to, and never faster than the disk: what is not committed could
be gone after a power loss, and must not have been seen by Kafka.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from spool.catalogue import Catalogue, SegmentInfo
from spool.decode import decode
from spool.disk import read_at
from spool.format import HEAD, HEAD_BYTES, HEADER_BYTES, MARK_BYTES, decode_header
from spool.frame import BURST, DIGEST, POSITION, SEQUENCE, STORED, Tail, tail_at_start
from spool.live import read_footer
from spool.record import Batch, Topics
from spool.scan import Chunk, Scan, digest_address


@dataclass(frozen=True, slots=True)
class Damage:
    """Messages that are stored and cannot be read: sequences [first, end)."""

    first: int
    end: int


class Reader:
    """A position in the log. `next` returns what follows, up to the place given to `allow`."""

    def __init__(self, catalogue: Catalogue, topics: Topics) -> None:
        self.catalogue, self.topics = catalogue, topics
        self.damage: list[Damage] = []
        """Found since the caller last emptied it."""
        self.sequence = 0
        """Everything below was returned, or is damaged."""
        self._limit = (0, 0)
        self._info: SegmentInfo | None = None
        self._scan: Scan | None = None
        self._end, self._sealed = 0, False
        self._inside: frozenset[bytes] | None = None
        """The topics in this segment, once somebody asked and it had a footer."""

    def allow(self, number: int, position: int) -> None:
        """Read up to this committed place: segment number and offset."""
        self._limit = (number, position)

    @property
    def position(self) -> tuple[int, int]:
        """Segment number and offset of what comes next; (0, 0) before the first segment was opened."""
        if self._info is None or self._scan is None:
            return 0, 0
        return self._info.number, int(self._scan.tail[POSITION])

    def seek(self, sequence: int) -> None:
        """Go to the frame that holds `sequence`, or to the first behind it."""
        self.catalogue.refresh()
        segments = self.catalogue.segments
        info = segments[self.catalogue.at(sequence)] if segments else None
        if info and self._info and info.number == self._info.number and not self._is_renewed(info):
            # To unpack a segment takes long.
            self._go_to(sequence)
            self.sequence = sequence
            return
        self._close()
        self.sequence = sequence
        self._open_near()

    def next(self) -> Batch | None:
        """Messages from `sequence` on, valid until the next call; None when no more are committed."""
        while True:
            if self._scan is None and not self._open_near():
                return None
            assert self._scan is not None
            self._scan.limit = self._readable()
            chunk = self._scan.next()
            if chunk is None:
                if not self._go_on():
                    return None
                continue
            self._remember(chunk)
            first, count = chunk.frames[-1, 1:3].tolist()
            # Frames of nothing but discards hold no message.
            if first + count <= self.sequence or not chunk.frames[:, 2].any():
                continue
            batch = decode(chunk.data, chunk.offset, chunk.frames, self.topics, digest_address())
            skip = int(np.searchsorted(batch.sequence, self.sequence))
            self.sequence = int(batch.sequence[-1]) + 1
            return batch.after(skip)

    def pass_over(self, topics: Collection[bytes]) -> bool:
        """Go to the next segment when this one is sealed and holds nothing but these topics; whether it did.

        Damage in it is not noticed.
        """
        if self._info is None or self._scan is None or self._info.number >= self._limit[0]:
            return False
        if self._inside is None and (footer := read_footer(self._scan.fd)):
            if self.catalogue.leads_on(self._info, footer):
                self._inside = frozenset(name for name, *_ in footer[2])
        if self._inside is None or not self._inside.issubset(topics):
            return False
        following = self._following(self._info)
        if following is None:
            return False
        self._open(following, following.first_sequence)
        self.sequence = max(self.sequence, following.first_sequence)
        return True

    def _readable(self) -> int:
        """How far this segment may be read."""
        assert self._info is not None
        if self._info.number == self._limit[0]:
            return min(self._limit[1], self._end)
        return self._end if self._info.number < self._limit[0] else 0

    def _go_on(self) -> bool:
        """At the end of what is good: over damage, or into the next segment; False at the limit."""
        assert self._info is not None
        assert self._scan is not None
        tail = self._scan.tail
        expected = int(tail[SEQUENCE])
        if int(tail[POSITION]) < self._readable():
            if self._is_renewed(self._info):
                self._open(self._info, self.sequence)
                return True
            if self._scan.skip() is not None:
                self._note_damage(expected, int(tail[SEQUENCE]))
                return True
        if self._info.number >= self._limit[0]:
            return False
        following = self._following(self._info)
        if following is None:
            return False
        missing = following.stored - int(tail[STORED])
        try:
            self._open(following, following.first_sequence)
        except FileNotFoundError:
            return self._on_where_the_log_begins()
        # A header that was mended counts no message that could not be read then: by it more are missing.
        self._note_damage(expected, min(expected + missing, following.first_sequence))
        self.sequence = max(self.sequence, following.first_sequence)
        return True

    def _on_where_the_log_begins(self) -> bool:
        """What follows was delivered or given up, and removed while we looked; False at the end."""
        return self._open_near()

    def _is_renewed(self, info: SegmentInfo) -> bool:
        """Whether another file has taken the segment's name, because a sync of this one had failed."""
        try:
            return self._file(info) != self._opened
        except FileNotFoundError:
            return False

    def _file(self, info: SegmentInfo) -> tuple[int, int]:
        """Which file has the name of a segment."""
        fd = self.catalogue.open_file(info)
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
        return status.st_dev, status.st_ino

    def _note_damage(self, first: int, end: int) -> None:
        """Messages [first, end) are missing; those below `sequence` are nobody's concern."""
        first = max(first, self.sequence)
        if end > first:
            self.damage.append(Damage(first, end))
            self.sequence = end

    def _following(self, info: SegmentInfo) -> SegmentInfo | None:
        for _ in range(2):
            for candidate in self.catalogue.segments:
                if candidate.number > info.number:
                    return candidate
            self.catalogue.refresh()
        return None

    def _open_near(self) -> bool:
        """Open the segment that holds `sequence`, or the oldest behind it; False in an empty spool."""
        while True:
            self.catalogue.refresh()
            if not self.catalogue.segments:
                return False
            info = self.catalogue.segments[self.catalogue.at(self.sequence)]
            # Each time that it is gone already there is one less.
            with contextlib.suppress(FileNotFoundError):
                self._open(info, self.sequence)
                return True

    def _open(self, info: SegmentInfo, sequence: int) -> None:
        """Open a segment near `sequence`. Raises FileNotFoundError when it was removed."""
        self._close()
        self._opened = self._file(info)
        fd = self.catalogue.open(info)
        self._header = decode_header(read_at(fd, HEADER_BYTES, 0), info.first_sequence)
        self._info, self._scan = info, Scan(fd, tail_at_start(self._header))
        self._go_to(sequence)

    def _go_to(self, sequence: int) -> None:
        """Stand near `sequence` in the segment that is open."""
        assert self._info is not None
        assert self._scan is not None
        info, fd = self._info, self._scan.fd
        self._scan = Scan(fd, tail_at_start(self._header))
        footer = read_footer(fd)
        self._end = int(footer[0]["end"]) if footer else os.fstat(fd).st_size
        self._sealed, self._inside = footer is not None, None
        marks = self.catalogue.entries.get(info.number, [])
        if footer:
            self.catalogue.entries.pop(info.number, None)
            marks = footer[1][["first_sequence", "offset"]].tolist()
        at = bisect.bisect_right(marks, sequence, key=lambda mark: mark[0]) - 1
        if at >= 0 and marks[at][1] > int(self._scan.tail[POSITION]):
            self._enter(marks[at][1])

    def _remember(self, chunk: Chunk) -> None:
        """Note where a segment without a footer can be entered, so that nobody need read all of it again."""
        assert self._info is not None
        if self._sealed:
            return
        offset, sequence = chunk.frames[0, :2].tolist()
        entries = self.catalogue.entries.setdefault(self._info.number, [])
        if not entries or (offset >= entries[-1][1] + MARK_BYTES and sequence > entries[-1][0]):
            entries.append((sequence, offset))

    def _enter(self, offset: int) -> None:
        """Go on at the frame at `offset`, taking its own word for what comes before it."""
        assert self._scan is not None
        head = np.frombuffer(read_at(self._scan.fd, HEAD_BYTES, offset), HEAD)[0]
        before: Tail = self._scan.tail
        before[STORED] += int(head["first_sequence"]) - int(before[SEQUENCE])
        before[POSITION], before[SEQUENCE] = offset, head["first_sequence"]
        before[BURST], before[DIGEST] = int(head["burst"]) - 1, head["previous"].astype(np.int64)

    def _close(self) -> None:
        if self._scan is not None:
            os.close(self._scan.fd)
        self._scan = self._info = None

    def close(self) -> None:
        """Let go of the segment."""
        self._close()
