"""A connection buffer: the memory of one stream connection, where its bytes survive their receiver.

A buffer has two sides of the same size; bytes are received into one of them. Its head, 256 bytes:

    0    mmsghdr     of side 0, with msg_len:u32 and start:u32 in the word at 56
    64   mmsghdr     of side 1
    128  iovec       one
    144  kind:u64    0 free, UNIX, TCP, KAFKA; never followed: pointers are written before each use
    152  side:u64    the side that is received into
    160  offered:u64 counts runs
    168  taken:u64   the last run that is in the log; equal to `offered` when none waits
    176  uid:u32 pid:u32 gid:u32, which is one more than it: 0 where none is known
    192  run[2]      24 bytes each: from:u32 until:u32 tail:u32 reason:u32 count:u32 side:u32

The received bytes are start + msg_len, where msg_len 0xFFFFFFFF is none: the kernel stores msg_len when the
bytes are there, before the receiver can be killed, and `start` is in the padding behind it, so that one store
goes on from both. There is no instant at which bytes are there and not counted, or counted twice.

A *run* is whole messages, offered by the stream worker to the ingest worker, which stores them: `count` of
them from `from` to `until`, and `tail` bytes behind them that are refused for `reason` and end the
connection. Number n is in run[n & 1] and is offered by the store of `offered`; until then the other run still
says what was consumed before. A run of no bytes, with a reason, counts `count` + 1 connections that were
refused. Nothing in the buffer changes until the run is taken. Then the beginning of a message that is left
goes to the front of the other side, and one store turns the buffer over. Bytes that a run consumed count on
its `side` only, and no more once the buffer comes back to that side.

Connections are counted by input, in the shared state:

    connections := row[3], of the UNIX streams, of TCP and of Kafka
    row         := accepted:i64 closed:i64[CLOSINGS] errors:i64

A connection counts as accepted when its buffer is opened, and as closed when that is free again, which is
when all that it sent is in the log: by the reason of its last run, so that a successor counts what a killed
worker did not. The counts begin at 0 with the shared state. A SIGKILL between two stores can leave one
counted twice; the successor makes the sum right (`settle`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ingest.buffers.staging import (
    FAILED,
    INT_MASK,
    IOV_BASE_AT,
    IOV_LEN_AT,
    MSG_CONTROL_AT,
    MSG_CONTROLLEN_AT,
    MSG_DONTWAIT,
    MSG_FLAGS_AT,
    MSG_IOV_AT,
    MSG_IOVLEN_AT,
    MSG_LEN_AT,
    MSG_NAME_AT,
    MSG_NAMELEN_AT,
    MSGHDR_BYTES,
    NOT_RECEIVED,
)
from spool.format.frame import LEAST_DATAGRAM_BYTES
from spool.format.segment_format import COLUMNS_BYTES, MAX_BURST, MOST_COLUMNS_BYTES, ROW_BYTES
from spool.format.wire import Reason, load_be32, reason_name
from spool.native.kernel import kernel, subkernel
from spool.native.memory import (
    Address,
    call,
    copy,
    load_acquire,
    load_i64,
    load_u8,
    load_u32,
    publish_i64,
    store_i64,
    store_u32,
)

HEAD_BYTES = 256
KIND, SIDE, OFFERED, TAKEN, UID, PID, GID = 144, 152, 160, 168, 176, 180, 184
FREE, UNIX, TCP, KAFKA = range(4)
FROM, UNTIL, TAIL, REASON, COUNT, RUN_SIDE = 0, 4, 8, 12, 16, 20
SIZE_BYTES = 4
LEAST_SIZE = 4
"""A size field counts itself."""
RUNS, RUN_BYTES = 192, 24
RUN = np.dtype(
    [(name, "<u4") for name in ("from", "until", "tail", "reason", "count", "side")],
)
HEAD = np.dtype(
    {
        "names": ["kind", "side", "offered", "taken", "uid", "pid", "gid", "run"],
        "formats": ["<u8", "<u8", "<u8", "<u8", "<u4", "<u4", "<u4", (RUN, 2)],
        "offsets": [KIND, SIDE, OFFERED, TAKEN, UID, PID, GID, RUNS],
        "itemsize": HEAD_BYTES,
    }
)
"""The head of a buffer, and a run in it, for Python."""
_IOVEC, _NO_SIDE = 128, 2
_TLS_HANDSHAKE, _SSL_MAJOR = 0x16, 3
_BAD_SIZE, _TOO_LONG = int(Reason.BAD_SIZE), int(Reason.TOO_LONG)
_TLS, _HTTP = int(Reason.TLS), int(Reason.HTTP)
_METHODS = tuple(
    int.from_bytes(name[:4], "big")
    for name in (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELETE", b"OPTIONS", b"PATCH", b"CONNECT", b"PRI ")
)
"""The first four bytes of a request, read as a size."""
_REASONS = (
    *(Reason.UNCLEAN, Reason.BAD_SIZE, Reason.TOO_LONG, Reason.TLS, Reason.HTTP),
    *(Reason.USER_LIMIT, Reason.TOO_SLOW),
)
CLOSINGS = ("clean", *map(reason_name, _REASONS))
"""How a connection ends: between two messages, inside one (unclean), or closed by us."""
_CODES = tuple(int(reason) for reason in _REASONS)
_ERRORS = 1 + len(CLOSINGS)
_ROW = 2 + len(CLOSINGS)
CONNECTION_WORDS = 3 * _ROW


@kernel
def open_buffer(head: Address, kind: int, uid: int, pid: int, gid: int) -> None:
    """Give a free buffer to a new connection. The count of runs goes on."""
    for side in range(2):
        store_i64(head + side * MSGHDR_BYTES + MSG_LEN_AT, NOT_RECEIVED)
        store_u32(head + RUNS + side * RUN_BYTES + RUN_SIDE, _NO_SIDE)
    publish_i64(head + SIDE, 0)
    store_u32(head + UID, uid)
    store_u32(head + PID, pid)
    store_u32(head + GID, gid + 1)
    publish_i64(head + KIND, kind)


@kernel
def free_buffer(head: Address) -> None:
    """Free the buffer: the connection is over, and all that it sent is taken."""
    publish_i64(head + KIND, FREE)


@kernel
def kind_of(head: Address) -> int:
    """UNIX, TCP, KAFKA, or FREE."""
    return load_acquire(head + KIND)


@kernel
def uid_of(head: Address) -> int:
    """The uid that connected."""
    return load_u32(head + UID)


@kernel
def side_of(head: Address) -> int:
    """The side that is received into."""
    return load_acquire(head + SIDE)


@subkernel
def run_at(head: Address) -> Address:
    """The address of the run that was offered last."""
    return Address(head + RUNS + (load_acquire(head + OFFERED) & 1) * RUN_BYTES)


@kernel
def waits(head: Address) -> bool:
    """Whether a run is offered and not taken."""
    return load_acquire(head + OFFERED) != load_acquire(head + TAKEN)


@kernel
def filled(head: Address) -> int:
    """Bytes received into the present side."""
    word = load_acquire(head + load_acquire(head + SIDE) * MSGHDR_BYTES + MSG_LEN_AT)
    length = word & INT_MASK
    return ((word >> 32) & INT_MASK) + (0 if length == NOT_RECEIVED else length)


@kernel
def consumed(head: Address) -> int:
    """Bytes of the present side that are done with."""
    run = run_at(head)
    if load_u32(run + RUN_SIDE) != load_acquire(head + SIDE):
        return 0
    if waits(head):
        return load_u32(run + FROM)
    return load_u32(run + UNTIL) + load_u32(run + TAIL)


@kernel
def is_ended(head: Address) -> bool:
    """Whether the last run was one that ends the connection."""
    run = run_at(head)
    return load_u32(run + RUN_SIDE) == load_acquire(head + SIDE) and load_u32(run + REASON) != 0


@kernel
def messages(head: Address) -> int:
    """Messages of the run that was offered last, including the one that ends the connection."""
    run = run_at(head)
    return load_u32(run + COUNT) + (1 if load_u32(run + REASON) != 0 else 0)


@kernel
def stands_for(head: Address) -> int:
    """Connections that a buffer counts for: more than one where its run counts refused ones."""
    run = run_at(head)
    refused = is_ended(head) and load_u32(run + FROM) == load_u32(run + UNTIL)
    return 1 + (load_u32(run + COUNT) if refused else 0)


@kernel
def receive(head: Address, fd: int, buffer: Address, room: int, recvmmsg: Address, errno: Address) -> int:
    """Receive into the present side, `room` reserved bytes at address `buffer`, behind what is there.

    `recvmmsg` and `errno` are the addresses of that function and of errno's location function. Returns the
    bytes, 0 at the end of the stream, or a negative errno.
    """
    header = head + load_acquire(head + SIDE) * MSGHDR_BYTES
    start = filled(head)
    store_i64(head + _IOVEC + IOV_BASE_AT, buffer + start)
    store_i64(head + _IOVEC + IOV_LEN_AT, room - start)
    store_i64(header + MSG_NAME_AT, 0)
    store_i64(header + MSG_NAMELEN_AT, 0)
    store_i64(header + MSG_IOV_AT, head + _IOVEC)
    store_i64(header + MSG_IOVLEN_AT, 1)
    # No room for descriptors that are passed along: the kernel closes them.
    store_i64(header + MSG_CONTROL_AT, 0)
    store_i64(header + MSG_CONTROLLEN_AT, 0)
    store_i64(header + MSG_FLAGS_AT, 0)
    publish_i64(header + MSG_LEN_AT, (start << 32) | NOT_RECEIVED)
    if call(recvmmsg, fd, header, 1, MSG_DONTWAIT, 0) & INT_MASK >= FAILED:
        return -load_u32(call(errno))
    return load_u32(header + MSG_LEN_AT)


@subkernel
def body_bytes(length: int, messages: int) -> int:
    """Bytes of the body of a frame with so many messages and batches, of `length` bytes, at most.

    Each may be refused, or a batch of the smallest messages.
    """
    columns = min(length * COLUMNS_BYTES // LEAST_DATAGRAM_BYTES, messages * MOST_COLUMNS_BYTES)
    return length + columns + messages * ROW_BYTES


@kernel
def cut(buffer: Address, begin: int, end: int, limit: int, kind: int, room: int) -> tuple[int, int, int, int]:
    """Split [begin, end): (where whole messages end, how many, Reason of the bytes behind, their size).

    At most MAX_BURST messages, and no more than a frame's body of `room` bytes takes, stored or refused; at
    least one. When a message has only begun, the reason is 0, and the size is that of its size field, 0 if
    even that is not complete. `limit`: bytes of a message, its size field not counted.
    """
    at, count = begin, 0
    while count < MAX_BURST and end - at >= SIZE_BYTES:
        size = load_be32(Address(buffer + at))
        if size < LEAST_SIZE or size > limit + SIZE_BYTES:
            return at, count, _refusal(Address(buffer + at), size, kind), 0
        if size > end - at:
            return at, count, 0, size
        if count > 0 and body_bytes(at + size - begin, count + 2) > room:
            # One row is for what may end the connection.
            return at, count, 0, 0
        at += size
        count += 1
    return at, count, 0, 0


@subkernel
def _refusal(at: Address, size: int, kind: int) -> int:
    """The Reason to end a stream with this size field; on TCP, TLS and HTTP are recognised by name."""
    if kind == TCP and load_u8(at) == _TLS_HANDSHAKE and load_u8(at + 1) == _SSL_MAJOR:
        return _TLS
    if kind == TCP:
        for method in _METHODS:
            if size == method:
                return _HTTP
    return _BAD_SIZE if size < LEAST_SIZE else _TOO_LONG


@kernel
def offer(head: Address, begin: int, until: int, count: int, tail: int, reason: int) -> None:
    """Offer a run."""
    number = load_acquire(head + OFFERED) + 1
    run = head + RUNS + (number & 1) * RUN_BYTES
    store_u32(run + FROM, begin)
    store_u32(run + UNTIL, until)
    store_u32(run + TAIL, tail)
    store_u32(run + REASON, reason)
    store_u32(run + COUNT, count)
    store_u32(run + RUN_SIDE, load_acquire(head + SIDE))
    publish_i64(head + OFFERED, number)


@kernel
def turn_over(head: Address, source: Address, target: Address) -> int:
    """Bring what is not consumed to the front of the other side; how many bytes. No run may wait.

    `source`, `target`: addresses of the present side and the other one, where so many bytes are reserved.
    """
    begin, side = consumed(head), load_acquire(head + SIDE)
    left, other, run = filled(head) - begin, 1 - side, run_at(head)
    copy(target, source + begin, left)
    if load_u32(run + RUN_SIDE) != side:
        # Nothing was offered of this side: what the last run consumed of the other one is no more there.
        store_u32(run + RUN_SIDE, _NO_SIDE)
    store_i64(head + other * MSGHDR_BYTES + MSG_LEN_AT, (left << 32) | NOT_RECEIVED)
    publish_i64(head + SIDE, other)
    return left


@kernel
def take(head: Address, number: int) -> None:
    """Run `number` is in the log. Without effect on a later one."""
    if load_acquire(head + OFFERED) == number:
        publish_i64(head + TAKEN, number)


class Connections(NamedTuple):
    """Connections of one input, since the shared state was made."""

    accepted: int
    closed: dict[str, int]
    """By CLOSINGS."""
    errors: int
    """Of the closed ones: failed, for example by a reset."""


@subkernel
def _row_of(counts: Address, kind: int) -> Address:
    return Address(counts + (kind - UNIX) * 8 * _ROW)


@subkernel
def _count(at: Address, more: int) -> None:
    store_i64(at, load_i64(at) + more)


@kernel
def open_counted(counts: Address, head: Address, kind: int, uid: int, pid: int, gid: int) -> None:
    """Give a free buffer to a new connection, and count it."""
    _count(_row_of(counts, kind), 1)
    open_buffer(head, kind, uid, pid, gid)


@kernel
def count_accepted(counts: Address, head: Address, more: int) -> None:
    """Count `more` connections that a buffer counts for beside its own."""
    _count(_row_of(counts, kind_of(head)), more)


@kernel
def free_counted(counts: Address, head: Address) -> None:
    """Count how the connection ended, and free its buffer: all that it sent is taken."""
    number = 1
    if is_ended(head):
        reason = load_u32(run_at(head) + REASON)
        for i in range(len(_CODES)):
            if _CODES[i] == reason:
                number = 2 + i
    _count(Address(_row_of(counts, kind_of(head)) + 8 * number), stands_for(head))
    free_buffer(head)


@kernel
def count_error(counts: Address, head: Address) -> None:
    """Count that the connection of a buffer has failed."""
    _count(Address(_row_of(counts, kind_of(head)) + 8 * _ERRORS), 1)


def settle(words: npt.NDArray[np.int64], heads: Sequence[Address]) -> None:
    """Set `accepted` to closed connections and those of these buffers; `words` int64[CONNECTION_WORDS]."""
    kinds = [kind_of(head) for head in heads for _ in range(stands_for(head))]
    for row, kind in zip(words[:CONNECTION_WORDS].reshape(-1, _ROW)[:2], (UNIX, TCP), strict=True):
        row[0] = row[1:_ERRORS].sum() + kinds.count(kind)


def read_connections(words: npt.NDArray[np.int64]) -> dict[str, Connections]:
    """Counts by input, from CONNECTION_WORDS words of a copied page."""
    found = {}
    rows = words[:CONNECTION_WORDS].reshape(-1, _ROW).tolist()
    for name, row in zip(("stream", "tcp", "kafka"), rows, strict=True):
        closed = dict(zip(CLOSINGS, row[1:_ERRORS], strict=True))
        found[name] = Connections(row[0], closed, row[_ERRORS])
    return found


class ConnectionCounts:
    """The row of Kafka, whose connections have no buffers, for its one writer."""

    def __init__(self, words: npt.NDArray[np.int64]) -> None:
        """`words`: those from CONNECTIONS on. The connections of a killed predecessor ended with it."""
        self._row = words[2 * _ROW : 3 * _ROW]
        self._row[1 + CLOSINGS.index("unclean")] += self._row[0] - self._row[1:_ERRORS].sum()

    def count_accepted(self) -> None:
        """One has come."""
        self._row[0] += 1

    def count_closed(self, how: str) -> None:
        """One has ended, by one of CLOSINGS."""
        self._row[1 + CLOSINGS.index(how)] += 1
