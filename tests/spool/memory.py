"""A chain of frames in memory, as an appender writes it, without files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from spool.format.frame import BURST, POSITION, finish, tail_at_start
from spool.format.scan import digest_address
from spool.format.segment_format import HEAD_BYTES, HEADER_BYTES, PIDS, UIDS, decode_header, encode_header
from spool.format.wire import encode
from spool.log.writer import encode_body
from spool.native.memory import address_of
from tests.spool import plain

FIRST = 1000
"""Sequence number of the first message."""


class Chain:
    """A segment in memory. `offsets`: those of its frames."""

    def __init__(self, size: int = 1 << 16, first: int = FIRST, **fields: object) -> None:
        self.memory = np.zeros(size, np.uint8)
        header = encode_header(number=1, first_sequence=first, **fields)
        self.memory[:HEADER_BYTES] = np.frombuffer(header, np.uint8)
        self.tail = tail_at_start(decode_header(header, "memory"))
        self.offsets: list[int] = []

    @classmethod
    def of(cls, frames: int, *, even: bool = False, value: bytes = b"value", first: int = FIRST) -> Chain:
        """A chain of small frames; `even`: all of one length."""
        chain = cls(4096, first)
        for i in range(frames):
            chain.append([encode(b"t", value + b"%d" % i * (1 if even else i))] * 2, {1: (1, b"xyz")}, (i, i))
        return chain

    def append(
        self, datagrams: Sequence[bytes], refused: Mapping[int, tuple[int, bytes]], sender: tuple[int, int]
    ) -> None:
        """Append one frame."""
        body, rows = encode_body(datagrams, refused, sender)
        at = int(self.tail[POSITION])
        self.offsets.append(at)
        self.memory[at + HEAD_BYTES : at + HEAD_BYTES + len(body)] = np.frombuffer(body, np.uint8)
        finish(
            address_of(self.memory),
            self.tail,
            len(datagrams),
            sum(n for n, _ in refused.values()),
            len(body),
            rows,
            UIDS | PIDS,
            int(self.tail[BURST]) + 1,
            1_700_000_000_000_000_000 + len(self.offsets),
            digest_address(),
        )

    def data(self) -> bytes:
        """The bytes of the segment."""
        return self.memory.tobytes()

    def padding(self, frame: plain.Frame) -> range:
        """Offsets of the zeros that pad a frame, which no digest covers."""
        body = int.from_bytes(self.memory[frame.offset + 24 : frame.offset + 28].tobytes(), "little")
        end = frame.offset + HEAD_BYTES + body
        return range(end, (end + 7) & ~7)
