"""The hot loop of the intake: receive a burst, check it, append it to the log. Compiled, no allocation.

`receive` goes round until something needs Python: a new segment, a signal, a quiet socket. All that it
works on is in one int64 array, so that a call costs one argument:

    job[FD]          the socket                       job[RECVMMSG]    address of recvmmsg
    job[FLAGS]       for recvmmsg                     job[ERRNO]       address of errno's location function
    job[BASE]        of the live segment, 0: none     job[CLOCK]       address of clock_gettime
    job[CAPACITY]    bytes of the live segment        job[DIGEST]      address of the digest function
    job[HEADERS..]   addresses of a bank in staging   job[PAGE]        address of the shared page
    job[NUMBER]      of the live segment              job[BELL]        eventfd of the keeper
    job[USED]        slots to reset before the next burst; while a burst waits to be stored, its length
    job[SCRATCH]     address of 64 KiB to put a large datagram together in, then 16 bytes for small words
    job[TURN]        address of the words that say who receives (ingest.turn)
    job[EMPTYING]    1 while the socket is emptied at the end
    job[RULES]       address of the rules of [access] (ingest.access), 0: none
"""

from __future__ import annotations

import errno

import numpy as np
import numpy.typing as npt

from ingest.access import NO_ID, is_permitted
from ingest.bank import CONTROL_BYTES, MSGHDR_BYTES, OVERFLOW_BYTES, SLOT_BYTES, reset
from ingest.faults import note_fault
from ingest.turn import BEAT, RECEIVING, STORING
from spool.format import HEAD_BYTES, PIDS, POISON, ROW_BYTES, SAMPLE_BYTES, SENDERS, UIDS
from spool.frame import BURST, POSITION, SEQUENCE, Tail, finish, padded
from spool.histogram import DATAGRAM, add_by_input, add_size, begin_sizes, commit_sizes, prepare_sizes
from spool.kernel import (
    call,
    copy,
    exchange,
    fence,
    kernel,
    load_acquire,
    load_i64,
    load_u8,
    load_u32,
    publish_i64,
    store_i64,
    store_u16,
    store_u32,
)
from spool.ledger import add
from spool.page import HOLD_NS, QUOTA_ROW, Field
from spool.wire import MAX_DATAGRAM_BYTES, REASONS, Reason, check, load_be16

(
    FD,
    FLAGS,
    BASE,
    CAPACITY,
    NUMBER,
    USED,
    SLOTS,
    ARMED,
    HEADERS,
    CONTROL,
    SLOT,
    OVERFLOW,
    SCRATCH,
    PAGE,
    BELL,
    RECVMMSG,
    ERRNO,
    CLOCK,
    WRITE,
    DIGEST,
    TURN,
    EMPTYING,
    RULES,
) = range(23)
JOB_FIELDS = 23

STORED, NEEDS_SEGMENT, RELIEVED, HELD = 0, -1, -2, -3
"""What `store` and `receive` return; a positive number is an errno."""

ROUNDS = 1024
"""Bursts between two looks at Python's signals."""

SENDER_UNKNOWN = NO_ID
Job = npt.NDArray[np.int64]
Column = npt.NDArray[np.int64]

_TRUNCATED = int(Reason.TRUNCATED)
_POISONED = int(Reason.POISON)
_SPOOL_FULL = int(Reason.SPOOL_FULL)
_NOT_PERMITTED = int(Reason.NOT_PERMITTED)
_EFAULT = errno.EFAULT
_MSG_TRUNC = 0x20
_CLOCK_REALTIME, _CLOCK_MONOTONIC = 0, 1
_CREDENTIALS = (2 << 32) | 1  # cmsg_level SOL_SOCKET, cmsg_type SCM_CREDENTIALS, as one word
_SUSPECT = 8 * int(Field.SUSPECT)
_OVER_QUOTA = int(Reason.OVER_QUOTA)
_QUOTAS = 8 * int(Field.QUOTAS)
_QUOTA_TOPICS = 8 * int(Field.QUOTA_TOPICS)
_QUOTA_ROWS = 8 * int(Field.QUOTA_ROWS)
_QUOTA_ROW_BYTES = 8 * QUOTA_ROW
SIZES = 8 * int(Field.SIZES)
_HOLD, _HELD = 8 * int(Field.HOLD), 8 * int(Field.HELD)
_KEEPER_WAITS = 8 * int(Field.KEEPER_WAITS)
_WRITTEN = 8 * int(Field.WRITTEN)
_WRITTEN_SEQUENCE = 8 * int(Field.WRITTEN_SEQUENCE)


@kernel
def receive(job: Job, tail: Tail, verdicts: Column, rounds: int) -> int:
    """Receive and store up to `rounds` bursts.

    Returns STORED, NEEDS_SEGMENT (the burst waits in staging, job[USED] long), RELIEVED when storing took
    so long that the guard has received meanwhile, HELD while an operator wants nothing to be received, or
    recvmmsg's errno.
    """
    for _ in range(rounds):
        if load_acquire(job[PAGE] + _HOLD) | load_acquire(job[PAGE] + _HELD) and _is_held(job):
            return HELD
        reset(job[HEADERS], job[USED])
        job[USED] = 0
        publish_i64(job[ARMED], tail[BURST] + 1)
        # The result is an int in the low half of the register.
        got = call(job[RECVMMSG], job[FD], job[HEADERS], job[SLOTS], job[FLAGS], 0) & 0xFFFFFFFF
        if got >= 0x80000000:
            return _EFAULT if note_fault(job[TURN], job[ERRNO]) else load_u32(call(job[ERRNO]))
        job[USED] = got
        publish_i64(job[TURN] + BEAT, load_acquire(job[TURN] + BEAT) + 1)
        publish_i64(job[TURN], STORING)
        outcome = store(job, tail, verdicts, 0)
        if outcome != STORED:
            return outcome
        if not exchange(job[TURN], STORING, RECEIVING):
            return RELIEVED
    return STORED


@kernel
def _is_held(job: Job) -> bool:
    """Whether a hold is in force; says so in the page. Never while the socket is emptied at the end."""
    until, now = load_acquire(job[PAGE] + _HOLD), _clock_ns(job, _CLOCK_MONOTONIC)
    held = now < until <= now + HOLD_NS and job[EMPTYING] == 0
    publish_i64(job[PAGE] + _HELD, until if held else 0)
    return held


@kernel
def _judge(job: Job, i: int) -> int:
    """The Reason to refuse slot i; 0 accepts it. A large datagram is put together in the scratch first."""
    header = job[HEADERS] + i * MSGHDR_BYTES
    if load_u32(header + 48) & _MSG_TRUNC:
        return _TRUNCATED
    length = load_u32(header + 56)
    at = job[SLOT] + i * SLOT_BYTES
    if length <= SLOT_BYTES:
        return check(at, length)
    _assemble(job, i, length, job[SCRATCH])
    return check(job[SCRATCH], length)


@kernel
def _message_at(job: Job, i: int) -> int:
    """Where the datagram in slot i lies in one piece."""
    length = load_u32(job[HEADERS] + i * MSGHDR_BYTES + 56)
    if length <= SLOT_BYTES:
        return job[SLOT] + i * SLOT_BYTES
    _assemble(job, i, length, job[SCRATCH])
    return job[SCRATCH]


@kernel
def _sender(job: Job, i: int) -> tuple[int, int, int]:
    """(pid, uid, gid) of who sent the datagram in slot i, as the kernel says."""
    control = job[CONTROL] + i * CONTROL_BYTES
    if load_i64(control) == 28 and load_i64(control + 8) == _CREDENTIALS:
        return load_u32(control + 16), load_u32(control + 20), load_u32(control + 24)
    return SENDER_UNKNOWN, SENDER_UNKNOWN, SENDER_UNKNOWN


@kernel
def _may_write(job: Job, i: int) -> bool:
    """Whether the sender of the well-formed datagram in slot i may write to its topic."""
    _, uid, gid = _sender(job, i)
    return is_permitted(job[RULES], _message_at(job, i), uid, gid)


@kernel
def _refuse_forbidden(job: Job, verdicts: Column, used: int) -> None:
    """Refuse what its sender may not write."""
    for i in range(used):
        if verdicts[i] == 0 and not _may_write(job, i):
            verdicts[i] = _NOT_PERMITTED


@kernel
def any_over_quota(page: int) -> bool:
    """Whether any topic is over its quota."""
    return load_acquire(page + _QUOTAS) != 0


@kernel
def over_quota(page: int, message: int) -> int:
    """Which of the topics over their quota the well-formed message at an address is of; -1: of none."""
    topic = message + 10 + 4 * load_u8(message + 5)
    size = load_be16(topic)
    for number in range(load_acquire(page + _QUOTA_TOPICS)):
        row = page + _QUOTA_ROWS + number * _QUOTA_ROW_BYTES
        if load_acquire(row) == 0 or load_acquire(row + 32) != size:
            continue
        same = 0
        while same < size and load_u8(row + 128 + same) == load_u8(topic + 2 + same):
            same += 1
        if same == size:
            return number
    return -1


@kernel
def _refuse_over_quota(job: Job, verdicts: Column, used: int) -> None:
    """Refuse what is of a topic over its quota; the verdict says which."""
    for i in range(used):
        if verdicts[i] == 0:
            number = over_quota(job[PAGE], _message_at(job, i))
            if number >= 0:
                verdicts[i] = REASONS + number


@kernel
def _assemble(job: Job, i: int, length: int, target: int) -> None:
    """Copy the `length` bytes of slot i to one place."""
    first = min(length, SLOT_BYTES)
    copy(target, job[SLOT] + i * SLOT_BYTES, first)
    if length > SLOT_BYTES:
        copy(target + SLOT_BYTES, job[OVERFLOW] + i * OVERFLOW_BYTES, length - SLOT_BYTES)


@kernel
def _clock_ns(job: Job, clock: int) -> int:
    call(job[CLOCK], clock, job[SCRATCH] + MAX_DATAGRAM_BYTES)
    at = job[SCRATCH] + MAX_DATAGRAM_BYTES
    return load_i64(at) * 1_000_000_000 + load_i64(at + 8)


@kernel
def now_ns(job: Job) -> int:
    """The time, ns since the epoch."""
    return _clock_ns(job, _CLOCK_REALTIME)


@kernel
def _write_body(job: Job, tail: Tail, verdicts: Column, used: int, count: int, sizes: int) -> int:
    """Write lengths, uids, pids and datagrams of the accepted slots; the address behind them.

    They are counted in the bank at address `sizes`.
    """
    column = job[BASE] + tail[POSITION] + HEAD_BYTES
    at = column + 12 * count
    for i in range(used):
        if verdicts[i] != 0:
            continue
        length = load_u32(job[HEADERS] + i * MSGHDR_BYTES + 56)
        pid, uid, _ = _sender(job, i)
        store_u32(column, length)
        store_u32(column + 4 * count, uid)
        store_u32(column + 8 * count, pid)
        _assemble(job, i, length, at)
        add_size(sizes, length)
        column += 4
        at += length
    return at


@kernel
def write_row(at: int, reason: int, count: int, uid: int, sample: int, length: int) -> int:
    """Write a discard row, with the first of `length` bytes at address `sample`; the address behind it."""
    length = min(length, SAMPLE_BYTES)
    store_u16(at, reason)
    store_u16(at + 2, 4 + length)
    store_u32(at + 4, count)
    store_u32(at + 8, uid)
    copy(at + 12, sample, length)
    return at + 12 + length


@kernel
def _write_refused(job: Job, at: int, verdicts: Column, used: int) -> int:
    """Write a discard row for each reason and sender, over quota for each topic; the address behind them."""
    for i in range(used):
        reason = verdicts[i]
        if reason == 0:
            continue
        _, uid, _ = _sender(job, i)
        count = 0
        for other in range(i, used):
            if verdicts[other] == reason and _sender(job, other)[1] == uid:
                count += 1
                verdicts[other] = 0
        length = load_u32(job[HEADERS] + i * MSGHDR_BYTES + 56)
        reason = reason if reason < REASONS else _OVER_QUOTA
        at = write_row(at, reason, count, uid, job[SLOT] + i * SLOT_BYTES, length)
    return at


@kernel
def announce(job: Job, tail: Tail) -> None:
    """A frame is in the log: count its sizes, publish the log's end, and wake the keeper if it sleeps."""
    commit_sizes(job[PAGE] + SIZES, tail[BURST])
    publish_i64(job[PAGE] + _WRITTEN_SEQUENCE, tail[SEQUENCE])
    publish_i64(job[PAGE] + _WRITTEN, (job[NUMBER] << 32) | (tail[POSITION] >> 3))
    fence()
    if load_acquire(job[PAGE] + _KEEPER_WAITS) != 0:
        store_i64(job[SCRATCH] + MAX_DATAGRAM_BYTES, 1)
        call(job[WRITE], job[BELL], job[SCRATCH] + MAX_DATAGRAM_BYTES, 8)


@kernel
def has_room(job: Job, tail: Tail, room: int) -> bool:
    """Whether the live segment takes a frame with a body of `room` bytes."""
    if job[BASE] == 0 or tail[POSITION] + HEAD_BYTES + padded(room) > job[CAPACITY]:
        return False
    return load_acquire(job[PAGE] + _SUSPECT) != job[NUMBER]


@kernel
def store(job: Job, tail: Tail, verdicts: Column, flags: int) -> int:
    """Append the burst in the first job[USED] slots to the live segment as one frame.

    `verdicts` int64[at least slots] is room to work in. Returns STORED; or NEEDS_SEGMENT, with nothing
    changed, when the frame has no room or a sync of the segment has failed. `flags` go into the frame; POISON
    refuses every slot without a look at it. What its sender may not write is refused, and topics over their
    quota are (spool.quotas).
    """
    used = job[USED]
    for i in range(used):
        verdicts[i] = _POISONED if flags & POISON else _judge(job, i)
    if job[RULES] != 0:
        _refuse_forbidden(job, verdicts, used)
    if any_over_quota(job[PAGE]):
        _refuse_over_quota(job, verdicts, used)
    count = 0
    room = 0
    for i in range(used):
        if verdicts[i] == 0:
            count += 1
            room += 12 + load_u32(job[HEADERS] + i * MSGHDR_BYTES + 56)
        else:
            # Each may need a row of its own.
            room += ROW_BYTES
    if not has_room(job, tail, room):
        return NEEDS_SEGMENT
    start = job[BASE] + tail[POSITION] + HEAD_BYTES
    sizes = begin_sizes(job[PAGE] + SIZES)
    rows = _write_body(job, tail, verdicts, used, count, sizes)
    end = _write_refused(job, rows, verdicts, used) if count < used else rows
    burst, now, refused = tail[BURST] + 1, now_ns(job), used - count
    add_by_input(sizes, DATAGRAM, count, refused)
    prepare_sizes(job[PAGE] + SIZES, sizes, rows - start - 12 * count, burst)
    flags |= UIDS | PIDS | SENDERS
    finish(job[BASE], tail, count, refused, end - start, end - rows, flags, burst, now, job[DIGEST])
    announce(job, tail)
    return STORED


@kernel
def discard(job: Job, bank: int, flags: int) -> None:
    """Count the burst in the first job[USED] slots in a bank of the ledger: there is no room to store it.

    A datagram that would have been refused anyway keeps its own reason. POISON in `flags` is the reason of
    all, without a look at them.
    """
    if job[USED] == 0:
        return
    now = now_ns(job)
    for i in range(job[USED]):
        reason = _POISONED if flags & POISON else _judge(job, i)
        if reason == 0 and job[RULES] != 0 and not _may_write(job, i):
            reason = _NOT_PERMITTED
        if reason != 0:
            add(bank, 0, 0, reason, now, job[DIGEST])
            continue
        add_without_room(job, bank, _message_at(job, i), now)


@kernel
def add_without_room(job: Job, bank: int, message: int, now: int) -> None:
    """Count the well-formed message at an address as one that there was no room for."""
    topic = message + 10 + 4 * load_u8(message + 5)
    add(bank, topic + 2, load_be16(topic), _SPOOL_FULL, now, job[DIGEST])
