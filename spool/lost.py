"""Which messages were discarded, as the marks keep it while their segments are there.

gone    segment number:u64be chunk:u32be reason:u16be -> bitmap of 2,008 bytes, check
bit i: message 16,064 * chunk + i of the segment was discarded for this reason

In chunks, like the marks: a spool that gives up a sixteenth of its messages, or a topic that sends a hundred
times what it may, costs a bit a message and a row for thousands. DEAD_LETTERED is added to the reason of what
is in the dead-letter topic. `check` is seeded with the identity of the segment.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from spool.catalogue import Catalogue, SegmentInfo
from spool.changes import CHUNK_BYTES, CHUNK_MESSAGES, Discard
from spool.row import CHECK_BYTES, check, matches

KEY = struct.Struct(">QIH")
_PLACE_BYTES = 12
"""Of a key, what names the chunk."""

Place = tuple[SegmentInfo, int]
"""A segment, and a chunk in it."""


def split(
    segments: Sequence[SegmentInfo], sequences: npt.NDArray[np.int64]
) -> Iterator[tuple[Place, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """(place, bits in its chunk, which of `sequences`) of each chunk that any of them lies in.

    What lies before the first segment has gone with its own.
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


def put(txn: Any, table: Any, catalogue: Catalogue, discards: Sequence[Discard]) -> None:
    """Note these messages."""
    for reason in {discard.reason for discard in discards}:
        sequences = np.concatenate([d.sequences for d in discards if d.reason == reason])
        for (info, chunk), bits, _ in split(catalogue.segments, sequences):
            found = np.zeros(CHUNK_MESSAGES, np.uint8)
            found[bits] = 1
            bitmap, key = np.packbits(found, bitorder="little"), KEY.pack(info.number, chunk, reason)
            if (before := _bitmap(key, txn.get(key, db=table), info)) is not None:
                bitmap |= before
            value = bitmap.tobytes()
            txn.put(key, value + check(key, value, info.identity), db=table)


def read(txn: Any, table: Any, catalogue: Catalogue) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(sequences in order, their reasons) of all rows that match their segment."""
    sequences, reasons = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    with txn.cursor(table) as cursor:
        for key, row in cursor:
            if len(key) != KEY.size:
                continue
            number, chunk, reason = KEY.unpack(key)
            info = catalogue.by_number(number)
            bitmap = _bitmap(key, row, info) if info else None
            if info and bitmap is not None:
                bits = np.flatnonzero(np.unpackbits(bitmap, bitorder="little"))
                sequences.append(info.first_sequence + chunk * CHUNK_MESSAGES + bits)
                reasons.append(np.full(len(bits), reason))
    found, why = np.concatenate(sequences), np.concatenate(reasons)
    order = np.argsort(found, kind="stable")
    return found[order], why[order]


def reasons(txn: Any, table: Any, place: Place, bits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The reasons of messages, by their bits in a chunk; 0: not discarded, as far as is known."""
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
    """Of a row; None when it does not match its segment."""
    if row is None or len(row) != CHUNK_BYTES + CHECK_BYTES or not matches(key, row, info.identity):
        return None
    return np.frombuffer(row, np.uint8, CHUNK_BYTES)


def drop_before(txn: Any, table: Any, number: int) -> None:
    """Forget what is known of segments before this number."""
    limit = KEY.pack(number, 0, 0)
    with txn.cursor(table) as cursor:
        while cursor.first() and cursor.key() < limit:
            cursor.delete()
