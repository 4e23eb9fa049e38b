"""The lines of all stream connections: a sparse file on tmpfs beside staging, which outlives every process.

    0       magic "brucelin"  layout:u32=1  zero:u32  spool uuid:16
    32      limit:u64         bytes of a message, its size field not counted
    40      used:u64          lines from this one on were never in use
    64      burst:u64         the burst that is being made of runs; 0 for none
    72      runs:u64          how many
    128     run[MOST_RUNS]    line:u64 number:u64, of those runs
    4096    head[MOST_LINES]  ingest.line
    ...     side[2*MOST_LINES], the two of a line one after the other, of as many pages as a message may take

Only what bytes are received into takes memory; it is reserved before.

Runs go into the log in bursts, as datagrams do. With L the last burst that is in the log or in the ledger:

1. the runs that are offered, and then the burst L + 1, are noted here;
2. they are stored as one frame; its digest makes L + 1 the last burst;
3. each run is called taken, and then no burst is noted.

After a crash, a burst that is noted here and is L + 1 is stored, from lines that nobody has changed; of one
that is not above L the runs are called taken, which may be done twice.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ingest import line
from ingest.access import NO_ID, TCP_GID
from ingest.bank import load_word, store_word
from ingest.errors import BadStaging
from ingest.line import (
    COUNT,
    FROM,
    GID,
    HEAD_BYTES,
    OFFERED,
    PID,
    REASON,
    SIZE_BYTES,
    TAIL,
    TCP,
    UID,
    UNTIL,
)
from ingest.staging import PUNCH
from spool.errors import NotAFile, NotOurs
from spool.format import MAX_BURST
from spool.kernel import address_of, kernel, load_acquire, load_u32
from spool.mapping import Mapping
from spool.own import Owners, open_own, put_own, read_believed
from spool.wire import load_be32

MAGIC = b"brucelin"
LAYOUT_VERSION = 1
_NOT_THERE = (FileNotFoundError, NotADirectoryError, PermissionError, NotAFile, NotOurs)
MOST_LINES = 4096
_MOST_LIMIT = 1 << 32
"""What no file says that we have made: its field is not to be computed with unseen."""
MOST_RUNS = 64
"""In a burst."""
MOST_BYTES = 1 << 20
"""Of the body of a burst of several runs."""
_LIMIT, _USED, _BURST, _RUNS, _ROWS, _HEADS = 32, 40, 64, 72, 128, 4096
_SIDES = _HEADS + MOST_LINES * HEAD_BYTES
_NOTED_LATER = 1 << 62

MESSAGE_FIELDS = 6
AT, LENGTH, SENDER_UID, SENDER_PID, SENDER_GID, REFUSED = range(MESSAGE_FIELDS)
"""Columns of a message: its address, bytes, sender (by TCP the gid is TCP_GID), and the Reason for which
it is refused already."""

Messages = npt.NDArray[np.int64]

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Bells:
    """Eventfds between who receives and who stores."""

    offered: int
    taken: int


def make_bells() -> Bells:
    """Two of them, silent."""
    return Bells(os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK))


class Lines:
    """One mapped file of lines."""

    def __init__(self, path: Path, spool: bytes, limit: int, bells: Bells, *, room: int) -> None:
        """Map the lines of spool uuid `spool`, which are made when they are not there.

        Those that are there keep the limit that they were made with: other workers may have them mapped.
        `room`: bytes of the body of a frame, at most (spool.format.body_room). Raises BadStaging, OSError.
        """
        self.bells, self.room = bells, room
        self.path = path
        if not os.path.lexists(path):
            _create(path, spool, limit)
        self._file = open_own(path, secret=True)
        try:
            _check(self._file, path, spool)
        except BadStaging:
            os.close(self._file)
            raise
        self._mapping = Mapping(os.dup(self._file))
        self.address = self._mapping.address
        self.heads = self.address + _HEADS
        self.limit = int(load_word(self.address + _LIMIT))
        self.side_bytes = side_bytes(self.limit)
        self._next = 0
        self._rows = self._mapping.bytes[_ROWS:][: 16 * MOST_RUNS].view(np.int64).reshape(-1, 2)
        self.messages: Messages = np.zeros((MAX_BURST, MESSAGE_FIELDS), np.int64)

    def close(self) -> None:
        """Let go of the mapping; what is in there stays."""
        os.close(self._file)
        del self._rows
        self._mapping.close()

    def head(self, number: int) -> int:
        """The address of a line's head."""
        return self.heads + number * HEAD_BYTES

    def side(self, number: int, side: int) -> int:
        """The address of a side of a line."""
        return self.address + _SIDES + (2 * number + side) * self.side_bytes

    def reserve(self, number: int, side: int, begin: int, end: int) -> bool:
        """Have memory for [begin, end) of a side; False without room."""
        return self._fallocate(0, number, side, begin, end)

    def give_back(self, number: int, side: int, begin: int) -> None:
        """Need no memory behind the first `begin` bytes of a side."""
        self._fallocate(PUNCH, number, side, begin, self.side_bytes)

    def _fallocate(self, how: int, number: int, side: int, begin: int, end: int) -> bool:
        at = self.side(number, side) - self.address + begin
        while _libc.fallocate(self._file, how, ctypes.c_int64(at), ctypes.c_int64(end - begin)):
            if ctypes.get_errno() != errno.EINTR:
                return False
        return True

    @property
    def used(self) -> int:
        """Lines from this one on were never in use."""
        return int(load_word(self.address + _USED))

    def use(self, number: int) -> None:
        """Count a line among those that may be in use."""
        if number >= self.used:
            store_word(self.address + _USED, number + 1)

    # -- for who stores ---------------------------------------------------------------------------------

    @property
    def noted(self) -> int:
        """The burst that is being made of runs; 0 for none."""
        return int(load_word(self.address + _BURST))

    def gather(self, burst: int) -> int:
        """Note runs that are offered, those of one line after the other, as this burst; how many."""
        store_word(self.address + _BURST, 0)
        count, self._next = gather(self.heads, self.used, self._next, self._rows, min(MOST_BYTES, self.room))
        if count:
            store_word(self.address + _RUNS, count)
            store_word(self.address + _BURST, burst)
        return int(count)

    def list_messages(self) -> int:
        """Fill `messages` with those of the burst that is noted; how many."""
        runs = int(load_word(self.address + _RUNS))
        return int(list_messages(self.address, self.side_bytes, self._rows[:runs], self.messages))

    def image(self, count: int) -> bytes:
        """The first `count` messages, length by length, for quarantine."""
        return b"".join(
            length.to_bytes(4, "little") + ctypes.string_at(at, length)
            for at, length in self.messages[:count, : LENGTH + 1].tolist()
        )

    def settle(self) -> None:
        """The burst that is noted is in the log: its runs are taken, and it is noted no more."""
        for number, run in self._rows[: int(load_word(self.address + _RUNS))].tolist():
            line.take(self.head(number), run)
        # Rung while the burst is noted still: who is killed here has a successor that rings.
        os.eventfd_write(self.bells.taken, 1)
        store_word(self.address + _BURST, 0)

    def hush(self) -> None:
        """Take up that somebody has offered something."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.bells.offered)


@kernel
def side_bytes(limit: int) -> int:
    """Of one side of a line, whole pages."""
    return (limit + SIZE_BYTES + 4095) & ~4095


@kernel
def gather(heads: int, used: int, first: int, rows: npt.NDArray[np.int64], most: int) -> tuple[int, int]:
    """Fill `rows` with (line, run) of what is offered, from line `first` on: (how many, where to go on).

    One run always, however long; more while a body of `most` bytes takes them.
    """
    count = messages = total = 0
    for step in range(used):
        number = (first + step) % used
        head = heads + number * HEAD_BYTES
        if not line.waits(head):
            continue
        run = line.run_at(head)
        more = load_u32(run + COUNT) + (1 if load_u32(run + REASON) != 0 else 0)
        length = load_u32(run + UNTIL) - load_u32(run + FROM)
        full = messages + more > MAX_BURST or line.body_bytes(total + length, messages + more) > most
        if count > 0 and full:
            return count, number
        rows[count, 0], rows[count, 1] = number, load_acquire(head + OFFERED)
        count += 1
        messages += more
        total += length
        if count == MOST_RUNS:
            return count, number + 1
    return count, first


@kernel
def list_messages(address: int, side: int, rows: npt.NDArray[np.int64], out: Messages) -> int:
    """Fill `out` with the messages of runs (line, number), what ended a connection included; how many."""
    used = 0
    for i in range(rows.shape[0]):
        head = address + _HEADS + rows[i, 0] * HEAD_BYTES
        run = line.run_at(head)
        at = address + _SIDES + (2 * rows[i, 0] + line.side_of(head)) * side
        end = at + load_u32(run + UNTIL)
        at += load_u32(run + FROM)
        for _ in range(load_u32(run + COUNT)):
            used = _add(out, used, at, load_be32(at), head, 0)
            at += load_be32(at)
        if load_u32(run + REASON) != 0:
            used = _add(out, used, end, load_u32(run + TAIL), head, load_u32(run + REASON))
    return used


@kernel
def _add(out: Messages, used: int, at: int, length: int, head: int, reason: int) -> int:
    out[used, AT], out[used, LENGTH], out[used, REFUSED] = at, length, reason
    out[used, SENDER_UID], out[used, SENDER_PID] = load_u32(head + UID), load_u32(head + PID)
    gid = (load_u32(head + GID) - 1) & NO_ID
    out[used, SENDER_GID] = TCP_GID if line.kind_of(head) == TCP else gid
    return used + 1


def lines_path(staging: Path) -> Path:
    """Where the lines of a spool lie: beside its staging."""
    return staging.with_suffix(".lines")


def read_lines(path: Path, owners: Owners = ()) -> list[tuple[int, int]]:
    """(burst, messages) of the runs that wait, without mapping or changing anything.

    Those that no burst was made of count as of one that is never stored. `owners`: as of read_staging.
    """
    try:
        data = read_believed(path, _SIDES, owners=owners)
    except _NOT_THERE:
        return []
    if len(data) < _SIDES or not data.startswith(MAGIC):
        return []
    words = np.frombuffer(data, np.int64)
    runs = min(int(words[_RUNS // 8]), MOST_RUNS)
    burst = int(words[_BURST // 8])
    noted = set(map(tuple, words[_ROWS // 8 :][: 2 * runs].reshape(-1, 2).tolist())) if burst else set()
    heads = np.frombuffer(data, np.uint32, offset=_HEADS).reshape(MOST_LINES, HEAD_BYTES // 4)
    found = []
    for number in np.flatnonzero(heads[:, OFFERED // 4] != heads[:, line.TAKEN // 4]).tolist():
        offered = int(heads[number, OFFERED // 4 :][:2].view(np.int64)[0])
        run = heads[number, (192 + 24 * (offered & 1)) // 4 :][:6]
        whole = int(run[COUNT // 4]) + int(run[REASON // 4] != 0)
        found.append((burst if (number, offered) in noted else _NOTED_LATER, whole))
    return found


def holds_anything(path: Path) -> bool:
    """Whether any line is in use, or offers a run."""
    try:
        heads = np.frombuffer(read_believed(path, _SIDES), np.int64, offset=_HEADS).reshape(MOST_LINES, -1)
    except (*_NOT_THERE, ValueError):
        return False
    return bool(heads[:, line.KIND // 8].any()) or bool(read_lines(path))


def make_way(path: Path, limit: int) -> None:
    """Before anybody maps them: remove lines that were made for another limit, and hold nothing."""
    if path.exists() and not holds_anything(path) and _limit_of(path) != limit:
        path.unlink()


def _limit_of(path: Path) -> int:
    return int.from_bytes(read_believed(path, _USED)[_LIMIT:], "little")


def _check(fd: int, path: Path, spool: bytes) -> None:
    """Raises BadStaging for what is no file of this spool's lines, or not as long as it says."""
    head = os.pread(fd, _USED, 0)
    ours = head[:12] == MAGIC + LAYOUT_VERSION.to_bytes(4, "little") and head[16:32] == spool
    limit = int.from_bytes(head[_LIMIT:], "little")
    if not ours or limit > _MOST_LIMIT or os.fstat(fd).st_size != _file_bytes(limit):
        raise BadStaging(f"{path} holds no streams of this spool; move it away and start again")


def _file_bytes(limit: int) -> int:
    return _SIDES + 2 * MOST_LINES * side_bytes(limit)


def _create(path: Path, spool: bytes, limit: int) -> None:
    def fill(fd: int) -> None:
        os.ftruncate(fd, _file_bytes(limit))
        os.posix_fallocate(fd, 0, _SIDES)
        head = MAGIC + LAYOUT_VERSION.to_bytes(4, "little") + bytes(4) + spool
        os.pwrite(fd, head + limit.to_bytes(8, "little"), 0)

    put_own(path, fill)


def compile_kernels() -> None:
    """Compile, or load from the cache, what storing runs takes."""
    line.compile_kernels()
    rows = np.zeros((0, 2), np.int64)
    head = np.zeros(HEAD_BYTES, np.uint8)
    gather(address_of(head), 0, 0, rows, 0)
    list_messages(0, 0, rows, np.zeros((0, MESSAGE_FIELDS), np.int64))
    side_bytes(0)
