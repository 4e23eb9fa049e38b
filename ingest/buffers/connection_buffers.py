"""All connection buffers: a sparse file on tmpfs beside staging, which outlives every process.

    0       magic "brucelin"  layout:u32=1  zero:u32  spool uuid:16
    32      limit:u64         bytes of a message, its size field not counted
    40      used:u64          buffers from this one on were never in use
    64      burst:u64         the burst that is being made of runs; 0 for none
    72      runs:u64          how many
    128     run[MOST_RUNS]    buffer:u64 number:u64, of those runs
    4096    head[MOST_BUFFERS]    ingest.buffers.connection_buffer
    ...     side[2*MOST_BUFFERS], the two of a buffer one after the other, of as many pages as a message may
            take

Memory is taken by the pages that bytes are received into, and is reserved before.

Runs go into the log in bursts, as datagrams do. With L the last burst that is in the log or in the ledger:

1. the runs that are offered, and then the burst L + 1, are noted here;
2. they are stored as one frame; its digest makes L + 1 the last burst;
3. each run is called taken, and then no burst is noted.

After a crash, a burst that is noted here and is L + 1 is stored, from buffers that no process has changed; of
one that is not above L the runs are called taken, which may be done twice.
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

from ingest.access import NO_ID, TCP_GID
from ingest.buffers import connection_buffer
from ingest.buffers.connection_buffer import (
    COUNT,
    FROM,
    GID,
    HEAD,
    HEAD_BYTES,
    KAFKA,
    OFFERED,
    PID,
    REASON,
    SIZE_BYTES,
    TAIL,
    TCP,
    UID,
    UNTIL,
)
from ingest.buffers.messages import MESSAGE, OUTCOME_BYTES, Messages
from ingest.buffers.staging import PUNCH, load_word, read_staging, store_word
from ingest.errors import BadStaging
from spool.errors import NotAFile, NotOurs
from spool.format.segment_format import MAX_BURST
from spool.format.wire import load_be32
from spool.native.kernel import kernel, subkernel
from spool.native.memory import Address, address_of, load_acquire, load_u32
from spool.shared import histogram
from spool.storage.disk import Mapping
from spool.storage.ownership import Owners, open_own, put_own, read_believed

MAGIC = b"brucelin"
LAYOUT_VERSION = 1
_NOT_THERE = (FileNotFoundError, NotADirectoryError, PermissionError, NotAFile, NotOurs)
MOST_BUFFERS = 4096
_MOST_LIMIT = 1 << 32
"""No file that we made says more; the field is checked before it is computed with."""
MOST_RUNS = 64
"""In a burst."""
MOST_BYTES = 1 << 20
"""Of the body of a burst of several runs."""
_LIMIT, _USED, _BURST, _RUNS, _ROWS, _HEADS = 32, 40, 64, 72, 128, 4096
_SIDES = _HEADS + MOST_BUFFERS * HEAD_BYTES
_NUMBER, _RUN = range(2)
"""Columns of the rows of a burst: a buffer, and its run."""
_NOTED_LATER = 1 << 62
_PAGE_MASK = 4095
_STREAM, _TCP, _KAFKA = histogram.STREAM, histogram.TCP, histogram.KAFKA
OUTCOMES_BYTES = MAX_BURST * OUTCOME_BYTES
"""At the front of a side of a buffer whose kind is KAFKA: an OUTCOME for each message or batch of its run."""
LANE_SLACK_BYTES = OUTCOMES_BYTES + (64 << 10)
"""Of such a side, beside the largest message."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Bells:
    """Eventfds between the stream worker, which receives, and the ingest worker, which stores."""

    offered: int
    taken: int


def make_bells() -> Bells:
    """Two of them, silent."""
    return Bells(os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK))


class ConnectionBuffers:
    """One mapped file of buffers."""

    def __init__(self, path: Path, spool: bytes, limit: int, bells: Bells, *, room: int) -> None:
        """Map the buffers of spool uuid `spool`; make the file when it does not exist.

        An existing file keeps the limit that it was made with: other workers may have it mapped. `room`:
        bytes of the body of a frame, at most (spool.format.segment_format.body_room). Raises BadStaging,
        OSError.
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
        self.heads = Address(self.address + _HEADS)
        self.limit = int(load_word(Address(self.address + _LIMIT)))
        self.side_bytes = side_bytes(self.limit)
        self._next = 0
        self._taken = np.zeros(MOST_BUFFERS, np.int64)
        self._rows = self._mapping.bytes[_ROWS:][: 16 * MOST_RUNS].view(np.int64).reshape(-1, 2)

    def close(self) -> None:
        """Let go of the mapping; what is in there stays."""
        os.close(self._file)
        del self._rows
        self._mapping.close()

    def head(self, number: int) -> Address:
        """The address of a buffer's head."""
        return Address(self.heads + number * HEAD_BYTES)

    def side(self, number: int, side: int) -> Address:
        """The address of a side of a buffer."""
        return Address(self.address + _SIDES + (2 * number + side) * self.side_bytes)

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

    def _load(self, offset: int) -> int:
        return int(load_word(Address(self.address + offset)))

    def _store(self, offset: int, value: int) -> None:
        store_word(Address(self.address + offset), value)

    @property
    def used(self) -> int:
        """The number of the first buffer that was never in use; nor were those behind it."""
        return self._load(_USED)

    def use(self, number: int) -> None:
        """Count a buffer among those that may be in use."""
        if number >= self.used:
            self._store(_USED, number + 1)

    def list_taken(self, offers: npt.NDArray[np.bool_]) -> list[int]:
        """Remove buffers whose runs are taken from `offers` bool[MOST_BUFFERS]; their numbers."""
        count = list_taken(self.heads, self.used, offers, self._taken)
        return list(map(int, self._taken[:count]))

    # -- for the ingest worker --------------------------------------------------------------------------

    @property
    def noted(self) -> int:
        """The burst that is being made of runs; 0 for none."""
        return self._load(_BURST)

    def gather(self, burst: int) -> int:
        """Note offered runs, buffer by buffer, as this burst; how many."""
        self._store(_BURST, 0)
        count, self._next = gather(self.heads, self.used, self._next, self._rows, min(MOST_BYTES, self.room))
        if count:
            self._store(_RUNS, count)
            self._store(_BURST, burst)
        return int(count)

    def list_messages(self, out: Messages) -> int:
        """Fill `out` MESSAGE[MAX_BURST] with the messages of the noted burst; how many."""
        runs = self._load(_RUNS)
        return int(list_messages(self.address, self.side_bytes, self._rows[:runs], out))

    def settle(self) -> None:
        """The noted burst is in the log: mark its runs as taken, and note no burst."""
        for number, run in self._rows[: self._load(_RUNS)].tolist():
            connection_buffer.take(self.head(number), run)
        # Rung while the burst is still noted: a worker that is killed here has a successor that rings.
        os.eventfd_write(self.bells.taken, 1)
        self._store(_BURST, 0)

    def hush(self) -> None:
        """Clear the bell that the stream worker rings for an offer."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.bells.offered)


@kernel
def side_bytes(limit: int) -> int:
    """Of one side of a buffer, whole pages."""
    return (limit + SIZE_BYTES + _PAGE_MASK) & ~_PAGE_MASK


@kernel
def gather(heads: Address, used: int, first: int, rows: npt.NDArray[np.int64], most: int) -> tuple[int, int]:
    """Fill `rows` with (buffer, run) of offered runs, from buffer `first` on: (how many, where to go on).

    `rows` int64[MOST_RUNS, 2]. One run always, however long; more while a body of `most` bytes takes them.
    """
    count = messages = total = 0
    for step in range(used):
        number = (first + step) % used
        head = Address(heads + number * HEAD_BYTES)
        if not connection_buffer.waits(head):
            continue
        run = connection_buffer.run_at(head)
        more = load_u32(run + COUNT) + (1 if load_u32(run + REASON) != 0 else 0)
        length = load_u32(run + UNTIL) - load_u32(run + FROM)
        full = (
            messages + more > MAX_BURST
            or connection_buffer.body_bytes(total + length, messages + more) > most
        )
        if count > 0 and full:
            return count, number
        rows[count, _NUMBER], rows[count, _RUN] = number, load_acquire(head + OFFERED)
        count += 1
        messages += more
        total += length
        if count == MOST_RUNS:
            return count, number + 1
    return count, first


@kernel
def list_taken(heads: Address, used: int, offers: npt.NDArray[np.bool_], out: npt.NDArray[np.int64]) -> int:
    """Move the buffers whose runs are taken from `offers` to `out`; how many.

    `offers` bool[buffers]; `out` int64[buffers], their numbers.
    """
    count = 0
    for number in range(used):
        if offers[number] and not connection_buffer.waits(Address(heads + number * HEAD_BYTES)):
            offers[number] = False
            out[count] = number
            count += 1
    return count


@kernel
def list_messages(address: Address, side: int, rows: npt.NDArray[np.int64], out: Messages) -> int:
    """Fill `out` with the messages of runs, and what ended a connection; how many.

    `rows` int64[runs, 2]: (buffer, run), as `gather` fills them. `out` MESSAGE[n], with room for all. `side`:
    bytes of a side of a buffer.
    """
    used = 0
    for i in range(rows.shape[0]):
        head = Address(address + _HEADS + rows[i, _NUMBER] * HEAD_BYTES)
        run = connection_buffer.run_at(head)
        begin = address + _SIDES + (2 * rows[i, _NUMBER] + connection_buffer.side_of(head)) * side
        at, end = Address(begin + load_u32(run + FROM)), Address(begin + load_u32(run + UNTIL))
        tells = connection_buffer.kind_of(head) == KAFKA
        for number in range(load_u32(run + COUNT)):
            if at == end:
                used = _add(out, used, at, 0, head, load_u32(run + REASON))
                continue
            used = _add(out, used, at, load_be32(at), head, 0)
            if tells:
                out[used - 1]["outcome"] = begin + number * OUTCOME_BYTES
            at = Address(at + load_be32(at))
        if load_u32(run + REASON) != 0:
            used = _add(out, used, end, load_u32(run + TAIL), head, load_u32(run + REASON))
    return used


@subkernel
def _add(out: Messages, used: int, at: Address, length: int, head: Address, reason: int) -> int:
    row, kind = out[used], connection_buffer.kind_of(head)
    by_tcp = kind in (TCP, KAFKA)
    row["at"], row["length"], row["refused"] = at, length, reason
    row["first"], row["rest"] = length, 0
    row["uid"], row["pid"] = load_u32(head + UID), load_u32(head + PID)
    row["gid"] = TCP_GID if by_tcp else (load_u32(head + GID) - 1) & NO_ID
    row["input"] = _KAFKA if kind == KAFKA else _TCP if by_tcp else _STREAM
    row["outcome"] = 0
    return used + 1


def buffers_path(staging: Path) -> Path:
    """The file of a spool's connection buffers, beside its staging."""
    return staging.with_suffix(".lines")


def lanes_path(staging: Path) -> Path:
    """The file of the buffers of kind KAFKA."""
    return staging.with_suffix(".lanes")


def read_all_staging(staging: Path, owners: Owners = ()) -> list[tuple[int, int]]:
    """(burst, datagrams) of each burst in staging, and beside it, that may not be stored yet."""
    found = read_staging(staging, owners)
    for path in (buffers_path(staging), lanes_path(staging)):
        found += read_connection_buffers(path, owners)
    return found


def read_connection_buffers(path: Path, owners: Owners = ()) -> list[tuple[int, int]]:
    """(burst, messages) of the runs that wait, without mapping or changing anything.

    Runs that are in no burst count as of one that is never stored. `owners`: as in read_staging.
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
    heads = np.frombuffer(data, HEAD, MOST_BUFFERS, _HEADS)
    found = []
    for number in np.flatnonzero(heads["offered"] != heads["taken"]).tolist():
        offered = int(heads["offered"][number])
        run = heads["run"][number, offered & 1]
        whole = int(run["count"]) + int(run["reason"] != 0)
        found.append((burst if (number, offered) in noted else _NOTED_LATER, whole))
    return found


def holds_anything(path: Path) -> bool:
    """Whether any buffer is in use, or offers a run."""
    try:
        heads = np.frombuffer(read_believed(path, _SIDES), HEAD, MOST_BUFFERS, _HEADS)
    except (*_NOT_THERE, ValueError):
        return False
    return bool(heads["kind"].any()) or bool(read_connection_buffers(path))


def remove_unused(path: Path, limit: int) -> None:
    """Remove the file if it was made for another limit and holds nothing; only before a process maps it."""
    if path.exists() and not holds_anything(path) and _limit_of(path) != limit:
        path.unlink()


def _limit_of(path: Path) -> int:
    return int.from_bytes(read_believed(path, _USED)[_LIMIT:], "little")


def _check(fd: int, path: Path, spool: bytes) -> None:
    """Raises BadStaging for a file that is not of this spool's buffers, or is not of the size it says."""
    head = os.pread(fd, _USED, 0)
    ours = head[:12] == MAGIC + LAYOUT_VERSION.to_bytes(4, "little") and head[16:32] == spool
    limit = int.from_bytes(head[_LIMIT:], "little")
    if not ours or limit > _MOST_LIMIT or os.fstat(fd).st_size != _file_bytes(limit):
        raise BadStaging(f"{path} holds no streams of this spool; move it away and start again")


def _file_bytes(limit: int) -> int:
    return _SIDES + 2 * MOST_BUFFERS * side_bytes(limit)


def _create(path: Path, spool: bytes, limit: int) -> None:
    def fill(fd: int) -> None:
        os.ftruncate(fd, _file_bytes(limit))
        os.posix_fallocate(fd, 0, _SIDES)
        head = MAGIC + LAYOUT_VERSION.to_bytes(4, "little") + bytes(4) + spool
        os.pwrite(fd, head + limit.to_bytes(8, "little"), 0)

    put_own(path, fill)


def compile_kernels() -> None:
    """Compile what storing runs takes."""
    rows = np.zeros((0, 2), np.int64)
    head = np.zeros(HEAD_BYTES, np.uint8)
    gather(address_of(head), 0, 0, rows, 0)
    list_taken(address_of(head), 0, np.zeros(0, np.bool_), np.zeros(0, np.int64))
    list_messages(Address(0), 0, rows, np.zeros(0, MESSAGE))
