"""The outcome of every message: the only writer of marks and offsets.

The hard place: outcomes come in any order, across partitions and brokers, and a restart must send again
exactly what is not resolved. So every message has two bits, by segment:

- *resolved*: acknowledged, or discarded with a reason. Written to `delivery/` every FEW_COMMIT_S; every
  COMMIT_S if FEW_MESSAGES are resolved by then, or a client waits; and in a burst every COMMIT_MESSAGES, as
  fast as the disk syncs. That and what is in flight is sent twice after a SIGKILL.
- *taken*: handed over to librdkafka and not yet reported. In memory only: after a restart nothing is.

Everything below the *low watermark* is resolved; its bits are dropped, and segments below it may go.

Rejected: acknowledging runs by their last message (an earlier one can have failed), and an offset for each
broker alone (a message routed to A moves with its partition to B, whose offset is past it).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from router.cluster.brokers import UNROUTED
from router.outcomes.trace import Trace
from router.timing import COMMIT_S, FEW_COMMIT_S, IDLE_S, WRITTEN_S
from spool.errors import MarksFailed
from spool.index.segment_list import SegmentInfo, SegmentList
from spool.marks.discarded import SAMPLE_BYTES, Changes, Discard, Sample
from spool.marks.marks import Marks
from spool.native.digest import CHUNK_BYTES, CHUNK_MESSAGES
from spool.native.kernel import kernel
from spool.shared.histogram import LATENCY_WORDS, add_latencies

log = logging.getLogger("bruce.router")

COMMIT_MESSAGES = 25_000
"""A backlog goes out so fast that the messages of COMMIT_S are more than a host takes in during seconds.

So many are the window of one broker: a SIGKILL has little more sent again than what was in flight.
"""
FEW_MESSAGES = 1_000
"""To write the marks costs as much for one message as for thousands: fewer wait for others."""
_NOTHING = int(np.iinfo(np.int64).max)

Bits = npt.NDArray[np.uint8]
Sequences = npt.NDArray[np.int64]


@kernel
def set_bits(bits: Bits, first: int, sequences: npt.NDArray[np.int64], dirty: npt.NDArray[np.uint8]) -> int:
    """Set a bit a sequence, counted from `first`; mark its chunk dirty. Returns how many were not set."""
    fresh = 0
    for i in range(len(sequences)):
        at = sequences[i] - first
        bit = np.uint8(1 << (at & 7))
        if not bits[at >> 3] & bit:
            bits[at >> 3] |= bit
            dirty[(at >> 3) // CHUNK_BYTES] = 1
            fresh += 1
    return fresh


@kernel
def clear_bits(bits: Bits, first: int, sequences: npt.NDArray[np.int64]) -> None:
    """Clear a bit a sequence, counted from `first`."""
    for i in range(len(sequences)):
        at = sequences[i] - first
        bits[at >> 3] &= np.uint8(~(1 << (at & 7)) & 0xFF)


@kernel
def mask_unset(
    one: Bits, other: Bits, first: int, sequences: npt.NDArray[np.int64], out: npt.NDArray[np.bool_]
) -> None:
    """Set `out` bool[n] where a sequence's bit is set in neither bitmap."""
    for i in range(len(sequences)):
        at = sequences[i] - first
        out[i] = ((one[at >> 3] | other[at >> 3]) >> (at & 7)) & 1 == 0


@kernel
def first_clear(bits: Bits, start: int) -> int:
    """The first bit at or behind `start` that is not set; the end of the bitmap if all are."""
    at = start
    end = max(at, 8 * len(bits))
    while at < end:
        if at & 7 == 0 and bits[at >> 3] == 0xFF:
            at += 8
        elif (bits[at >> 3] >> (at & 7)) & 1:
            at += 1
        else:
            return at
    return end


@kernel
def resolve_reports(
    reports: npt.NDArray[Any],
    first: int,
    bits: Bits,
    dirty: npt.NDArray[np.uint8],
    latency: npt.NDArray[np.int64],
    now_ns: int,
) -> int:
    """Set the bits of reports (dispatch.records.ROW[n]), and add their latencies; how many were not set.

    All are in `bits`, which begin with message `first`. Returns -1, and changes nothing, if one has an error.
    """
    for report in reports:
        if report.code != 0:
            return -1
    sequences, received_ns = np.empty(len(reports), np.int64), np.empty(len(reports), np.int64)
    for i in range(len(reports)):
        sequences[i], received_ns[i] = reports[i].sequence, reports[i].received_ns
    add_latencies(latency, received_ns, now_ns)
    return set_bits(bits, first, sequences, dirty)


class SegmentBits:
    """The bits of one segment's messages, in whole chunks, growing as its messages are seen."""

    def __init__(self, info: SegmentInfo) -> None:
        self.info = info
        self.resolved: Bits = np.zeros(CHUNK_BYTES, np.uint8)
        self.taken: Bits = np.zeros(CHUNK_BYTES, np.uint8)
        self.ahead: Bits = np.zeros(CHUNK_BYTES, np.uint8)
        """Marked, and not resolved yet."""
        self.dirty = np.zeros(1, np.uint8)
        """uint8[chunks]: 1 where the marks are behind."""

    def make_room(self, messages: int) -> None:
        """Have bits for so many messages."""
        chunks = -(-messages // (8 * CHUNK_BYTES))
        if chunks > len(self.dirty):
            more = max(chunks, 2 * len(self.dirty)) - len(self.dirty)
            self.resolved = np.pad(self.resolved, (0, more * CHUNK_BYTES))
            self.taken = np.pad(self.taken, (0, more * CHUNK_BYTES))
            self.ahead = np.pad(self.ahead, (0, more * CHUNK_BYTES))
            self.dirty = np.pad(self.dirty, (0, more))


def is_never_wanted() -> bool:
    """The default, when no client can wait for marks."""
    return False


class Pace(NamedTuple):
    """How often the marks are written."""

    few: int = FEW_MESSAGES
    burst: int = COMMIT_MESSAGES
    """So many messages are written down before their time."""
    is_wanted: Callable[[], bool] = is_never_wanted
    """Whether a client waits for marks, or did so a moment ago."""


PACE = Pace()


class NextWrite(NamedTuple):
    """When the marks are to be written next: times of the clock, in seconds."""

    look: float
    """Then there is something to do, even if no message more is resolved."""
    few: int
    """So many more messages resolved are many: for fewer it is `late`."""
    soon: float
    late: float


class Acks:
    """Outcomes, from librdkafka's reports to the marks."""

    def __init__(
        self,
        marks: Marks,
        segment_list: SegmentList,
        *,
        marks_first: bool = False,
        latency: npt.NDArray[np.int64] | None = None,
        pace: Pace = PACE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`marks` must have a segment list of their own: a thread writes them while this one is read.

        `marks_first`: messages are marked before they are sent, so that a crash never has them sent twice.
        `latency` int64[LATENCY_WORDS] (spool.shared.histogram): how long messages took is added to it.
        """
        self.marks_first = marks_first
        self._marks, self._segment_list, self._clock = marks, segment_list, clock
        self._writer = ThreadPoolExecutor(1, "marks")
        self._writing: tuple[Changes, Future[int]] | None = None
        self._segments: dict[int, SegmentBits] = {}
        self._discarded: list[Discard] = []
        self._samples: list[Sample] = []
        self.partitions = marks.partitions()
        """Topic -> (from sequence, partitions), in order: how many there were for which messages."""
        self.discarded = [row.topic for row in marks.discards()]
        """Topics in the marks' counts of discards, as they were at first."""
        self._grown: set[bytes] = set()
        self._committed_at = clock()
        self._changed = self._failing = False
        self._pace, self._unwritten = pace, 0
        """Messages resolved since the last write began."""
        self._in_write = 0
        """Of that write."""
        self._left_out = _NOTHING
        """The lowest that was left out."""
        self._delivered = self._given_up = 0
        self.latency = np.zeros(LATENCY_WORDS, np.int64) if latency is None else latency
        self._trace: Trace | None = None
        self.generation = marks.generation()
        """Of the marks that are durable: how often they were written."""
        self.progress = marks.progress()
        """The partition and offset of the last progress record, for the marks; None without one."""
        self.low_watermark, _ = marks.low_watermark()
        """Every message below it is resolved."""
        self.marked_watermark = self.low_watermark
        """Every message below it is resolved, and the marks say so."""
        for info, chunk, bitmap in marks.chunks():
            bits = self._bits(info, (chunk + 1) * 8 * CHUNK_BYTES)
            bits.resolved[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES] = bitmap
        # Marks that were made ahead came without a low watermark: it follows with the next write.
        self._changed = bool(self._segments)

    def _bits(self, info: SegmentInfo, messages: int) -> SegmentBits:
        bits = self._segments.get(info.first_sequence)
        if bits is None:
            bits = self._segments[info.first_sequence] = SegmentBits(info)
        # Its header may have become readable.
        bits.info = info
        bits.make_room(messages)
        return bits

    def _by_segment(
        self, sequences: npt.NDArray[np.int64]
    ) -> Iterable[tuple[SegmentBits, npt.NDArray[np.bool_] | slice]]:
        """(bits, which of `sequences`) for the segments they lie in."""
        if len(sequences) == 0:
            return
        low, high = int(sequences.min()), int(sequences.max())
        for at in range(self._segment_list.at(low), self._segment_list.at(high) + 1):
            info = self._segment_list.segments[at]
            last = at + 1 == len(self._segment_list.segments)
            end = high + 1 if last else self._segment_list.segments[at + 1].first_sequence
            if info.first_sequence <= low and high < end:
                yield self._bits(info, high - info.first_sequence + 1), slice(None)
                return
            which = (sequences >= info.first_sequence) & (sequences < end)
            if which.any():
                yield self._bits(info, int(sequences[which].max()) - info.first_sequence + 1), which

    def bits_of(self, first: int, last: int) -> SegmentBits | None:
        """The bits of messages [first, last]; None if not of one segment, or below the low watermark."""
        segments = self._segment_list.segments
        if first < self.low_watermark or not segments:
            return None
        info = segments[-1]
        if first < info.first_sequence:
            at = self._segment_list.at(first)
            info = segments[at]
            if not info.first_sequence <= first <= last < segments[at + 1].first_sequence:
                return None
        return self._bits(info, last - info.first_sequence + 1)

    @property
    def resolved(self) -> tuple[int, dict[int, Bits]]:
        """The low watermark, and above it the resolved bits by segment number, as they change."""
        return self.low_watermark, {bits.info.number: bits.resolved for bits in self._segments.values()}

    def resolved_above(self) -> int:
        """How many messages above the low watermark are resolved."""
        count = 0
        for first, bits in self._segments.items():
            start = max(0, self.low_watermark - first)
            rest = np.unpackbits(bits.resolved[start >> 3 :], bitorder="little")
            count += int(rest[start & 7 :].sum())
        return count

    def open(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which messages are neither resolved nor taken."""
        return self._without(sequences, taken_too=True)

    def _without(self, sequences: npt.NDArray[np.int64], *, taken_too: bool) -> npt.NDArray[np.bool_]:
        """Which messages are not resolved, or not taken either."""
        out = np.zeros(len(sequences), np.bool_)
        for bits, which in self._by_segment(sequences):
            part = np.empty(len(sequences[which]), np.bool_)
            other = bits.taken if taken_too else bits.resolved
            mask_unset(bits.resolved, other, bits.info.first_sequence, sequences[which], part)
            out[which] = part
        return out & (sequences >= self.low_watermark)

    def take(self, sequences: npt.NDArray[np.int64]) -> None:
        """These were handed over."""
        for bits, which in self._by_segment(sequences):
            set_bits(bits.taken, bits.info.first_sequence, sequences[which], np.zeros_like(bits.dirty))

    def leave_out(self, sequences: npt.NDArray[np.int64]) -> None:
        """These are not to be sent here; the next deliverer finds them open, as they were."""
        if len(still := sequences[self.open(sequences)]):
            self.take(still)
            self._left_out = min(self._left_out, int(still[0]))

    def give_back(self, sequences: npt.NDArray[np.int64]) -> None:
        """These failed, and are to be sent again."""
        for bits, which in self._by_segment(sequences):
            clear_bits(bits.taken, bits.info.first_sequence, sequences[which])

    def mark_ahead(self, sequences: npt.NDArray[np.int64]) -> bool:
        """Mark these before they are sent, and wait until that is durable; False when it cannot be.

        A crash then takes them for done with. Here they stay open.
        """
        for bits, which in self._by_segment(sequences):
            set_bits(bits.ahead, bits.info.first_sequence, sequences[which], bits.dirty)
        self.wait()
        # With the bit of a discarded message goes its reason, always.
        changes = Changes(discarded=self._discarded)
        self._discarded = []
        changes.chunks = self._dirty_chunks()
        self._write(changes)
        self.wait()
        if self._failing:
            self.unmark(sequences)
        return not self._failing

    def unmark(self, sequences: npt.NDArray[np.int64]) -> None:
        """These were marked, and then not sent after all."""
        for bits, which in self._by_segment(sequences):
            clear_bits(bits.ahead, bits.info.first_sequence, sequences[which])
            chunks = np.unique((sequences[which] - bits.info.first_sequence) // CHUNK_MESSAGES)
            bits.dirty[chunks] = 1
        self._changed |= len(sequences) > 0

    def resolve(
        self, sequences: npt.NDArray[np.int64], received_ns: npt.NDArray[np.int64] | None = None
    ) -> None:
        """These are done with; those that were acknowledged just now with when they were received."""
        if received_ns is not None:
            add_latencies(self.latency, received_ns, time.time_ns())
        above = sequences[sequences >= self.low_watermark]
        for bits, which in self._by_segment(above):
            fresh = set_bits(bits.resolved, bits.info.first_sequence, above[which], bits.dirty)
            self._delivered += fresh
            self._unwritten += fresh
        self._changed |= len(above) > 0

    def resolve_reports(self, reports: npt.NDArray[Any]) -> bool:
        """Resolve what these (dispatch.records.ROW[n]) say is acknowledged.

        False, and nothing changes, if one has an error, or if `bits_of` has no bits of them all.
        """
        sequences = reports["sequence"]
        bits = self.bits_of(int(sequences.min()), int(sequences.max()))
        if bits is None:
            return False
        first = bits.info.first_sequence
        fresh = resolve_reports(reports, first, bits.resolved, bits.dirty, self.latency, time.time_ns())
        if fresh < 0:
            return False
        self.note_resolved(fresh)
        return True

    def note_resolved(self, fresh: int) -> None:
        """A loop has set so many bits for acknowledged messages."""
        self._delivered += fresh
        self._unwritten += fresh
        self._changed = True

    def unresolved(self, sequences: Sequences) -> npt.NDArray[np.bool_]:
        """Which messages are not done with."""
        return self._without(sequences, taken_too=False)

    def discard(self, sequences: Sequences, reason: int, topic: bytes | Mapping[bytes, int]) -> int:
        """These are done with, undelivered, for a reason; how many were not done with before.

        Both readers meet the same damage: a message counts once. Of several topics none may be done with.
        """
        fresh = sequences[self.unresolved(sequences)]
        if self._trace:
            self._trace.note_discarded(fresh, reason)
        if len(fresh):
            self._discarded.append(Discard(fresh, reason, topic, time.time_ns()))
            self.resolve(fresh)
            self._delivered -= len(fresh)
            self._given_up += len(fresh)
        return len(fresh)

    def take_counts(self) -> tuple[int, int]:
        """(delivered, discarded): how many messages since the last call."""
        counts = int(self._delivered), self._given_up
        self._delivered = self._given_up = 0
        return counts

    @property
    def next_generation(self) -> int:
        """That of the marks that will hold, at the latest, what is resolved by now."""
        return self.generation + 1 + (self._writing is not None)

    def keep_sample(self, sequence: int, reason: int, topic: bytes, datagram: bytes) -> None:
        """Keep the first bytes of a discarded message beside its count."""
        self._samples.append(Sample(sequence, reason, topic, time.time_ns(), datagram[:SAMPLE_BYTES]))

    def follow(self, trace: Trace | None) -> None:
        """Tell this trace what is discarded."""
        self._trace = trace

    def note_progress(self, partition: int, offset: int) -> None:
        """The last progress record is there, in the progress topic."""
        self.progress = partition, offset

    def move_progress(self, offset: int) -> None:
        """There is another record, at this offset of the same partition. Needs a first one.

        A negative offset: the broker did not tell it. From the record before, a reader finds it.
        """
        assert self.progress
        if offset >= 0:
            self.note_progress(self.progress[0], offset)

    def history_of(self, topic: bytes) -> list[tuple[int, int]]:
        """The entry of a topic in `partitions`; empty when there is none."""
        return self.partitions.get(topic, [])

    def note_partitions(self, topic: bytes, history: list[tuple[int, int]]) -> None:
        """A topic has another number of partitions: (from sequence, partitions), in order."""
        self.partitions[topic] = history
        self._grown.add(topic)
        self._changed = True

    @property
    def unwritten(self) -> bool:
        """Whether there is something to write down, or is being written."""
        return self._changed or self._writing is not None

    @property
    def before_burst(self) -> int:
        """How many messages may be resolved before they are written down ahead of their time; at least 1."""
        return self._pace.burst if self._failing else max(1, self._pace.burst - self._unwritten)

    @property
    def next_write(self) -> NextWrite:
        """When to write down, or to look whether that is done."""
        soon = self._committed_at + COMMIT_S
        wanted = self._pace.is_wanted()
        late = soon if wanted else self._committed_at + FEW_COMMIT_S
        look, few = math.inf, self._pace.few - self._unwritten
        if self._changed:
            look = late if few > 0 else soon
        if self._writing:
            # While the disk is slow there is no other reason to look again at once.
            least = self._clock() + IDLE_S
            soon, late = max(soon, least), max(late, least)
            look = max(least, min(look, self._committed_at + (COMMIT_S if wanted else WRITTEN_S)))
        return NextWrite(look, few, soon, late)

    def due(self) -> bool:
        """Whether there is enough to write down, or something for so long, and the writer is free."""
        if self._writing and self._writing[1].done():
            self._finish()
        if not self._changed or self._writing:
            return False
        # After a write that failed the next one waits for its time.
        burst = self._unwritten >= self._pace.burst and not self._failing
        return burst or self._clock() >= self.next_write.look

    def write_down(self, offsets: dict[int, int]) -> None:
        """Begin to write marks, low watermark and offsets in one transaction, after the one before."""
        self.wait()
        self._segment_list.refresh()
        self._raise_watermark()
        # Should the low watermark be lost, the lowest offset replaces it.
        unrouted = min(self._left_out, offsets.get(UNROUTED, _NOTHING))
        changes = Changes(
            self.low_watermark,
            offsets=offsets if unrouted == _NOTHING else {**offsets, UNROUTED: unrouted},
            discarded=self._discarded,
            samples=self._samples,
            progress=self.progress,
            partitions={topic: self.partitions[topic] for topic in self._grown},
        )
        changes.chunks = self._dirty_chunks()
        self._discarded, self._samples = [], []
        self._in_write = self._unwritten
        self._changed, self._unwritten, self._grown = False, 0, set()
        self._committed_at = self._clock()
        self._write(changes)

    def _dirty_chunks(self) -> dict[tuple[int, int], Bits]:
        """The bits that the marks do not have, by (segment number, chunk)."""
        chunks = {}
        for bits in self._segments.values():
            for chunk in np.flatnonzero(bits.dirty).tolist():
                part = slice(chunk * CHUNK_BYTES, (chunk + 1) * CHUNK_BYTES)
                chunks[bits.info.number, chunk] = bits.resolved[part] | bits.ahead[part]
            bits.dirty[:] = 0
        return chunks

    def _write(self, changes: Changes) -> None:
        self._writing = changes, self._writer.submit(self._marks.commit, changes)

    def wait(self) -> int:
        """Wait for what is being written down; the low watermark that is marked."""
        if self._writing:
            self._finish()
        return self.marked_watermark

    def close(self) -> None:
        """Let the writer go, when it is done. Before the marks are closed, which must not happen under it."""
        self._writer.shutdown()

    def _finish(self) -> None:
        """Wait for the writer, and learn whether its work is durable."""
        assert self._writing
        changes, done = self._writing
        self._writing = None
        try:
            self.generation = done.result()
        except MarksFailed as error:
            # Outcomes that are not written down may be sent twice after a crash; to stop would make that
            # certain.
            if not self._failing:
                log.error("%s; delivery goes on, and what is not written down may be sent again", error)
            self._failing = True
            self._take_back(changes)
            return
        self._failing = False
        if changes.low_watermark is not None:
            self.marked_watermark = changes.low_watermark

    def _take_back(self, changes: Changes) -> None:
        """These changes were not written, and are to be with the next."""
        self._changed = True
        self._unwritten += self._in_write
        self._discarded = changes.discarded + self._discarded
        self._samples = changes.samples + self._samples
        self._grown |= changes.partitions.keys()
        by_number = {bits.info.number: bits for bits in self._segments.values()}
        for number, chunk in changes.chunks:
            # Bits that are gone lie below a watermark that is still to be written.
            if number in by_number:
                by_number[number].dirty[chunk] = 1

    def _raise_watermark(self) -> None:
        """Move the low watermark over what is resolved, dropping the bits of segments that lie below it."""
        segments, at = self._segment_list.segments, self._segment_list.at(self.low_watermark)
        while at < len(segments):
            info = segments[at]
            bits = self._segments.get(info.first_sequence)
            start = max(0, self.low_watermark - info.first_sequence)
            clear = int(first_clear(bits.resolved, start)) if bits else start
            last = at + 1 == len(segments)
            if last or clear < self._segment_list.most(info):
                self.low_watermark = max(self.low_watermark, info.first_sequence + clear)
                return
            self.low_watermark = segments[at + 1].first_sequence
            self._segments.pop(info.first_sequence, None)
            at += 1
