"""The book of sums: what must be in Kafka of segments that are gone. No I/O happens here.

    book   := record*
    record := magic:8s="brucesum" version:u32=1 flags:u32 first_sequence:u64 messages:u64 blocks:u32
              discarded_bytes:u32 zero:u64 check:u64 sum:(content:u64 times:u32 count:u32)[blocks]
              discarded zeros

Little-endian; a record takes a multiple of 16 bytes. It is of one segment: of the messages from
`first_sequence` on, without holes in their numbers. The sums are those of a footer
(spool.format.segment_format), but of the messages that were not discarded: so a record is 16 bytes a block,
and some for the segment. `discarded`, if the segment has any: a bit for each message, that of the first is 1
in the first byte, as one frame of zstd; a bit is set where the message was discarded.

flags: 1: the sums are known; 2: it is known which messages were discarded. Without 1, `blocks` is 0: a
segment of a version before 4 has no sums.

`check` is the xxh3 of the record with 0 in its place, seeded with the first 8 bytes of the spool's uuid XOR
the last 8: a record of another spool is none. A segment may have two records, of which the first counts: the
keeper died before it removed the file. Behind a damaged record the next one is searched for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spool.format.packed import compress, decompress
from spool.format.segment_format import SUM, SUM_BITS, Record
from spool.native.digest import digest

MOST_BYTES = 64 << 20
"""Of a book: some 16 billion messages. A longer one becomes the older one, in place of that before."""
MAGIC = b"brucesum"
VERSION = 1
SUMS_KNOWN, DISCARDS_KNOWN = 1, 2
ALIGN = 16
MOST_MESSAGES = 1 << 31
"""No segment has more: a record that says so is damaged."""
HEAD = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("flags", "<u4"),
        ("first_sequence", "<u8"),
        ("messages", "<u8"),
        ("blocks", "<u4"),
        ("discarded_bytes", "<u4"),
        ("zero", "<u8"),
        ("check", "<u8"),
    ]
)
_MOST_SEQUENCE = 1 << 62


class Departed(NamedTuple):
    """A segment that is gone: its messages from `first` on, `messages` of them."""

    first: int
    messages: int
    sums: Record | None
    """SUM[blocks], of the block of `first` and those behind it, without discards; None: not known."""
    discarded: npt.NDArray[np.int64] | None
    """Sequences, ascending; None: not known."""


def encode_departed(spool: bytes, segment: Departed) -> bytes:
    """The record of a segment. `spool`: its uuid, 16 bytes."""
    sums = np.empty(0, SUM) if segment.sums is None else segment.sums
    bits = b""
    if segment.discarded is not None and len(segment.discarded):
        flags = np.zeros(segment.messages, np.uint8)
        flags[segment.discarded - segment.first] = 1
        bits = compress(np.packbits(flags, bitorder="little").tobytes())
    head = np.zeros((), HEAD)
    head["magic"], head["version"] = MAGIC, VERSION
    head["flags"] = SUMS_KNOWN * (segment.sums is not None)
    head["flags"] |= DISCARDS_KNOWN * (segment.discarded is not None)
    head["first_sequence"], head["messages"] = segment.first, segment.messages
    head["blocks"], head["discarded_bytes"] = len(sums), len(bits)
    body = sums.tobytes() + bits
    body += bytes(-(HEAD.itemsize + len(body)) % ALIGN)
    head["check"] = digest(head.tobytes() + body, seed_of(spool))
    return head.tobytes() + body


def decode_departed(spool: bytes, data: bytes) -> Iterator[tuple[int, Departed]]:
    """(offset behind it, segment) of each whole record in the bytes of a book; the first of a segment counts.

    Nothing in a record is believed before its check: lengths are bounded, and the search for the next record
    behind a damaged one is linear in the bytes.
    """
    known: set[int] = set()
    at = 0
    while 0 <= at <= len(data) - HEAD.itemsize:
        found = _decode(spool, data, at)
        if found is None:
            at = _next(data, at + ALIGN)
            continue
        at, segment = found
        if segment.first not in known:
            known.add(segment.first)
            yield at, segment


def seed_of(spool: bytes) -> int:
    """The seed of the checks of a spool's book."""
    return int.from_bytes(spool[:8], "little") ^ int.from_bytes(spool[8:16], "little")


def _next(data: bytes, at: int) -> int:
    """The offset of the next magic at a multiple of 16, from `at` on; -1: there is none."""
    while (at := data.find(MAGIC, at)) >= 0 and at % ALIGN:
        at += 1
    return at


def _decode(spool: bytes, data: bytes, at: int) -> tuple[int, Departed] | None:
    head = np.frombuffer(data, HEAD, 1, at)[0].copy()
    blocks, packed, messages = (int(head[name]) for name in ("blocks", "discarded_bytes", "messages"))
    first = int(head["first_sequence"])
    length = HEAD.itemsize + blocks * SUM.itemsize + packed
    end = at + length + -length % ALIGN
    if head["magic"] != MAGIC or head["version"] != VERSION or end > len(data):
        return None
    if not (0 < messages <= MOST_MESSAGES and first < _MOST_SEQUENCE):
        return None
    check, head["check"] = int(head["check"]), 0
    if check != digest(head.tobytes() + data[at + HEAD.itemsize : end], seed_of(spool)):
        return None
    if blocks > ((first + messages - 1) >> SUM_BITS) - (first >> SUM_BITS) + 1:
        return None
    sums_end = at + HEAD.itemsize + blocks * SUM.itemsize
    sums = np.frombuffer(data[at + HEAD.itemsize : sums_end], SUM) if head["flags"] & SUMS_KNOWN else None
    known = bool(head["flags"] & DISCARDS_KNOWN)
    bits = data[sums_end : sums_end + packed]
    discarded = _sequences(bits, first, messages) if known else None
    return end, Departed(first, messages, sums, discarded)


def _sequences(bits: bytes, first: int, messages: int) -> npt.NDArray[np.int64] | None:
    if not bits:
        return np.empty(0, np.int64)
    plain = decompress(bits, -(-messages // 8))
    if plain is None:
        return None
    flags = np.unpackbits(np.frombuffer(plain, np.uint8), count=messages, bitorder="little")
    return first + np.flatnonzero(flags)
