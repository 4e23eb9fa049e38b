"""The bytes that an attacker who knows the format, but no file of the spool, can make."""

from __future__ import annotations

import struct

import numpy as np
import zstandard

from ingest.buffers.staging import (
    CONTROL_BYTES,
    LAYOUT_VERSION,
    MSG_LEN_AT,
    MSGHDR_BYTES,
    NOT_RECEIVED,
    RESERVE,
    SLOT_BYTES,
    buffer_bytes,
    control_at,
    overflow_at,
    slots_at,
)
from ingest.buffers.staging import MAGIC as STAGING
from spool.format.segment_format import (
    HEADER_BYTES,
    OLD_KEYS,
    VERSION,
    Keys,
    decode_header,
    encode_header,
    keys_of,
    unsigned,
)
from spool.format.wire import encode
from spool.native.digest import digest

HEAD = struct.Struct("<Q4sHHIIIIQQQQ")
MAGIC = b"bfrm"
LAST_BURST = 2**63 - 1
MOST_BYTES = 60_000
ARMED, BUFFERS = 64, 4096
"""Offsets in a staging file: the burst in its first buffer, and that buffer."""
STEP, HEADER_STEP = 20, 10
"""Between the sequence numbers that are tried: a search believes one that is ahead by a message for every 41
bytes that it has passed over. A group of frames takes about a thousand, a header and a frame about 500."""
FORBIDDEN = "forbidden"
VICTIM_UID = 0


def frame(sequence: int, burst: int, *, keys: Keys = OLD_KEYS) -> bytes:
    """A frame of one message under another's uid, whose digest is right in a segment with these keys."""
    held = encode(FORBIDDEN.encode(), b"forged", timestamp=1)
    body = struct.pack("<II", len(held), VICTIM_UID) + held
    mark = keys.mark.to_bytes(4, "little")
    head = HEAD.pack(0, mark, 64, 1, 1, 0, len(body), 0, sequence, burst, 1, 0)
    whole = struct.pack("<Q", digest(head[8:] + body, unsigned(keys.key))) + head[8:] + body
    return whole + bytes(-len(whole) % 8)


def frames(sequence: int, burst: int, keys: Keys = OLD_KEYS) -> bytes:
    """Frames for every number that may be next, at every possible alignment."""
    value, count = b"", 0
    while len(value) < MOST_BYTES:
        number = LAST_BURST if count % 2 else burst + 1 + count
        for _ in range(8):
            value += frame(sequence + count * STEP, number, keys=keys) + b"\xff"
        count += 1
    return value[:MOST_BYTES]


def frames_with_footer(sequence: int, burst: int) -> bytes:
    """The same, each followed by the beginning of a footer, so that a search believes that the log ends."""
    value, count = b"", 0
    while len(value) < MOST_BYTES:
        for _ in range(8):
            value += frame(sequence + count * STEP, burst + 1) + footer(sequence + count * STEP) + b"\xff"
        count += 1
    return value[:MOST_BYTES]


def footer(sequence: int, *, version: int = 1, end: int = HEADER_BYTES, keys: Keys = OLD_KEYS) -> bytes:
    """A whole footer without marks or topics, whose check is right in a segment with these keys."""
    body = struct.pack("<8sIIII", b"bruceftr", version, 0, 0, 0)
    body += struct.pack("<QQQQQ", end, 0, sequence, 0, 0) + bytes(32) + bytes(8 * 32)
    return body + struct.pack("<QQ8s", digest(body, unsigned(keys.key)), len(body) + 24, b"brucefin")


def headers(sequence: int, burst: int) -> bytes:
    """Segment headers of this spool's next segments, at every alignment, each with a frame behind it."""
    value = b""
    for number in range(1, 100):
        head = bytearray(384)
        struct.pack_into("<8sII", head, 0, b"bruceseg", 1, 384)
        struct.pack_into("<Qq", head, 48, number, sequence + number * HEADER_STEP)
        struct.pack_into("<QQQ", head, 64, 0, 1, sequence)
        struct.pack_into("<Q", head, 88, burst)
        struct.pack_into("<Q", head, 376, digest(bytes(head[:376])))
        value += bytes(head) + frame(sequence + number * HEADER_STEP, burst + 1) + b"\xff"
    return value[:MOST_BYTES]


def packed(sequence: int, burst: int) -> bytes:
    """zstd frames of planted frames, of a gigabyte of zeros, and skippable ones that claim four."""
    held = zstandard.compress(frames(sequence, burst))
    bomb = zstandard.ZstdCompressor(level=3).compress(bytes(64 << 20))
    skippable = struct.pack("<II", 0x184D2A50, 0xFFFFFFF0)
    one = held + bomb[:8192] + skippable + b"\xff"
    return (one * (MOST_BYTES // len(one) + 1))[:MOST_BYTES]


def packed_bomb(spool: bytes, number: int, blocks: int) -> bytes:
    """Segment `number` of the spool with this uuid, packed: blocks of 1 MiB, each of some 60 bytes."""
    header = encode_header(number=number, first_sequence=number - 1, spool=spool, secret=bytes(range(16)))
    keys, plain = keys_of(decode_header(header, "a bomb")), 1 << 20
    held = zstandard.ZstdCompressor(write_checksum=True).compress(b"\1" * plain)
    lengths, found = struct.pack("<II", len(held), plain), [struct.pack("<8sI52x", b"brucezst", 2), header]
    for block in range(blocks):
        at = HEADER_BYTES + block * plain
        found.append(lengths + struct.pack("<Q", digest(lengths + held, unsigned(keys.key ^ at))) + held)
    end = HEADER_BYTES + blocks * plain
    return b"".join([*found, footer(number, version=VERSION, end=end, keys=keys)])


def staging(spool: bytes) -> tuple[bytes, int]:
    """(its first bytes, its size) of a staging file of the spool with this uuid: the first burst is in it."""
    slots, held = 8, encode(FORBIDDEN.encode(), b"forged", timestamp=1)
    data = bytearray(BUFFERS + overflow_at(slots))
    struct.pack_into("<8sII16sQ", data, 0, STAGING, LAYOUT_VERSION, slots, spool, 0)
    struct.pack_into("<Q", data, ARMED, 1)
    for slot in range(slots):
        header, control = BUFFERS + slot * MSGHDR_BYTES, BUFFERS + control_at(slots) + slot * CONTROL_BYTES
        struct.pack_into("<I", data, header + MSG_LEN_AT, len(held) if slot < slots - 1 else NOT_RECEIVED)
        struct.pack_into("<QIIIII", data, control, 28, 1, 2, 1, VICTIM_UID, VICTIM_UID)
        at = BUFFERS + slots_at(slots) + slot * SLOT_BYTES
        data[at : at + len(held)] = held
    return bytes(data), BUFFERS + (1 + RESERVE) * buffer_bytes(slots)


def fake_heads(sequence: int, burst: int) -> bytes:
    """Heads with plausible numbers that claim bodies of many MiB: a search digests them all in vain."""
    value = np.zeros(MOST_BYTES, np.uint8)
    head = HEAD.pack(1, MAGIC, 64, 0, 1, 0, 8 << 20, 0, sequence + 1, burst + 1, 1, 0)
    for at in range(0, MOST_BYTES - 64, 65):
        value[at : at + 64] = np.frombuffer(head, np.uint8)
    return value.tobytes()
