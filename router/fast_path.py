"""The fast path: a deliverer's wait, in which a compiled loop delivers what is ordinary.

Between two steps of the router a deliverer waits: for messages to be committed, or for reports. On most days
a handful of messages comes then, of topics that are known, for brokers that take them, and soon their
reports. So the wait itself does the work of the next step: it resolves what is acknowledged, and hands over
what is committed. Python runs when something is due, not for each burst.

The loop takes nothing that it cannot finish. A message without a place, a report with an error, the end of a
segment: it leaves that as it was, or hands it on, and returns; the next step goes the general way. Whether a
day is ordinary, the router knows. A backlog is not waited for: steps read it, in large batches.

    words := what the loop is given, what it has done, and room for what system calls write     int64[_WORDS]
"""

from __future__ import annotations

import operator
import os
import select
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.handover import Producer, hand_over
from dispatch.pool import NO_OUTCOMES, Outcomes
from dispatch.records import ROW, Reader, collect
from router.cluster.brokers import Kafka, survey
from router.context import CommittedEnd, Delivered, SpoolLog
from router.outcomes.acks import Acks, SegmentBits, clear_bits, resolve_reports
from router.partition import CRC_TABLE, Partitioners, place
from router.router import Router
from router.timing import FEW_COMMIT_S
from spool.format.batch import NARROW, PARSED, SENDERS, SEQUENCE, START, WIDE, Narrow, Wide, fill
from spool.format.damage import HOLE, Holes, walk_over
from spool.format.frame import FRAME_AT, FRAME_COUNT, FRAME_FIRST, POSITION, Frames, Tail
from spool.format.frame import ROW as FRAME_FIELDS
from spool.format.scan import digest_address
from spool.format.segment_format import MARK_BYTES
from spool.format.topic_table import Table
from spool.native.kernel import bind, kernel, subkernel
from spool.native.libc import (
    MONOTONIC,
    REALTIME,
    SCRATCH_WORDS,
    Libc,
    await_bells,
    libc,
    now,
    ring,
    rung,
)
from spool.native.memory import Address, address_of, call, load_acquire
from spool.read.reader import OpenSegment

READ_BYTES = 64 << 10
"""Most that is read at a time: more is a backlog."""
_FRAMES = 1024
_MESSAGES = 4096
"""More than READ_BYTES hold."""
_REPORTS = 4096
_ENTRIES = 64

(
    _COMMITTED_AT,  # address of the word that has the committed end of the log
    _NUMBER,  # of the segment that is read
    _FD,  # of its file
    _END,  # of what it can hold
    _FIRST,  # the message that the bitmaps begin with
    _LOW,  # the low watermark
    _BELL,  # eventfd: more is committed
    _WAKE,  # eventfd: librdkafka has events, or another thread something to tell
    _HURRY,  # eventfd: send without lingering; -1: as configured
    _PARTITIONS,  # how many there are
    _ROOM_MESSAGES,  # a broker with more in flight is left to the general way
    _ROOM_BYTES,
    _DEFAULT,  # partitioner
    _BUSY_NS,  # how long to go on once something has moved
    _MOST,  # messages resolved, after which they are to be written down at once
    _FEW,  # with as many they are to be written down at _SOON_NS; with less, at _LATE_NS
    _SOON_NS,  # monotonic
    _LATE_NS,
    _UNTIL_NS,  # monotonic
    _SEQUENCE,  # of the next message
    _ENTERED,  # offset of the last entry
    _READ,  # frames
    _SENT,  # messages
    _HELD,
    _ERROR,  # why librdkafka took no more, or 0
    _REFUSED,  # rows of `refused`
    _SETTLED,  # reports, all of them good
    _RESOLVED,  # messages that were not resolved before
    _REPORTED,  # rows of `reports` that are left to the general way
    _EVENT,  # address of an event that is no report
    _LISTED,  # rows of `entries`
    _SCRATCH,
) = range(32)
_WORDS = _SCRATCH + SCRATCH_WORDS
_GO_ON, _NOTHING, _LEFT = range(3)
"""Something was read; there is nothing to read; it is left to the general way."""


class Segment(NamedTuple):
    """The segment in use, and room for the bytes and frames that are read of it."""

    tail: Tail
    buffer: npt.NDArray[np.uint8]
    """uint8[READ_BYTES]"""
    frames: Frames
    holes: Holes
    entries: npt.NDArray[np.int64]
    """int64[n, 2]: sequence and offset of frames at which the segment can be entered again."""
    topics: Table


class Bits(NamedTuple):
    """The bitmaps of the segment's messages: `router.outcomes.acks.SegmentBits`."""

    resolved: npt.NDArray[np.uint8]
    taken: npt.NDArray[np.uint8]
    dirty: npt.NDArray[np.uint8]
    latency: npt.NDArray[np.int64]
    """int64[LATENCY_WORDS], a histogram of spool.shared.histogram."""


class Places(NamedTuple):
    """The choice of a partition: the arguments of `router.partition.place`."""

    modes: npt.NDArray[np.int32]
    rotation: npt.NDArray[np.int64]
    partitions_of: npt.NDArray[np.int32]
    flats: npt.NDArray[np.int32]
    crc_table: npt.NDArray[np.uint32]
    led: npt.NDArray[np.bool_]
    """bool[capacity of the partitions], set on the way."""


class Lanes(NamedTuple):
    """librdkafka, and the tables of a pool (`dispatch.tables`)."""

    source: Reader
    producer: Producer
    window: tuple[int, int]
    partitions: npt.NDArray[Any]
    brokers: npt.NDArray[Any]
    flight: npt.NDArray[Any]
    free: npt.NDArray[np.int32]
    free_count: npt.NDArray[np.int64]
    reports: npt.NDArray[Any]
    """dispatch.records.ROW[n]"""
    refused: npt.NDArray[Any]
    """dispatch.records.ROW[_MESSAGES]"""


@kernel
def deliver(
    words: npt.NDArray[np.int64],
    functions: Libc,
    digest: int,
    segment: Segment,
    bits: Bits,
    places: Places,
    lanes: Lanes,
) -> bool:
    """Deliver what is ordinary until there is something else to do.

    False, and nothing has changed, when what comes first is not ordinary. `digest`: the address of
    the digest function.
    """
    scratch = Address(words.ctypes.data + 8 * _SCRATCH)
    unsent, woken, done = 0, 0, -1
    while True:
        now_ns = now(functions, scratch, MONOTONIC)
        if not _settle(words, bits, lanes, now_ns, now(functions, scratch, REALTIME)):
            return True
        sent, going = words[_SENT], _NOTHING
        if words[_RESOLVED] < words[_MOST]:
            going = _read_on(words, functions, digest, segment, bits, places, lanes, now_ns)
        unsent += words[_SENT] - sent
        moved = words[_SETTLED] + words[_READ]
        if moved > max(done, 0):
            words[_UNTIL_NS] = min(words[_UNTIL_NS], now_ns + words[_BUSY_NS])
        if words[_RESOLVED] > 0:
            marked_ns = words[_SOON_NS] if words[_RESOLVED] >= words[_FEW] else words[_LATE_NS]
            words[_UNTIL_NS] = min(words[_UNTIL_NS], marked_ns)
        if going == _GO_ON and now_ns < words[_UNTIL_NS]:
            continue
        if unsent > 0 and words[_HURRY] >= 0:
            ring(functions, scratch, words[_HURRY])
        unsent = 0
        if going == _LEFT:
            return done >= 0 or moved > 0 or words[_HELD] > 0
        # Another thread rings, too: when nothing came that explains it, a step looks for what there is.
        if woken > 1 or (woken == 1 and moved == done):
            return True
        if now_ns >= words[_UNTIL_NS] or words[_RESOLVED] >= words[_MOST]:
            return True
        if not await_bells(functions, scratch, words[_WAKE], words[_BELL], words[_UNTIL_NS] - now_ns):
            return True
        # librdkafka rings once until it is read: more often, and another thread has rung.
        done, woken = moved, rung(functions, scratch, 0, words[_WAKE])
        if rung(functions, scratch, 1, words[_BELL]) > 0:
            woken = max(woken, 1)


@subkernel
def _settle(words: npt.NDArray[np.int64], bits: Bits, lanes: Lanes, now_ns: int, today_ns: int) -> bool:
    """Resolve what is reported; False when there is something that is left to the general way.

    `now_ns`: monotonic; `today_ns`: since the epoch.
    """
    filled = len(lanes.reports)
    while filled == len(lanes.reports):
        filled, event = collect(
            lanes.source,
            lanes.partitions,
            lanes.brokers,
            lanes.flight,
            lanes.free,
            lanes.free_count,
            lanes.reports,
            0,
            now_ns,
        )
        words[_EVENT] = event
        least, behind = max(words[_FIRST], words[_LOW]), words[_FIRST] + 8 * len(bits.resolved)
        fresh = 0
        for i in range(filled):
            if not least <= lanes.reports[i].sequence < behind:
                fresh = -1
        if fresh == 0 and filled > 0:
            fresh = resolve_reports(
                lanes.reports[:filled], words[_FIRST], bits.resolved, bits.dirty, bits.latency, today_ns
            )
        if fresh < 0:
            words[_REPORTED] = filled
            return False
        words[_SETTLED] += filled
        words[_RESOLVED] += fresh
        if event != 0:
            return False
    return True


@subkernel
def _read_on(
    words: npt.NDArray[np.int64],
    functions: Libc,
    digest: int,
    segment: Segment,
    bits: Bits,
    places: Places,
    lanes: Lanes,
    now_ns: int,
) -> int:
    """Hand over what is committed: _GO_ON when there was something, _NOTHING when not.

    _LEFT for what is not ordinary: the tail is where it was, and of messages that were sent the bits say so.
    """
    committed, start = load_acquire(Address(words[_COMMITTED_AT])), segment.tail[POSITION]
    end = (committed & 0xFFFFFFFF) << 3
    if committed >> 32 != words[_NUMBER] or end > words[_END]:
        return _LEFT
    if start >= end:
        return _NOTHING
    if end - start > len(segment.buffer):
        return _LEFT
    in_use = lanes.partitions[: words[_PARTITIONS]]
    if not survey(in_use, lanes.brokers, words[_ROOM_MESSAGES], words[_ROOM_BYTES], places.led):
        return _LEFT
    at, before = Address(segment.buffer.ctypes.data), segment.tail.copy()
    if call(functions.pread, words[_FD], at, end - start, start) != end - start:
        return _LEFT
    rows, count = _walk(Address(at - start), end, digest, segment)
    going = _LEFT
    if rows > 0 and count <= min(len(lanes.refused), lanes.free_count[0]):
        wide, narrow = np.empty((WIDE, count), np.int64), np.empty((NARROW, count), np.int32)
        parsed = _parse(at, start, segment.frames[:rows], segment.topics, digest, wide, narrow)
        if parsed and (count == 0 or _send(words, at, wide, narrow, bits, places, lanes, now_ns)):
            going = _GO_ON
    if going == _LEFT:
        segment.tail[:] = before
        return _LEFT
    words[_READ] += rows
    if segment.frames[0, FRAME_AT] >= words[_ENTERED] + MARK_BYTES and words[_LISTED] < len(segment.entries):
        segment.entries[words[_LISTED], 0] = segment.frames[0, FRAME_FIRST]
        segment.entries[words[_LISTED], 1] = words[_ENTERED] = segment.frames[0, FRAME_AT]
        words[_LISTED] += 1
    return _GO_ON if words[_REFUSED] == 0 else _LEFT


@subkernel
def _walk(base: Address, end: int, digest: int, segment: Segment) -> tuple[int, int]:
    """Move the tail over good frames below offset `end`: (how many, messages in them)."""
    unlinked = np.empty(0, np.int64)
    _, rows, _ = walk_over(
        base, end, end, segment.tail, segment.frames, segment.holes, 0, False, digest, unlinked
    )
    count = 0
    for row in range(rows):
        count += segment.frames[row, FRAME_COUNT]
    return rows, count


@subkernel
def _parse(
    at: Address,
    offset: int,
    frames: Frames,
    topics: Table,
    digest: int,
    wide: npt.NDArray[np.int64],
    narrow: npt.NDArray[np.int32],
) -> bool:
    """Fill the columns of a Batch with all messages of the frames; False if that cannot be done here.

    `at`: of the bytes that have `offset` in the segment.
    """
    start, senders = np.zeros(START, np.int64), np.empty((SENDERS, wide.shape[1]), np.uint32)
    filled = fill(
        at,
        offset,
        frames,
        start,
        wide,
        narrow,
        senders,
        digest,
        topics.slots,
        topics.homes,
        topics.seed,
        topics.words,
        topics.names,
        topics.arena,
        topics.arena_at,
        topics.welcome,
    )
    return filled and start[PARSED] == wide.shape[1]


@subkernel
def _send(
    words: npt.NDArray[np.int64],
    at: Address,
    wide: Wide,
    narrow: Narrow,
    bits: Bits,
    places: Places,
    lanes: Lanes,
    now_ns: int,
) -> bool:
    """Hand over the messages that are open; False if one has no place, or its partition is held from now on.

    Those that did not go are open then, and are read again.
    """
    sequences, first = wide[SEQUENCE], words[_FIRST]
    least = max(first, words[_LOW], words[_SEQUENCE])
    if sequences[0] < least or sequences[-1] >= first + 8 * len(bits.taken):
        return False
    flat = np.empty(len(sequences), np.int32)
    if not place(
        at,
        wide,
        narrow,
        places.modes,
        words[_DEFAULT],
        places.rotation,
        places.partitions_of,
        places.flats,
        places.led,
        places.crc_table,
        first,
        bits.resolved,
        bits.taken,
        flat,
    ):
        return False
    sent, held, refusals, error = hand_over(
        lanes.producer,
        at,
        wide,
        narrow,
        flat,
        lanes.partitions,
        lanes.brokers,
        lanes.flight,
        lanes.free,
        lanes.free_count,
        lanes.window,
        lanes.refused,
        now_ns,
        False,
    )
    words[_SENT] += sent
    words[_REFUSED] = refusals
    if held > 0:
        words[_HELD], words[_ERROR] = held, error
        for row in range(len(flat)):
            if flat[row] >= 0 and 0 <= lanes.partitions[flat[row]].held_from <= sequences[row]:
                clear_bits(bits.taken, first, sequences[row : row + 1])
        return False
    words[_SEQUENCE] = sequences[-1] + 1
    return True


class FastPath:
    """The wait of one deliverer, in its thread."""

    def __init__(
        self,
        router: Router,
        log: SpoolLog,
        kafka: Kafka,
        acks: Acks,
        partitioners: Partitioners,
        bell: int,
    ) -> None:
        """The parts are those of the router. `bell`: an eventfd that rings when more is committed."""
        self._router, self._live, self._committed = router, log.live, log.committed
        self._client, self._pool, self._capacity = kafka.client, kafka.pool, kafka.capacity
        self._acks, self._partitioners, self._bell = acks, partitioners, bell
        self._array, self._digest = np.zeros(_WORDS, np.int64), digest_address()
        self._words = self._array.data
        """The same, word by word: an index of NumPy's costs more."""
        self._buffer = np.empty(READ_BYTES, np.uint8)
        self._frames = np.empty((_FRAMES, FRAME_FIELDS), np.int64)
        self._holes = np.empty((_FRAMES, HOLE), np.int64)
        self._entries = np.empty((_ENTRIES, 2), np.int64)
        self._reports, self._refused = np.empty(_REPORTS, ROW), np.empty(_MESSAGES, ROW)
        self._bound: tuple[object, ...] = ()
        """The objects that `_loop` works on."""
        self._loop: Callable[[], bool] = lambda: False

    def wait(self, seconds: float, ordinary_s: float) -> None:
        """Sleep until a step has something to do; deliver meanwhile.

        `seconds` at most, or `ordinary_s` while the day is ordinary. There it ends when marks are to be
        written, and FEW_COMMIT_S after something has moved.
        """
        if not self._deliver(ordinary_s):
            wake = self._client.wake_fd
            # Without room for it, what is committed meanwhile would wake us for nothing.
            watched = [wake, self._bell] if self._router.has_room else [wake]
            ready, _, _ = select.select(watched, [], [], seconds)
            for fd in ready:
                os.eventfd_read(fd)

    def _deliver(self, seconds: float) -> bool:
        """Run the loop; False, and nothing has changed, when what comes next is not ordinary."""
        opened, end = self._live.opened(), self._committed
        if opened is None or not isinstance(end, CommittedEnd) or not self._router.is_ordinary:
            return False
        bits = self._acks.bits_of(self._live.sequence, self._live.sequence + _MESSAGES)
        if bits is None:
            return False
        modes, rotation, default = self._partitioners.choice(self._live.topics)
        self._say(opened, end, bits.info.first_sequence, default, seconds)
        self._bind(opened.tail, bits, modes, rotation)
        if not self._loop():
            return False
        self._router.take_over(self._delivered())
        return True

    def _bind(
        self,
        tail: Tail,
        bits: SegmentBits,
        modes: npt.NDArray[np.int32],
        rotation: npt.NDArray[np.int64],
    ) -> None:
        """Have a loop over these and the pool's tables; most often they are those of the last time."""
        pool, topics = self._pool, self._live.topics.table
        tables, flight = pool.partitions, pool.flight
        places = modes, rotation, tables.partitions_of, tables.flats
        lanes = tables.rows, pool.brokers.rows, flight.rows, flight.free, flight.free_count
        maps = bits.resolved, bits.taken, bits.dirty
        wanted = (tail, topics, *maps, *places, *pool.lane, *lanes)
        if len(wanted) == len(self._bound) and all(map(operator.is_, wanted, self._bound)):
            return
        self._loop = bind(
            deliver,
            self._array,
            libc(),
            self._digest,
            Segment(tail, self._buffer, self._frames, self._holes, self._entries, topics),
            Bits(*maps, self._acks.latency),
            Places(*places, CRC_TABLE, np.empty(len(tables.rows), np.bool_)),
            Lanes(*pool.lane, *lanes, self._reports, self._refused),
        )
        self._bound = wanted

    def _say(self, opened: OpenSegment, end: CommittedEnd, first: int, default: int, seconds: float) -> None:
        """Write what the loop is to know."""
        words = self._words
        self._array[:] = 0
        words[_COMMITTED_AT], words[_NUMBER] = address_of(end.word), opened.number
        words[_FD], words[_END] = opened.fd, opened.end
        words[_FIRST], words[_LOW] = first, self._acks.low_watermark
        words[_BELL], words[_WAKE], words[_HURRY] = self._bell, self._client.wake_fd, self._client.hurry_fd
        words[_PARTITIONS], words[_DEFAULT] = self._pool.partitions.count, default
        words[_ROOM_MESSAGES], words[_ROOM_BYTES] = self._capacity.room
        words[_BUSY_NS], words[_MOST] = int(1e9 * FEW_COMMIT_S), self._acks.before_burst
        marks = self._acks.next_write
        words[_FEW], words[_SOON_NS], words[_LATE_NS] = (
            marks.few,
            int(1e9 * marks.soon),
            int(1e9 * marks.late),
        )
        words[_UNTIL_NS] = int(1e9 * min(time.monotonic() + seconds, marks.look))
        words[_SEQUENCE], words[_ENTERED] = self._live.sequence, opened.entered

    def _delivered(self) -> Delivered:
        words = self._words
        entries = self._entries[: words[_LISTED]].tolist() if words[_LISTED] else []
        self._live.read_on(words[_SEQUENCE], [(first, at) for first, at in entries])
        if words[_SETTLED]:
            self._acks.note_resolved(words[_RESOLVED])
        reported = self._reports[: words[_REPORTED]]
        return Delivered(
            words[_SETTLED],
            words[_SENT],
            self._refused[: words[_REFUSED]].copy(),
            bool(words[_HELD]),
            words[_ERROR],
            Outcomes(reported, more=False) if len(reported) else NO_OUTCOMES,
            words[_EVENT],
        )
