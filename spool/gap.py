"""Gaps: what a repair leaves in a segment in place of bytes that hold no good frame.

    gap := magic:8s="brucegap" bytes:u64 messages:u64 check:u64 zeros

Little-endian. A gap begins where a frame could and takes `bytes` in all; `messages` are lost there, and
`check` is the xxh3 of the 24 bytes before it, seeded with the segment's key. Readers need not know of gaps:
to them each is damage like any other, and they go on at the next good frame. It tells the next check, and the
next repair, that this loss is known.
"""

from __future__ import annotations

import struct

from spool.digest import digest
from spool.disk import read_at
from spool.format import unsigned

MAGIC = b"brucegap"
_FIELDS = struct.Struct("<8sQQ")
GAP_BYTES = _FIELDS.size + 8
"""Shorter than this no gap is."""


def encode_gap(length: int, messages: int, key: int) -> bytes:
    """A gap of `length` bytes in the segment with this key, in which so many messages are lost."""
    fields = _FIELDS.pack(MAGIC, length, messages)
    return (fields + digest(fields, unsigned(key)).to_bytes(8, "little")).ljust(length, b"\0")


def read_gap(fd: int, offset: int, key: int) -> tuple[int, int] | None:
    """(bytes, messages) of the gap at an offset of the segment with this key; None where none begins."""
    data = read_at(fd, GAP_BYTES, offset)
    fields, check = data[: _FIELDS.size], data[_FIELDS.size :]
    if not data.startswith(MAGIC) or digest(fields, unsigned(key)).to_bytes(8, "little") != check:
        return None
    _, length, messages = _FIELDS.unpack(fields)
    return length, messages
