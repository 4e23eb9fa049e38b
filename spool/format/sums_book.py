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
MOST_MESSAGES = 1 << 28
"""No segment has more: a record that says so is damaged."""
MOST_BLOCKS = 1 << 19
"""Of a book a reader takes no more blocks without sums, which cost no bytes. That is 2^31 messages."""
MOST_DISCARDED = 1 << 26
"""Of a book a reader takes no more discarded messages: zstd packs any number of them into nothing."""
MOST_WASTED = 1 << 29
"""Bytes of records whose check is wrong, that a reader takes at most: heads may claim what they like."""
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
MOST_SEQUENCE = 1 << 62
"""Every sequence is below it."""


class Departed(NamedTuple):
    """A segment that is gone: its messages from `first` on, `messages` of them."""

    first: int
    messages: int
    sums: Record | None
    """SUM[blocks], of the block of `first` and those behind it, without discards; None: not known."""
    discarded: npt.NDArray[np.int64] | None
    """Sequences, ascending; None: not known, or too many."""


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


def decode_departed(
    spool: bytes, data: bytes, *, most_blocks: int = MOST_BLOCKS, most_discarded: int = MOST_DISCARDED
) -> Iterator[Departed]:
    """The segment of each whole record in the bytes of a book; the first record of a segment counts.

    A record beyond `most_blocks` without sums is left out, as if it were not written; of those beyond
    `most_discarded` it is not known which messages were discarded.
    """
    known, blocks_left, discards_left = set[int](), most_blocks, most_discarded
    for head, at, end in _records(spool, data):
        if int(head["first_sequence"]) in known:
            continue
        known.add(int(head["first_sequence"]))
        unpaid = _spanned(head) - int(head["blocks"])
        if unpaid > blocks_left:
            continue
        blocks_left -= unpaid
        segment = _segment(head, data[at:end], discards_left)
        if segment.discarded is not None:
            discards_left -= len(segment.discarded)
        yield segment


def end_of_book(spool: bytes, data: bytes) -> int:
    """The offset behind the last whole record in the bytes of a book: what a crash left is behind it."""
    return max((end for _, _, end in _records(spool, data)), default=0)


def _records(spool: bytes, data: bytes) -> Iterator[tuple[Record, int, int]]:
    """(head, offset, offset behind it) of each whole record.

    Nothing in it is believed before its check: lengths are bounded, and work is linear in the bytes and in
    MOST_WASTED.
    """
    at, wasted = 0, 0
    while 0 <= at <= len(data) - HEAD.itemsize and wasted <= MOST_WASTED:
        head = _head(data, at)
        if head is None or not _is_whole(spool, head, data, at):
            wasted += 0 if head is None else _bytes(head)
            at = _next(data, at + ALIGN)
            continue
        end = at + _bytes(head)
        yield head, at, end
        at = end


def seed_of(spool: bytes) -> int:
    """The seed of the checks of a spool's book."""
    return int.from_bytes(spool[:8], "little") ^ int.from_bytes(spool[8:16], "little")


def _next(data: bytes, at: int) -> int:
    """The offset of the next magic at a multiple of 16, from `at` on; -1: there is none."""
    while (at := data.find(MAGIC, at)) >= 0 and at % ALIGN:
        at += 1
    return at


def _head(data: bytes, at: int) -> Record | None:
    """The head of a record that can be; None where there is none."""
    head = np.frombuffer(data, HEAD, 1, at)[0].copy()
    messages = int(head["messages"])
    if head["magic"] != MAGIC or head["version"] != VERSION or at + _bytes(head) > len(data):
        return None
    if not (0 < messages <= MOST_MESSAGES and int(head["first_sequence"]) < MOST_SEQUENCE):
        return None
    if int(head["blocks"]) > _spanned(head) or int(head["discarded_bytes"]) > _most_packed(messages):
        return None
    return head


def _is_whole(spool: bytes, head: Record, data: bytes, at: int) -> bool:
    """Whether the check of a record is right."""
    plain = head.copy()
    plain["check"] = 0
    body = data[at + HEAD.itemsize : at + _bytes(head)]
    return bool(head["check"] == digest(plain.tobytes() + body, seed_of(spool)))


def _bytes(head: Record) -> int:
    """The length of a record."""
    length = HEAD.itemsize + int(head["blocks"]) * SUM.itemsize + int(head["discarded_bytes"])
    return length + -length % ALIGN


def _spanned(head: Record) -> int:
    """The blocks that a segment has messages of."""
    first, messages = int(head["first_sequence"]), int(head["messages"])
    return ((first + messages - 1) >> SUM_BITS) - (first >> SUM_BITS) + 1


def _most_packed(messages: int) -> int:
    """Bytes of zstd's, at most, for a bit of each message (ZSTD_COMPRESSBOUND, rounded up)."""
    plain = -(-messages // 8)
    return plain + (plain >> 8) + 128


def _segment(head: Record, data: bytes, most: int) -> Departed:
    """The segment of a record, which is whole; discards are not known if they are more than `most`."""
    first, messages, behind = int(head["first_sequence"]), int(head["messages"]), HEAD.itemsize
    sums_end = behind + int(head["blocks"]) * SUM.itemsize
    sums = np.frombuffer(data[behind:sums_end], SUM) if head["flags"] & SUMS_KNOWN else None
    bits = data[sums_end : sums_end + int(head["discarded_bytes"])]
    discarded = _sequences(bits, first, messages, most) if head["flags"] & DISCARDS_KNOWN else None
    return Departed(first, messages, sums, discarded)


def _sequences(bits: bytes, first: int, messages: int, most: int) -> npt.NDArray[np.int64] | None:
    if not bits:
        return np.empty(0, np.int64)
    plain = decompress(bits, -(-messages // 8))
    if plain is None or int(np.bitwise_count(np.frombuffer(plain, np.uint8)).sum(dtype=np.int64)) > most:
        return None
    flags = np.unpackbits(np.frombuffer(plain, np.uint8), count=messages, bitorder="little")
    return first + np.flatnonzero(flags)
