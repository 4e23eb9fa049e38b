"""Reading the log in order: committed messages as batches, across segments, over damage.

A reader goes no further than it is told to, and never faster than the disk: what is not committed could
be gone after a power loss, and must not have been seen by Kafka.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import time
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from spool.catalogue import RETRY_S, Catalogue, SegmentInfo
from spool.decode import decode
from spool.disk import read_at
from spool.errors import ReadFailed
from spool.format import HEAD, HEAD_BYTES, HEADER_BYTES, MARK_BYTES, decode_header
from spool.frame import BURST, DIGEST, POSITION, SEQUENCE, STORED, Tail, tail_at_start
from spool.live import EPOCH, Footer, read_footer
from spool.record import Batch, Topics
from spool.row import UNTOLD
from spool.scan import Chunk, Scan, digest_address


@dataclass(frozen=True, slots=True)
class Damage:
    """Messages that are stored and cannot be read: sequences [first, end)."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Unread:
    """Messages that the disk does not give at present: sequences [first, end), none of them lost.

    Where the log goes on behind them is not known yet when these are none.
    """

    first: int
    end: int
    error: ReadFailed


class Reader:
    """A position in the log. `next` returns what follows, up to the place given to `allow`.

    What the disk gives an error for is passed by, up to where a frame can be entered again: an index mark of
    the same segment, or the next segment. Whoever has to come back for it finds it in `unread`.
    """

    def __init__(self, catalogue: Catalogue, topics: Topics) -> None:
        self.catalogue, self.topics = catalogue, topics
        self.damage: list[Damage] = []
        """Found since the caller last emptied it."""
        self.unread: dict[int, Unread] = {}
        """By first sequence: passed by since the caller last emptied it."""
        self.sequence = 0
        """Everything below was returned, is damaged, or was passed by."""
        self._limit = (0, 0)
        self._info: SegmentInfo | None = None
        self._scan: Scan | None = None
        self._marks: list[tuple[int, int]] = []
        """(first sequence, offset) of frames of this segment to enter at, in order."""
        self._end, self._sealed = 0, False
        self._failed, self._retry_at = 0, 0.0
        """Marks that could not be entered, one after the other; when the segment in use is tried again."""
        self._rest: Chunk | None = None
        """Of the chunk that was read last, what is behind damage."""
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
        is_open = info and self._scan and self._info and info.number == self._info.number
        if info and is_open and not self._is_renewed(info):
            # To unpack a segment takes long.
            self._go_to(sequence)
            self.sequence = sequence
            return
        self._close()
        self.sequence, self._retry_at = sequence, 0.0
        with contextlib.suppress(ReadFailed):
            self._open_near()

    def next(self) -> Batch | None:
        """Messages from `sequence` on, valid until the next call; None when no more are committed."""
        while True:
            try:
                chunk = self._next_chunk()
            except ReadFailed as error:
                if not self._pass_by(error):
                    return None
                continue
            if chunk is None:
                return None
            self._failed = 0
            self._remember(chunk)
            first, count = chunk.frames[-1, 1:3].tolist()
            # Frames of nothing but discards hold no message.
            if first + count <= self.sequence or not chunk.frames[:, 2].any():
                continue
            batch = decode(chunk.data, chunk.offset, chunk.frames, self.topics, digest_address())
            if len(batch) < int(chunk.frames[:, 2].sum()):
                if not (before := self._cut(chunk, batch)):
                    continue
                batch = decode(chunk.data, chunk.offset, chunk.frames[:before], self.topics, digest_address())
            skip = int(np.searchsorted(batch.sequence, self.sequence))
            self.sequence = int(batch.sequence[-1]) + 1
            return batch.after(skip)

    def _next_chunk(self) -> Chunk | None:
        """Good frames; None when no more are committed. Raises ReadFailed."""
        if time.monotonic() < self._retry_at:
            return None
        while True:
            if self._scan is None and not self._open_near():
                return None
            assert self._scan is not None
            self._scan.limit = self._readable()
            chunk, self._rest = self._rest or self._scan.next(), None
            if chunk is not None or not self._go_on():
                return chunk

    def _pass_by(self, error: ReadFailed) -> bool:
        """Go on behind what the disk gives an error for; False where nobody can tell yet where that is."""
        info = self._info
        assert info is not None
        first = max(self.sequence, info.first_sequence)
        if self._scan is not None and self._enter_behind():
            self._note_unread(first, int(self._scan.tail[SEQUENCE]), error)
            return True
        following = self._following(info) if info.number < self._limit[0] else None
        if following is None:
            # The segment in use: with its footer it will say where it can be entered.
            self.unread[first] = Unread(first, first, error)
            self._retry_at = time.monotonic() + RETRY_S
            self._close()
            return False
        count = self.catalogue.most(info)
        if count >= EPOCH and not (count := max(0, following.stored - info.stored)):
            self.unread[first] = Unread(first, first, error)
        self._note_unread(first, min(info.first_sequence + count, following.first_sequence), error)
        self.sequence = max(self.sequence, following.first_sequence)
        self._close()
        return True

    def _enter_behind(self) -> bool:
        """Enter the segment at a mark whose frame begins as the mark says; False without one.

        Each that cannot be entered doubles the step: a disk may take seconds for each error.
        """
        assert self._scan is not None
        stands = int(self._scan.tail[POSITION])
        behind = [mark for mark in self._marks if mark[1] > stands]
        while 1 << self._failed <= len(behind):
            sequence, offset = behind[(1 << self._failed) - 1]
            self._failed += 1
            with contextlib.suppress(ReadFailed):
                self._enter(offset)
                if self._scan.tail[SEQUENCE] == sequence:
                    return True
        return False

    def _note_unread(self, first: int, end: int, error: ReadFailed) -> None:
        """Messages [first, end) were passed by; what lies right behind others is one with them."""
        if end <= first:
            return
        before = next((one for one in self.unread.values() if one.end == first), None)
        if before and before.error.filename == error.filename:
            first = before.first
        self.unread[first] = Unread(first, end, error)
        self.sequence = max(self.sequence, end)

    def _cut(self, chunk: Chunk, batch: Batch) -> int:
        """At the first frame with a right digest and no datagrams: how many before it are to be returned.

        With none of them left, its messages are damaged. What is behind it is for the next call.
        """
        held = np.isin(chunk.frames[:, 1], batch.sequence) | (chunk.frames[:, 2] == 0)
        bad = int(held.argmin())
        first, count = chunk.frames[bad, 1:3].tolist()
        before = bad if (batch.sequence[: batch.sequence.searchsorted(first)] >= self.sequence).any() else 0
        self._rest = Chunk(chunk.data, chunk.offset, chunk.frames[bad if before else bad + 1 :])
        if not before:
            self._note_damage(first, first + count)
        if not len(self._rest.frames):
            self._rest = None
        return before

    def pass_over(self, topics: Collection[bytes]) -> bool:
        """Go to the next segment when this one is sealed and holds nothing but these topics; whether it did.

        Damage in it is not noticed.
        """
        if self._info is None or self._scan is None or self._info.number >= self._limit[0]:
            return False
        if self._inside is None and (footer := _footer_of(self._scan.fd)):
            if self.catalogue.leads_on(self._info, footer):
                self._inside = frozenset(name for name, *_ in footer[2])
        if self._inside is None or not self._inside.issubset(topics):
            return False
        following = self._following(self._info)
        if following is None:
            return False
        self.sequence = max(self.sequence, following.first_sequence)
        with contextlib.suppress(ReadFailed):
            self._open(following, following.first_sequence)
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
        missing = following.stored - int(tail[STORED]) if following.identity != UNTOLD else 0
        try:
            failed = self._try_to_open(following)
        except FileNotFoundError:
            return self._on_where_the_log_begins()
        # A header that was mended counts no message that could not be read then: by it more are missing.
        self._note_damage(expected, min(expected + missing, following.first_sequence))
        self.sequence = max(self.sequence, following.first_sequence)
        if failed:
            raise failed
        return True

    def _try_to_open(self, info: SegmentInfo) -> ReadFailed | None:
        """Open a segment at its start, or say why the disk does not give it. Raises FileNotFoundError."""
        try:
            self._open(info, info.first_sequence)
        except ReadFailed as error:
            return error
        return None

    def _on_where_the_log_begins(self) -> bool:
        """What follows was delivered or given up, and removed while we looked; False at the end."""
        return self._open_near()

    def _is_renewed(self, info: SegmentInfo) -> bool:
        """Whether another file has taken the segment's name, because a sync of this one had failed."""
        try:
            return self._file(info) != self._opened
        except (FileNotFoundError, ReadFailed):
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
        """Open a segment near `sequence`. Raises FileNotFoundError when it was removed.

        Raises ReadFailed, with nothing open but `_info` saying what it was.
        """
        self._close()
        self._opened = self._file(info)
        self._info = info
        fd = self.catalogue.open(info)
        try:
            self._header = decode_header(read_at(fd, HEADER_BYTES, 0), info.first_sequence)
        except BaseException:
            os.close(fd)
            raise
        self._scan = Scan(fd, tail_at_start(self._header))
        self._go_to(sequence)

    def _go_to(self, sequence: int) -> None:
        """Stand near `sequence` in the segment that is open."""
        assert self._info is not None
        assert self._scan is not None
        info, fd = self._info, self._scan.fd
        self._scan, self._rest = Scan(fd, tail_at_start(self._header)), None
        footer = _footer_of(fd)
        self._end = int(footer[0]["end"]) if footer else os.fstat(fd).st_size
        self._sealed, self._inside = footer is not None, None
        marks = self.catalogue.entries.get(info.number, [])
        if footer:
            self.catalogue.entries.pop(info.number, None)
            marks = footer[1][["first_sequence", "offset"]].tolist()
        self._marks, self._failed = marks, 0
        at = bisect.bisect_right(marks, sequence, key=lambda mark: mark[0]) - 1
        if at >= 0 and marks[at][1] > int(self._scan.tail[POSITION]):
            with contextlib.suppress(ReadFailed):
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
        self._scan = self._info = self._rest = None

    def close(self) -> None:
        """Let go of the segment."""
        self._close()


def _footer_of(fd: int) -> Footer | None:
    """As `read_footer`; none where the disk gives an error for it: the frames before it can be read."""
    with contextlib.suppress(ReadFailed):
        return read_footer(fd)
    return None
