"""Reading the log in order: committed messages as batches, across segments, over damage.

A reader stops at the committed end that it is given: messages behind it could be gone after a power loss, and
Kafka must not have seen them.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spool.errors import ReadFailed
from spool.format.batch import Batch, Topics, decode
from spool.format.frame import (
    BURST,
    DIGEST,
    FRAME_AT,
    FRAME_COUNT,
    FRAME_FIRST,
    POSITION,
    SEQUENCE,
    STORED,
    Tail,
    tail_at_start,
)
from spool.format.scan import CHUNK_BYTES, Chunk, Scan, digest_address
from spool.format.segment_format import HEAD, HEAD_BYTES, HEADER_BYTES, MARK_BYTES, Footer, decode_header
from spool.index.log_end import EPOCH, read_footer
from spool.index.segment_list import SegmentInfo, SegmentList
from spool.native.digest import UNTOLD
from spool.storage.disk import read_at


@dataclass(frozen=True, slots=True)
class Damage:
    """Messages that are stored and cannot be read: sequences [first, end)."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Unread:
    """Messages that the disk gives an error for at present: sequences [first, end), none of them lost.

    An empty range: it is not known yet where the log goes on behind them.
    """

    first: int
    end: int
    error: ReadFailed


class OpenSegment(NamedTuple):
    """The segment in which a reader is, for a compiled loop that reads on in it."""

    number: int
    fd: int
    tail: Tail
    """Of the frames that were read; the loop moves it."""
    end: int
    """How far the segment can go, in bytes."""
    entered: int
    """Offset of the last frame that is known as a place to enter at."""


class Reader:
    """A position in the log. `next` returns the messages behind it, up to the limit given to `allow`.

    The reader skips a range that the disk gives an error for, up to the next frame that can be entered: an
    index mark of the same segment, or the next segment. `take_unread` returns the skipped ranges, for a
    caller that comes back for them.
    """

    def __init__(self, segment_list: SegmentList, topics: Topics, chunk_bytes: int = CHUNK_BYTES) -> None:
        """`chunk_bytes`: read at a time; what `next` returns comes from one chunk."""
        self.segment_list, self.topics, self._chunk_bytes = segment_list, topics, chunk_bytes
        self._damage: list[Damage] = []
        """Found and not taken."""
        self._unread: dict[int, Unread] = {}
        """By first sequence: skipped and not taken."""
        self.sequence = 0
        """All messages below it were returned, are damaged, or were skipped."""
        self._limit = (0, 0)
        self._info: SegmentInfo | None = None
        self._scan: Scan | None = None
        self._marks: list[tuple[int, int]] = []
        """(first sequence, offset) of frames of this segment to enter at, in order."""
        self._end, self._sealed = 0, False
        self._failed, self._retry_at = 0, 0.0
        """How many marks in a row could not be entered; when to try the segment in use again."""
        self._rest: Chunk | None = None
        """The rest, behind damage, of the chunk that was read last."""
        self._inside: frozenset[bytes] | None = None
        """The topics in this segment, once they were asked for and it had a footer."""

    def take_damage(self) -> list[Damage]:
        """The damage found since the last call, in the order in which it was found."""
        damage, self._damage = self._damage, []
        return damage

    def take_unread(self) -> list[Unread]:
        """The ranges skipped since the last call, one for each first sequence."""
        unread, self._unread = self._unread, {}
        return list(unread.values())

    def allow(self, number: int, position: int) -> None:
        """Read up to this committed log position: segment number and offset."""
        self._limit = (number, position)

    @property
    def position(self) -> tuple[int, int]:
        """Segment number and offset of the next frame; (0, 0) before the first segment was opened."""
        if self._info is None or self._scan is None:
            return 0, 0
        if self._rest is not None:
            return self._info.number, int(self._rest.frames[0, FRAME_AT])
        return self._info.number, int(self._scan.tail[POSITION])

    def opened(self) -> OpenSegment | None:
        """The segment in use, to be read on by a loop, which says so by `read_on`.

        None without one, and while there is more to tell than good frames.
        """
        if self._info is None or self._scan is None or self._sealed or self._failed:
            return None
        if self._rest is not None or self._damage or self._unread:
            return None
        entries = self.segment_list.entries.get(self._info.number)
        entered = entries[-1][1] if entries else -MARK_BYTES
        return OpenSegment(self._info.number, self._scan.fd, self._scan.tail, self._end, entered)

    def read_on(self, sequence: int, entries: Iterable[tuple[int, int]]) -> None:
        """A loop has read all below `sequence`; `entries`: (first sequence, offset) of some of the frames."""
        assert self._info is not None
        self.sequence = sequence
        self.segment_list.entries.setdefault(self._info.number, []).extend(entries)

    def seek(self, sequence: int) -> None:
        """Go to the frame that holds `sequence`, or to the first behind it."""
        self.segment_list.refresh()
        segments = self.segment_list.segments
        info = segments[self.segment_list.at(sequence)] if segments else None
        is_open = info and self._scan and self._info and info.number == self._info.number
        if info and is_open and not self._is_renewed(info):
            # Unpacking a segment takes long.
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
            batch = self._decode(chunk)
            if len(batch):
                since, self.sequence = self.sequence, int(batch.sequence[-1]) + 1
                # Most often all of it is new.
                behind = int(batch.sequence[0]) >= since
                return batch if behind else batch.after(int(batch.sequence.searchsorted(since)))

    def _decode(self, chunk: Chunk) -> Batch:
        """The messages of a chunk; without any, if all of it is below `sequence`, or holds only discards."""
        first, count = chunk.frames[-1, [FRAME_FIRST, FRAME_COUNT]].tolist()
        frames = chunk.frames if first + count > self.sequence else chunk.frames[:0]
        batch = decode(chunk.data, chunk.offset, frames, self.topics, digest_address(), chunk.data_at)
        if len(batch) < (count if len(frames) == 1 else int(frames[:, FRAME_COUNT].sum())):
            frames = frames[: self._cut(chunk, batch)]
            batch = decode(chunk.data, chunk.offset, frames, self.topics, digest_address())
        return batch

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
        """Go on behind bytes that the disk gives an error for; False while it is not known where that is."""
        info = self._info
        assert info is not None
        first = max(self.sequence, info.first_sequence)
        if self._scan is not None and self._enter_behind():
            self._note_unread(first, int(self._scan.tail[SEQUENCE]), error)
            return True
        following = self._following(info) if info.number < self._limit[0] else None
        if following is None:
            # The segment in use: its footer will say where it can be entered.
            self._unread[first] = Unread(first, first, error)
            self._retry_at = time.monotonic() + self.segment_list.retry_s
            self._close()
            return False
        count = self.segment_list.most(info)
        if count >= EPOCH and not (count := max(0, following.stored - info.stored)):
            self._unread[first] = Unread(first, first, error)
        self._note_unread(first, min(info.first_sequence + count, following.first_sequence), error)
        self.sequence = max(self.sequence, following.first_sequence)
        self._close()
        return True

    def _enter_behind(self) -> bool:
        """Enter the segment at a mark whose frame begins as the mark says; False without one.

        Each mark that cannot be entered doubles the step: a disk may take seconds for each error.
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
        """Note that messages [first, end) were skipped; merge them with a range that ends at `first`."""
        if end <= first:
            return
        before = next((one for one in self._unread.values() if one.end == first), None)
        if before and before.error.filename == error.filename:
            first = before.first
        self._unread[first] = Unread(first, end, error)
        self.sequence = max(self.sequence, end)

    def _cut(self, chunk: Chunk, batch: Batch) -> int:
        """Cut a chunk at the first frame with a right digest and no datagrams; how many before it to return.

        With no frame before it, its messages are damaged. The frames behind it are for the next call.
        """
        held = np.isin(chunk.frames[:, FRAME_FIRST], batch.sequence) | (chunk.frames[:, FRAME_COUNT] == 0)
        bad = int(held.argmin())
        first, count = chunk.frames[bad, [FRAME_FIRST, FRAME_COUNT]].tolist()
        before = bad if (batch.sequence[: batch.sequence.searchsorted(first)] >= self.sequence).any() else 0
        self._rest = Chunk(chunk.data, chunk.offset, chunk.frames[bad if before else bad + 1 :])
        if not before:
            self._note_damage(first, first + count)
        if not len(self._rest.frames):
            self._rest = None
        return before

    def pass_over(self, topics: Collection[bytes]) -> bool:
        """Skip the rest of this segment if it is sealed and holds nothing but these topics; whether it did.

        Damage in it is not noticed.
        """
        if self._info is None or self._scan is None or self._info.number >= self._limit[0]:
            return False
        if self._inside is None and (footer := _footer_of(self._scan.fd)):
            if self.segment_list.leads_on(self._info, footer):
                self._inside = frozenset(name for name, *_ in footer.topics)
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
        """At the end of the good frames: go over damage, or into the next segment; False at the limit."""
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
        # A rewritten header does not count messages that were unreadable at the time: `missing` may be too
        # high.
        self._note_damage(expected, min(expected + missing, following.first_sequence))
        self.sequence = max(self.sequence, following.first_sequence)
        if failed:
            raise failed
        return True

    def _try_to_open(self, info: SegmentInfo) -> ReadFailed | None:
        """Open a segment at its start; return the error if the disk gives one. Raises FileNotFoundError."""
        try:
            self._open(info, info.first_sequence)
        except ReadFailed as error:
            return error
        return None

    def _on_where_the_log_begins(self) -> bool:
        """Go on at the oldest segment, since those before it were resolved and removed; False at the end."""
        return self._open_near()

    def _is_renewed(self, info: SegmentInfo) -> bool:
        """Whether another file has taken the segment's name, because a sync of this one had failed."""
        try:
            return self._file(info) != self._opened
        except (FileNotFoundError, ReadFailed):
            return False

    def _file(self, info: SegmentInfo) -> tuple[int, int]:
        """Device and inode of the file with the name of a segment."""
        fd = self.segment_list.open_file(info)
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
        return status.st_dev, status.st_ino

    def _note_damage(self, first: int, end: int) -> None:
        """Note that messages [first, end) are missing; those below `sequence` do not matter."""
        first = max(first, self.sequence)
        if end > first:
            self._damage.append(Damage(first, end))
            self.sequence = end

    def _following(self, info: SegmentInfo) -> SegmentInfo | None:
        for _ in range(2):
            for candidate in self.segment_list.segments:
                if candidate.number > info.number:
                    return candidate
            self.segment_list.refresh()
        return None

    def _open_near(self) -> bool:
        """Open the segment that holds `sequence`, or the oldest behind it; False in an empty spool."""
        while True:
            self.segment_list.refresh()
            if not self.segment_list.segments:
                return False
            info = self.segment_list.segments[self.segment_list.at(self.sequence)]
            # If it was removed already, there is one segment less each time.
            with contextlib.suppress(FileNotFoundError):
                self._open(info, self.sequence)
                return True

    def _open(self, info: SegmentInfo, sequence: int) -> None:
        """Open a segment near `sequence`. Raises FileNotFoundError when it was removed.

        Raises ReadFailed; then nothing is open, and `_info` is the segment that failed.
        """
        self._close()
        self._opened = self._file(info)
        self._info = info
        fd = self.segment_list.open(info)
        try:
            self._header = decode_header(read_at(fd, HEADER_BYTES, 0), info.first_sequence)
        except BaseException:
            os.close(fd)
            raise
        self._scan = Scan(fd, tail_at_start(self._header), chunk_bytes=self._chunk_bytes)
        self._go_to(sequence)

    def _go_to(self, sequence: int) -> None:
        """Go to a position near `sequence` in the open segment."""
        assert self._info is not None
        assert self._scan is not None
        info, fd = self._info, self._scan.fd
        self._scan, self._rest = Scan(fd, tail_at_start(self._header), chunk_bytes=self._chunk_bytes), None
        footer = _footer_of(fd)
        self._end = int(footer.fields["end"]) if footer else os.fstat(fd).st_size
        self._sealed, self._inside = footer is not None, None
        marks = self.segment_list.entries.get(info.number, [])
        if footer:
            self.segment_list.entries.pop(info.number, None)
            marks = footer.marks[["first_sequence", "offset"]].tolist()
        self._marks, self._failed = marks, 0
        at = bisect.bisect_right(marks, sequence, key=lambda mark: mark[0]) - 1
        if at >= 0 and marks[at][1] > int(self._scan.tail[POSITION]):
            with contextlib.suppress(ReadFailed):
                self._enter(marks[at][1])

    def _remember(self, chunk: Chunk) -> None:
        """Note where a segment without a footer can be entered: nothing has to be read twice."""
        assert self._info is not None
        if self._sealed:
            return
        offset, sequence = chunk.frames[0, [FRAME_AT, FRAME_FIRST]].tolist()
        entries = self.segment_list.entries.setdefault(self._info.number, [])
        if not entries or (offset >= entries[-1][1] + MARK_BYTES and sequence > entries[-1][0]):
            entries.append((sequence, offset))

    def _enter(self, offset: int) -> None:
        """Go on at the frame at `offset`, and trust its head for all that comes before it."""
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
        """Close the segment."""
        self._close()


def _footer_of(fd: int) -> Footer | None:
    """Like `read_footer`; None also when the disk gives an error: the frames before it can be read."""
    with contextlib.suppress(ReadFailed):
        return read_footer(fd)
    return None
