"""The loop that stores a burst, over memory: one input between two messages that are good."""

from __future__ import annotations

import ctypes

import numpy as np

from ingest.buffers.messages import MESSAGE
from ingest.buffers.staging import SLOT_BYTES
from ingest.worker import burst
from spool.format.frame import POSITION, tail_at_start
from spool.format.scan import digest_address
from spool.format.segment_format import HEADER_BYTES, decode_header, encode_header
from spool.format.wire import MAX_DATAGRAM_BYTES, encode
from spool.native.memory import Address, address_of, function_address
from spool.shared.state import WORDS
from tools.fuzzers.wall import Wall

NEIGHBOUR = encode(b"neighbour", b"value")
UID, PID = 1, 2
_ROOM = 256 << 10
"""For the largest batch, and the columns of its messages."""
_SCRATCH_BYTES = MAX_DATAGRAM_BYTES + 16


class Intake:
    """An intake without sockets, whose segment is empty before each burst."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._header = encode_header(number=1, first_sequence=7)
        self._segment = np.zeros(_ROOM, np.uint8)
        self._shared, self._scratch = np.zeros(WORDS, np.int64), np.zeros(_SCRATCH_BYTES, np.uint8)
        self._neighbour = np.frombuffer(NEIGHBOUR, np.uint8).copy()
        self._slot, self._rest = Wall(SLOT_BYTES), Wall(MAX_DATAGRAM_BYTES)
        self._messages = np.zeros(3, MESSAGE)
        self._job = np.zeros(burst.JOB_FIELDS, np.int64)
        self._job[burst.BASE], self._job[burst.CAPACITY] = address_of(self._segment), _ROOM
        self._job[burst.NUMBER] = 1
        self._job[burst.SCRATCH], self._job[burst.PAGE] = address_of(self._scratch), address_of(self._shared)
        self._job[burst.CLOCK] = function_address(libc.clock_gettime)
        self._job[burst.DIGEST] = digest_address()

    def store(self, data: bytes) -> bytes:
        """The segment behind a burst of three, of which the second is `data`.

        A large one is in two pieces, each with its end at a page that may not be touched.
        """
        self._segment[:] = 0
        self._segment[:HEADER_BYTES] = np.frombuffer(self._header, np.uint8)
        tail = tail_at_start(decode_header(self._header, "input"))
        first, rest = self._slot.place(data[:SLOT_BYTES]), self._rest.place(data[SLOT_BYTES:])
        # As the intake finds them: what the burst before left in these two is not reset.
        self._messages["batch"] = self._messages["wrong"] = 77
        for row, memory in zip(self._messages, (self._neighbour, first, self._neighbour), strict=True):
            row["at"], row["first"], row["length"] = address_of(memory), len(memory), len(memory)
            row["rest"], row["uid"], row["pid"] = 0, UID, PID
        if len(rest):
            self._messages[1]["rest"], self._messages[1]["length"] = address_of(rest), len(data)
        stored = burst.store(self._job, tail, self._messages, len(self._messages), 0)
        assert stored == burst.STORED
        return self._segment[: int(tail[POSITION])].tobytes()

    @property
    def base(self) -> Address:
        """The address of the segment."""
        return address_of(self._segment)
