"""A line: the memory of one stream connection, where its bytes survive whoever received them.

A line has two sides of the same size; bytes are received into one of them. Its head, 256 bytes:

    0    mmsghdr     of side 0, with msg_len:u32 and start:u32 in the word at 56
    64   mmsghdr     of side 1
    128  iovec       one
    144  kind:u64    0 free, UNIX, TCP; never followed: pointers are written before each use
    152  side:u64    which is received into
    160  offered:u64 counts runs
    168  taken:u64   the last run that is in the log; equal to `offered` when none waits
    176  uid:u32 pid:u32 gid:u32, which is one more than it: 0 where none is known
    192  run[2]      24 bytes each: from:u32 until:u32 tail:u32 reason:u32 count:u32 side:u32

What was received is start + msg_len bytes, where msg_len 0xFFFFFFFF is none: the kernel stores msg_len when
the bytes are there, before the receiver can be killed, and `start` lies in the padding behind it, so that one
store goes on from both. There is no instant at which bytes are there and not counted, or counted twice.

A *run* is whole messages, offered by who receives (ingest.stream_worker) to who stores (ingest.worker):
`count` of them from `from` to `until`, and `tail` bytes behind them that are refused for `reason` and end the
connection. Number n lies in run[n & 1] and is offered by the store of `offered`; what was consumed before
stands in the other one until then. Nothing in the line changes until it is taken. Then the beginning of a
message that is left goes to the front of the other side, and one store turns the line over.
"""

from __future__ import annotations

import numpy as np

from ingest.bank import NOT_RECEIVED
from spool.format import MAX_BURST, ROW_BYTES
from spool.kernel import (
    address_of,
    call,
    copy,
    kernel,
    load_acquire,
    load_u8,
    load_u32,
    publish_i64,
    store_i64,
    store_u32,
)
from spool.wire import Reason, load_be32

HEAD_BYTES = 256
KIND, SIDE, OFFERED, TAKEN, UID, PID, GID = 144, 152, 160, 168, 176, 180, 184
FREE, UNIX, TCP = range(3)
FROM, UNTIL, TAIL, REASON, COUNT, RUN_SIDE = 0, 4, 8, 12, 16, 20
SIZE_BYTES = 4
LEAST_SIZE = 4
"""A size field counts itself."""
_IOVEC, _RUNS, _RUN_BYTES, _MSGHDR_BYTES, _LENGTH = 128, 192, 24, 64, 56
_NO_SIDE = 2
_DONTWAIT = 0x40
_FAILED = 0x80000000
_BAD_SIZE, _TOO_LONG = int(Reason.BAD_SIZE), int(Reason.TOO_LONG)
_TLS, _HTTP = int(Reason.TLS), int(Reason.HTTP)
_METHODS = tuple(
    int.from_bytes(name[:4], "big")
    for name in (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELETE", b"OPTIONS", b"PATCH", b"CONNECT", b"PRI ")
)
"""The first four bytes of a request, read as a size."""


@kernel
def open_line(head: int, kind: int, uid: int, pid: int, gid: int) -> None:
    """Make a free line that of a new connection. Runs go on being counted."""
    for side in range(2):
        store_i64(head + side * _MSGHDR_BYTES + _LENGTH, NOT_RECEIVED)
        store_u32(head + _RUNS + side * _RUN_BYTES + RUN_SIDE, _NO_SIDE)
    publish_i64(head + SIDE, 0)
    store_u32(head + UID, uid)
    store_u32(head + PID, pid)
    store_u32(head + GID, gid + 1)
    publish_i64(head + KIND, kind)


@kernel
def free_line(head: int) -> None:
    """The connection is over, and all that it sent is taken."""
    publish_i64(head + KIND, FREE)


@kernel
def kind_of(head: int) -> int:
    """UNIX, TCP, or FREE."""
    return load_acquire(head + KIND)


@kernel
def uid_of(head: int) -> int:
    """Of who connected."""
    return load_u32(head + UID)


@kernel
def side_of(head: int) -> int:
    """The side that is received into."""
    return load_acquire(head + SIDE)


@kernel
def run_at(head: int) -> int:
    """The address of the run that was offered last."""
    return head + _RUNS + (load_acquire(head + OFFERED) & 1) * _RUN_BYTES


@kernel
def waits(head: int) -> bool:
    """Whether a run is offered and not taken."""
    return load_acquire(head + OFFERED) != load_acquire(head + TAKEN)


@kernel
def filled(head: int) -> int:
    """Bytes received into the present side."""
    word = load_acquire(head + load_acquire(head + SIDE) * _MSGHDR_BYTES + _LENGTH)
    length = word & 0xFFFFFFFF
    return ((word >> 32) & 0xFFFFFFFF) + (0 if length == NOT_RECEIVED else length)


@kernel
def consumed(head: int) -> int:
    """Bytes of the present side that are done with."""
    run = run_at(head)
    if load_u32(run + RUN_SIDE) != load_acquire(head + SIDE):
        return 0
    if waits(head):
        return load_u32(run + FROM)
    return load_u32(run + UNTIL) + load_u32(run + TAIL)


@kernel
def is_ended(head: int) -> bool:
    """Whether the last run was one that ends the connection."""
    run = run_at(head)
    return load_u32(run + RUN_SIDE) == load_acquire(head + SIDE) and load_u32(run + REASON) != 0


@kernel
def receive(head: int, fd: int, buffer: int, room: int, recvmmsg: int, errno: int) -> int:
    """Receive into the present side, `room` reserved bytes at address `buffer`, behind what is there.

    Returns the bytes, 0 at the end of the stream, or a negative errno.
    """
    header = head + load_acquire(head + SIDE) * _MSGHDR_BYTES
    start = filled(head)
    store_i64(head + _IOVEC, buffer + start)
    store_i64(head + _IOVEC + 8, room - start)
    store_i64(header, 0)
    store_i64(header + 8, 0)
    store_i64(header + 16, head + _IOVEC)
    store_i64(header + 24, 1)
    # No room for descriptors that are passed along: the kernel closes them.
    store_i64(header + 32, 0)
    store_i64(header + 40, 0)
    store_i64(header + 48, 0)
    publish_i64(header + _LENGTH, (start << 32) | NOT_RECEIVED)
    if call(recvmmsg, fd, header, 1, _DONTWAIT, 0) & 0xFFFFFFFF >= _FAILED:
        return -load_u32(call(errno))
    return load_u32(header + _LENGTH)


@kernel
def body_bytes(length: int, messages: int) -> int:
    """Of the body of a frame with so many messages, together so long: at most, if all of them are refused."""
    return length + messages * ROW_BYTES


@kernel
def cut(buffer: int, begin: int, end: int, limit: int, kind: int, room: int) -> tuple[int, int, int, int]:
    """What lies in [begin, end): (where whole messages end, how many, Reason of what is behind, its size).

    At most MAX_BURST of them, and no more than a frame's body of `room` bytes takes, whatever becomes of
    them; one in any case. The reason is 0, and the size what the size field there says, when a message has
    only begun; 0 when not even its size is there. `limit`: of a message, its size field not counted.
    """
    at, count = begin, 0
    while count < MAX_BURST and end - at >= SIZE_BYTES:
        size = load_be32(buffer + at)
        if size < LEAST_SIZE or size > limit + SIZE_BYTES:
            return at, count, _refusal(buffer + at, size, kind), 0
        if size > end - at:
            return at, count, 0, size
        if count > 0 and body_bytes(at + size - begin, count + 2) > room:
            # One row is for what may end the connection.
            return at, count, 0, 0
        at += size
        count += 1
    return at, count, 0, 0


@kernel
def _refusal(at: int, size: int, kind: int) -> int:
    """Why a stream ends that has this size field; on TCP those who have the wrong port are called by name."""
    if kind == TCP and load_u8(at) == 0x16 and load_u8(at + 1) == 3:
        return _TLS
    if kind == TCP:
        for method in _METHODS:
            if size == method:
                return _HTTP
    return _BAD_SIZE if size < LEAST_SIZE else _TOO_LONG


@kernel
def offer(head: int, begin: int, until: int, count: int, tail: int, reason: int) -> None:
    """Offer a run."""
    number = load_acquire(head + OFFERED) + 1
    run = head + _RUNS + (number & 1) * _RUN_BYTES
    store_u32(run + FROM, begin)
    store_u32(run + UNTIL, until)
    store_u32(run + TAIL, tail)
    store_u32(run + REASON, reason)
    store_u32(run + COUNT, count)
    store_u32(run + RUN_SIDE, load_acquire(head + SIDE))
    publish_i64(head + OFFERED, number)


@kernel
def turn_over(head: int, source: int, target: int) -> int:
    """Bring what is not consumed to the front of the other side; how many bytes. No run may wait.

    `source`, `target`: addresses of the present side and the other one, where so many bytes are reserved.
    """
    begin, other = consumed(head), 1 - load_acquire(head + SIDE)
    left = filled(head) - begin
    copy(target, source + begin, left)
    store_i64(head + other * _MSGHDR_BYTES + _LENGTH, (left << 32) | NOT_RECEIVED)
    publish_i64(head + SIDE, other)
    return left


@kernel
def take(head: int, number: int) -> None:
    """Run `number` is in the log. Without effect on a later one."""
    if load_acquire(head + OFFERED) == number:
        publish_i64(head + TAKEN, number)


def compile_kernels() -> None:
    """Compile, or load from the cache, what is done with lines."""
    memory = np.zeros(HEAD_BYTES // 8, np.int64)
    head = address_of(memory)
    open_line(head, UNIX, 0, 0, 0)
    cut(head, 0, 0, 0, kind_of(head), 0)
    body_bytes(0, 0)
    offer(head, 0, 0, 0, 0, 0)
    take(head, 1)
    turn_over(head, head, head)
    side_of(head), uid_of(head), is_ended(head), free_line(head)
