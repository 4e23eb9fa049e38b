"""Records of the discard file, made by plain Python."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from spool.marks.discard_file import GivenUp, Records
from spool.native.digest import digest


def encode_record(one: GivenUp) -> bytes:
    """A record as the module's docstring has it, padding included."""
    head = struct.pack(
        "<4sIII16sQQ", b"bdis", len(one.datagram), one.reason, 0, one.spool, one.sequence, one.time_ns
    )
    rest = head + one.datagram
    return struct.pack("<Q", digest(rest)) + rest + bytes(-len(rest) % 8)


def records_of(messages: Sequence[GivenUp]) -> Records:
    """The records of these, to be appended."""
    records = [encode_record(one) for one in messages]
    return Records(np.frombuffer(b"".join(records), np.uint8), np.cumsum([len(one) for one in records]))
