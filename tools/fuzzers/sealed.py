"""Correct digests in damaged bytes: no fuzzer would guess them, and the code after the checks would not run.

input := which:u8 segment        which: 1 the header's check, 2 the frames' chain, 4 the footer's check
"""

from __future__ import annotations

import struct

from spool.errors import SpoolError
from spool.format.segment_format import (
    FOOTER_TAIL,
    HEAD_BYTES,
    HEADER_BYTES,
    OLD_KEYS,
    Keys,
    decode_header,
    footer_bytes,
    keys_of,
    unsigned,
)
from spool.native.digest import digest

HEADER, FRAMES, FOOTER = 1, 2, 4
_MOST_FRAMES = 64


def seal_input(data: bytes) -> bytes:
    """The segment that an input encodes."""
    which, segment = data[0] if data else 0, bytearray(data[1:])
    if which & HEADER and len(segment) >= HEADER_BYTES:
        struct.pack_into("<Q", segment, HEADER_BYTES - 8, digest(bytes(segment[: HEADER_BYTES - 8])))
    if which & FRAMES and len(segment) >= HEADER_BYTES:
        _seal_frames(segment)
    if which & FOOTER:
        _seal_footer(segment)
    return bytes(segment)


def _keys(segment: bytes | bytearray) -> Keys:
    """The keys of a segment; those of version 1 if it has no valid header."""
    try:
        return keys_of(decode_header(bytes(segment[:HEADER_BYTES]), "input"))
    except SpoolError:
        return OLD_KEYS


def _seal_frames(segment: bytearray) -> None:
    """Give every whole frame of the segment its mark, its digest, and that of the one before."""
    (previous,), keys = struct.unpack_from("<Q", segment, 64), _keys(segment)
    at = HEADER_BYTES
    for _ in range(_MOST_FRAMES):
        if at + HEAD_BYTES > len(segment):
            return
        (body,) = struct.unpack_from("<I", segment, at + 24)
        end = at + HEAD_BYTES + body
        if end > len(segment):
            return
        struct.pack_into("<Q", segment, at + 56, previous)
        struct.pack_into("<I", segment, at + 8, keys.mark)
        previous = digest(bytes(segment[at + 8 : end]), unsigned(keys.key) ^ previous)
        struct.pack_into("<Q", segment, at, previous)
        at = (end + 7) & ~7


def _seal_footer(segment: bytearray) -> None:
    """Give the bytes that claim to be a footer their check."""
    length, tail = footer_bytes(bytes(segment)), FOOTER_TAIL.itemsize
    if tail < length <= len(segment):
        body = bytes(segment[len(segment) - length : len(segment) - tail])
        struct.pack_into("<Q", segment, len(segment) - tail, digest(body, unsigned(_keys(segment).key)))
