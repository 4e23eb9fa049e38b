"""Discarded messages in the marks: a bounded number of counts and samples, and a bit for each message.

discard   reason:u16be topic -> messages, first and last time (ns), check
for the first pairs of a reason and a topic, MOST_COUNTS rows; one more a reason, `(others)`, has all others

sample    reason:u16be slot:u8 topic -> sequence, time (ns), first bytes of the datagram, check
some of the discarded messages, a slot for every fourth sequence number

gone      segment number:u64be chunk:u32be reason:u16be -> bitmap of 2,008 bytes, check
while its segment is there: bit i: message 16,064 * chunk + i of the segment was discarded for this reason

Chunked, like the marks: a spool that discards a sixteenth of its messages, or a topic that sends a hundred
times its quota, costs a bit a message and a row for thousands. `check` is seeded with the identity of the
spool; in `gone`, of the segment. For a message that is in the dead-letter topic, DEAD_LETTERED is added to
the reason.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spool.format.topic_table import OTHERS
from spool.format.wire import REASONS
from spool.index.segment_list import SegmentInfo, SegmentList
from spool.native.digest import CHECK_BYTES, CHUNK_BYTES, CHUNK_MESSAGES, TOPIC_BYTES, check, matches
from spool.shared.ledger import Discards

SAMPLE_BYTES = 256
"""How many bytes of a discarded datagram are kept."""
SAMPLE_SLOTS = 4
"""Samples a reason and topic."""
MOST_SAMPLES = 1024
MOST_COUNTS = 1000
_FOLD_ABOVE = MOST_COUNTS + 2 * REASONS
"""Most rows in the table, with those of `(others)`; earlier releases had no bound."""
_COUNT = struct.Struct("<QQQ")
_FIXED = struct.Struct("<QQ")
_TOPIC_AT = 3


class Sample(NamedTuple):
    """A discarded message."""

    sequence: int
    reason: int
    topic: bytes
    time_ns: int
    data: bytes
    """Its datagram, or the first SAMPLE_BYTES of it."""


class Discard(NamedTuple):
    """Messages that are discarded together, for one reason."""

    sequences: npt.NDArray[np.int64]
    reason: int
    topic: bytes | Mapping[bytes, int]
    """The topic of all of them, or how many there are of each."""
    time_ns: int


@dataclass(slots=True)
class Changes:
    """The changes of one transaction. Sequences are int64; bitmaps uint8[CHUNK_BYTES]."""

    low_watermark: int | None = None
    chunks: dict[tuple[int, int], npt.NDArray[np.uint8]] = field(default_factory=dict)
    """By (segment number, chunk)."""
    offsets: Mapping[int, int] | None = None
    """Broker id -> sequence, for all brokers; others are forgotten. None leaves them as they are."""
    discarded: list[Discard] = field(default_factory=list)
    progress: tuple[int, int] | None = None
    """Exactly once: partition and offset of the last progress record. None leaves it as it is."""
    samples: list[Sample] = field(default_factory=list)
    """Samples of the discarded messages."""
    partitions: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    """Topic -> (from sequence, partitions), in order; replaces what was known of these topics."""


def count(txn: Any, table: Any, more: Discards, identity: int, most: int = MOST_COUNTS) -> None:
    """Add to the count of a reason and a topic; of those without a row, to `(others)` from `most` rows on."""
    key = more.reason.to_bytes(2, "big") + more.topic[:TOPIC_BYTES]
    row = txn.get(key, db=table)
    if row is None and txn.stat(table)["entries"] >= most:
        key = key[:2] + OTHERS
        row = txn.get(key, db=table)
    messages, first, _ = _counts(key, row, identity) or (0, more.first_ns, 0)
    value = _COUNT.pack(messages + more.count, first, more.last_ns)
    txn.put(key, value + check(key, value, identity), db=table)


def fold(txn: Any, table: Any, identity: int) -> None:
    """Sum up rows above the limit under `(others)`; the MOST_COUNTS rows with most messages stay."""
    if txn.stat(table)["entries"] <= _FOLD_ABOVE:
        return
    kept = heapq.nlargest(MOST_COUNTS, read_counts(txn, table, identity), key=lambda row: row.count)
    rest: dict[int, Discards] = {}
    stay = {(row.reason, row.topic) for row in kept}
    for row in read_counts(txn, table, identity):
        if (row.reason, row.topic) not in stay:
            sum_ = rest.get(row.reason) or replace(row, topic=OTHERS, count=0)
            first, last = min(sum_.first_ns, row.first_ns), max(sum_.last_ns, row.last_ns)
            rest[row.reason] = Discards(OTHERS, row.reason, sum_.count + row.count, first, last)
    txn.drop(table, delete=False)
    for row in (*kept, *rest.values()):
        count(txn, table, row, identity)


def read_counts(txn: Any, table: Any, identity: int) -> Iterator[Discards]:
    """All rows that match their check, by reason."""
    with txn.cursor(table) as cursor:
        for key, row in cursor:
            if counts := _counts(key, row, identity):
                yield Discards(key[2:], int.from_bytes(key[:2], "big"), *counts)


def _counts(key: bytes, row: bytes | None, identity: int) -> tuple[int, int, int] | None:
    """(messages, first and last time) of a row; None when it does not match."""
    if row is None or len(row) != _COUNT.size + CHECK_BYTES or not matches(key, row, identity):
        return None
    messages, first, last = _COUNT.unpack_from(row)
    return messages, first, last


def keep_sample(txn: Any, table: Any, sample: Sample, identity: int) -> None:
    """Store a sample in place of an older one, or beside it while there is room."""
    slot = sample.sequence % SAMPLE_SLOTS
    key = sample.reason.to_bytes(2, "big") + bytes([slot]) + sample.topic[:TOPIC_BYTES]
    if txn.get(key, db=table) is not None or txn.stat(table)["entries"] < MOST_SAMPLES:
        value = _FIXED.pack(sample.sequence, sample.time_ns) + sample.data[:SAMPLE_BYTES]
        txn.put(key, value + check(key, value, identity), db=table)


def read_samples(txn: Any, table: Any, identity: int) -> Iterator[Sample]:
    """All samples that match their check, by reason."""
    with txn.cursor(table) as cursor:
        for key, row in cursor:
            if len(row) >= _FIXED.size + CHECK_BYTES and matches(key, row, identity):
                sequence, time_ns = _FIXED.unpack_from(row)
                reason, topic = int.from_bytes(key[:2], "big"), key[_TOPIC_AT:]
                yield Sample(sequence, reason, topic, time_ns, row[_FIXED.size : -CHECK_BYTES])


KEY = struct.Struct(">QIH")
_PLACE_BYTES = 12
"""The bytes of a key that name the chunk."""

SegmentChunk = tuple[SegmentInfo, int]
"""A segment, and a chunk in it."""


def split(
    segments: Sequence[SegmentInfo], sequences: npt.NDArray[np.int64]
) -> Iterator[tuple[SegmentChunk, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """(place, bits in its chunk, which of `sequences`) of each chunk that holds any of them.

    Messages before the first segment are left out: their rows were removed with their segments.
    """
    firsts = np.array([info.first_sequence for info in segments], np.int64)
    order = np.argsort(sequences, kind="stable")
    order = order[np.searchsorted(sequences[order], firsts[0]) :] if len(firsts) else order[:0]
    if not len(order):
        return
    segment = np.searchsorted(firsts, sequences[order], side="right") - 1
    chunk, bit = np.divmod(sequences[order] - firsts[segment], CHUNK_MESSAGES)
    starts = np.flatnonzero(np.diff(segment, prepend=-1) | np.diff(chunk, prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
        yield (segments[segment[start]], int(chunk[start])), bit[start:end], order[start:end]


def put_bits(txn: Any, table: Any, segment_list: SegmentList, discards: Sequence[Discard]) -> None:
    """Set the bits of these messages."""
    for reason in {discard.reason for discard in discards}:
        sequences = np.concatenate([d.sequences for d in discards if d.reason == reason])
        for (info, chunk), bits, _ in split(segment_list.segments, sequences):
            found = np.zeros(CHUNK_MESSAGES, np.uint8)
            found[bits] = 1
            bitmap, key = np.packbits(found, bitorder="little"), KEY.pack(info.number, chunk, reason)
            if (before := _bitmap(key, txn.get(key, db=table), info)) is not None:
                bitmap |= before
            value = bitmap.tobytes()
            txn.put(key, value + check(key, value, info.identity), db=table)


def read_bits(
    txn: Any, table: Any, segment_list: SegmentList
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(sequences in order, their reasons) of all rows that match their segment."""
    sequences, reasons = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    with txn.cursor(table) as cursor:
        for key, row in cursor:
            if len(key) != KEY.size:
                continue
            number, chunk, reason = KEY.unpack(key)
            info = segment_list.by_number(number)
            bitmap = _bitmap(key, row, info) if info else None
            if info and bitmap is not None:
                bits = np.flatnonzero(np.unpackbits(bitmap, bitorder="little"))
                sequences.append(info.first_sequence + chunk * CHUNK_MESSAGES + bits)
                reasons.append(np.full(len(bits), reason))
    found, why = np.concatenate(sequences), np.concatenate(reasons)
    order = np.argsort(found, kind="stable")
    return found[order], why[order]


def reasons_of(
    txn: Any, table: Any, place: SegmentChunk, bits: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The reasons of messages, by their bits in a chunk; 0: not known to be discarded."""
    info, chunk = place
    found, prefix = np.zeros(len(bits), np.int64), KEY.pack(info.number, chunk, 0)[:_PLACE_BYTES]
    with txn.cursor(table) as cursor:
        more = cursor.set_range(prefix)
        while more and cursor.key().startswith(prefix):
            bitmap = _bitmap(cursor.key(), cursor.value(), info)
            if bitmap is not None and len(cursor.key()) == KEY.size:
                found[np.unpackbits(bitmap, bitorder="little")[bits] > 0] = KEY.unpack(cursor.key())[2]
            more = cursor.next()
    return found


def _bitmap(key: bytes, row: bytes | None, info: SegmentInfo) -> npt.NDArray[np.uint8] | None:
    """The bitmap of a row; None when it does not match its segment."""
    if row is None or len(row) != CHUNK_BYTES + CHECK_BYTES or not matches(key, row, info.identity):
        return None
    return np.frombuffer(row, np.uint8, CHUNK_BYTES)


def drop_bits_before(txn: Any, table: Any, number: int) -> None:
    """Drop the rows of segments before this number."""
    limit = KEY.pack(number, 0, 0)
    with txn.cursor(table) as cursor:
        while cursor.first() and cursor.key() < limit:
            cursor.delete()
