"""The hot loop of the intake: receive a burst, check it, append it to the log. Compiled, no allocation.

`store` appends messages wherever they came from: a table says where they are and who sent them
(ingest.buffers.messages). `receive` lists the datagrams of its bursts there, the worker those of streams.

`receive` goes round until something needs Python: a new segment, a signal, a quiet socket. All that it
works on is in one int64 array, so that a call costs one argument:

    job[FD]          the socket                       job[RECVMMSG]    address of recvmmsg
    job[FLAGS]       for recvmmsg                     job[ERRNO]       address of errno's location function
    job[BASE]        of the live segment, 0: none     job[CLOCK]       address of clock_gettime
    job[CAPACITY]    bytes of the live segment        job[DIGEST]      address of the digest function
    job[BUFFER]      address of the receive buffer    job[PAGE]        address of the shared state
    job[SLOTS]       slots of that buffer             job[NUMBER]      of the live segment
    job[BURST_SLOTS] of them are received into        job[BELL]        eventfd of the keeper
    job[ARMED]       address of the armed burst       job[WRITE]       address of write
    job[USED]        slots to reset before the next burst; while a burst waits to be stored, its length
    job[SCRATCH]     address of 64 KiB to put a large datagram together in, then 16 bytes for small words
    job[HANDOFF]     address of the words that say which thread receives (ingest.worker.guard)
    job[EMPTYING]    1 while the socket is emptied at the end
    job[RULES]       address of the rules of [access] (ingest.access), 0: none
"""

from __future__ import annotations

import errno

import numpy as np
import numpy.typing as npt

from ingest.access import is_permitted
from ingest.buffers.messages import (
    FIRST,
    FOLLOWS,
    IS_STORED,
    MESSAGE,
    VERDICT,
    Message,
    Messages,
    copy_message,
)
from ingest.buffers.staging import FAILED, INT_MASK, list_datagrams, reset
from ingest.worker.guard import BEAT, RECEIVING, STORING, note_fault
from spool.format.frame import BURST, POSITION, SEQUENCE, TAIL_FIELDS, Tail, finish, padded
from spool.format.segment_format import (
    COLUMNS_BYTES,
    HEAD_BYTES,
    PIDS,
    POISON,
    ROW_BYTES,
    ROW_COUNT_AT,
    ROW_REASON_AT,
    ROW_SIZE_AT,
    ROW_UID_AT,
    SAMPLE_BYTES,
    SENDERS,
    UID_BYTES,
    UIDS,
)
from spool.format.wire import (
    BATCH_HEAD_BYTES,
    MAX_DATAGRAM_BYTES,
    REASONS,
    TOPIC_SIZE_BYTES,
    Reason,
    check_message,
    count_messages,
    first_wrong,
    is_batch,
    load_be16,
    load_be32,
    topic_at,
)
from spool.log.quotas import NAME, NAME_BYTES
from spool.native.kernel import kernel, subkernel
from spool.native.memory import (
    Address,
    address_of,
    call,
    copy,
    exchange,
    fence,
    load_acquire,
    load_i64,
    load_u8,
    load_u32,
    publish_i64,
    store_i64,
    store_u16,
    store_u32,
)
from spool.shared.histogram import add_by_input, add_size, begin_sizes, commit_sizes, prepare_sizes
from spool.shared.ledger import add
from spool.shared.state import PAUSE_NS, QUOTA_ROW, WORDS, Field

(
    FD,
    FLAGS,
    BASE,
    CAPACITY,
    NUMBER,
    USED,
    BUFFER,
    SLOTS,
    BURST_SLOTS,
    ARMED,
    SCRATCH,
    PAGE,
    BELL,
    RECVMMSG,
    ERRNO,
    CLOCK,
    WRITE,
    DIGEST,
    HANDOFF,
    EMPTYING,
    RULES,
) = range(21)
JOB_FIELDS = 21

STORED, NEEDS_SEGMENT, RELIEVED, PAUSED = 0, -1, -2, -3
"""Results of `store` and `receive`; a positive number is an errno."""

ROUNDS = 1024
"""Bursts between two looks at Python's signals."""
TURN_NS = 1_000_000_000
"""The same, where they come slowly: the worker says meanwhile that it works."""

Job = npt.NDArray[np.int64]
"""int64[JOB_FIELDS], as above."""

_POISONED = int(Reason.POISON)
_SPOOL_FULL = int(Reason.SPOOL_FULL)
_NOT_PERMITTED = int(Reason.NOT_PERMITTED)
_API_KEY, _SIZE = int(Reason.API_KEY), int(Reason.SIZE)
_EFAULT = errno.EFAULT
_CLOCK_REALTIME, _CLOCK_MONOTONIC = 0, 1
_COLUMN_BYTES = 4
_ROW_SAMPLE_AT = ROW_UID_AT + UID_BYTES
_SUSPECT = 8 * int(Field.SUSPECT)
_OVER_QUOTA = int(Reason.OVER_QUOTA)
_QUOTAS = 8 * int(Field.QUOTAS)
_QUOTA_TOPICS = 8 * int(Field.QUOTA_TOPICS)
_QUOTA_ROWS = 8 * int(Field.QUOTA_ROWS)
_QUOTA_ROW_BYTES = 8 * QUOTA_ROW
_QUOTA_NAME_BYTES, _QUOTA_NAME = 8 * NAME_BYTES, 8 * NAME
_SIZES = 8 * int(Field.SIZES)
_PAUSE, _PAUSED = 8 * int(Field.PAUSE), 8 * int(Field.PAUSED)
_KEEPER_WAITS = 8 * int(Field.KEEPER_WAITS)
_WRITTEN = 8 * int(Field.WRITTEN)
_WRITTEN_SEQUENCE = 8 * int(Field.WRITTEN_SEQUENCE)


@kernel
def receive(job: Job, tail: Tail, messages: Messages, rounds: int) -> int:
    """Receive and store up to `rounds` bursts, each listed in `messages` MESSAGE[at least job[BURST_SLOTS]].

    After TURN_NS it begins no other. Returns STORED, NEEDS_SEGMENT (the burst waits in staging, and in
    `messages`, job[USED] long), RELIEVED when storing took so long that the guard has received meanwhile,
    PAUSED while an operator pauses the intake, or recvmmsg's errno.
    """
    until = 0
    for _ in range(rounds):
        if load_acquire(job[PAGE] + _PAUSE) | load_acquire(job[PAGE] + _PAUSED) and _is_paused(job):
            return PAUSED
        reset(job[BUFFER], job[USED])
        job[USED] = 0
        publish_i64(job[ARMED], tail[BURST] + 1)
        # The result is an int in the low half of the register.
        got = call(job[RECVMMSG], job[FD], job[BUFFER], job[BURST_SLOTS], job[FLAGS], 0) & INT_MASK
        if got >= FAILED:
            return _EFAULT if note_fault(job[HANDOFF], job[ERRNO]) else load_u32(call(job[ERRNO]))
        job[USED] = got
        publish_i64(job[HANDOFF] + BEAT, load_acquire(job[HANDOFF] + BEAT) + 1)
        publish_i64(job[HANDOFF], STORING)
        outcome = store(job, tail, messages, list_datagrams(job[BUFFER], job[SLOTS], got, messages), 0)
        if outcome != STORED:
            return outcome
        if not exchange(job[HANDOFF], STORING, RECEIVING):
            return RELIEVED
        now = _clock_ns(job, _CLOCK_MONOTONIC)
        until = until or now + TURN_NS
        if now > until:
            break
    return STORED


@subkernel
def _is_paused(job: Job) -> bool:
    """Whether the intake is paused; the shared state says so. Never while the socket is emptied."""
    until, now = load_acquire(job[PAGE] + _PAUSE), _clock_ns(job, _CLOCK_MONOTONIC)
    paused = now < until <= now + PAUSE_NS and job[EMPTYING] == 0
    publish_i64(job[PAGE] + _PAUSED, until if paused else 0)
    return paused


@subkernel
def _judge(job: Job, messages: Messages, used: int, flags: int) -> bool:
    """Set the verdicts of the first `used` messages; whether there are batches among them.

    POISON in `flags` refuses all; of those it only counts the messages. Without batches `batch` and `wrong`
    are not set.
    """
    scratch, rules = job[SCRATCH], job[RULES]
    quotas = job[PAGE] if load_acquire(job[PAGE] + _QUOTAS) != 0 else Address(0)
    batches = False
    for i in range(used):
        message = messages[i]
        verdict = _POISONED if flags & POISON else _verdict(message, scratch, rules, quotas)
        # A batch passes for neither of the two.
        if verdict in (_POISONED, _SIZE, _API_KEY) and is_batch(_whole(message, scratch), message["length"]):
            if not batches:
                for row in messages[:used]:
                    row["batch"] = row["wrong"] = 0
            batches = True
            message["batch"] = count_messages(_whole(message, scratch), message["length"])
            if verdict != _POISONED:
                verdict = _verdict_of_batch(message, scratch, rules, quotas)
        if (
            verdict == 0
            and i > 0
            and message["outcome"] != 0
            and load_acquire(message["outcome"] + FOLLOWS) != 0
        ):
            verdict = messages[i - 1]["verdict"]
        message["verdict"] = verdict
    return batches


@subkernel
def _verdict(message: Message, scratch: Address, rules: Address, quotas: Address) -> int:
    """The Reason to refuse a message; REASONS and more for topics over their quota; 0 accepts it.

    `rules`: 0 without any. `quotas`: the shared state; 0 if no topic is over its quota.
    """
    if message["refused"] != 0:
        return message["refused"]
    at = _whole(message, scratch)
    reason = check_message(at, message["length"])
    return reason if reason != 0 else _forbids(message, at, rules, quotas)


@subkernel
def _verdict_of_batch(message: Message, scratch: Address, rules: Address, quotas: Address) -> int:
    """The same of a batch: that of its first message that is refused."""
    at, length = _whole(message, scratch), message["length"]
    reason, wrong = first_wrong(at, length)
    one = Address(at + BATCH_HEAD_BYTES)
    if reason == 0:
        for _ in range(message["batch"]):
            reason, wrong = _forbids(message, one, rules, quotas), one
            if reason != 0:
                break
            one = Address(one + load_be32(one))
    message["wrong"] = wrong - at
    return reason


@subkernel
def _count_of(message: Message, batches: bool) -> int:
    """How many messages a row has, in a burst with `batches` or without."""
    return max(1, message["batch"]) if batches else 1


@subkernel
def _forbids(message: Message, one: Address, rules: Address, quotas: Address) -> int:
    """Why the well-formed message at address `one`, in `message`, may not be stored, as _verdict; or 0."""
    if rules != 0 and not is_permitted(rules, one, message["uid"], message["gid"]):
        return _NOT_PERMITTED
    number = _over_quota(quotas, one) if quotas != 0 else -1
    return REASONS + number if number >= 0 else 0


@subkernel
def _whole(message: Message, scratch: Address) -> Address:
    """The address at which a message is in one piece. A large datagram is put together in `scratch`."""
    if message["rest"] == 0:
        return message["at"]
    copy_message(scratch, message)
    return scratch


@subkernel
def _over_quota(shared: Address, message: Address) -> int:
    """Which of the topics over their quota the well-formed message at an address is of; -1: of none."""
    topic = topic_at(message)
    size = load_be16(topic)
    for number in range(load_acquire(shared + _QUOTA_TOPICS)):
        row = shared + _QUOTA_ROWS + number * _QUOTA_ROW_BYTES
        if load_acquire(row) == 0 or load_acquire(row + _QUOTA_NAME_BYTES) != size:
            continue
        same = 0
        while same < size and load_u8(row + _QUOTA_NAME + same) == load_u8(topic + TOPIC_SIZE_BYTES + same):
            same += 1
        if same == size:
            return number
    return -1


@subkernel
def _clock_ns(job: Job, clock: int) -> int:
    call(job[CLOCK], clock, job[SCRATCH] + MAX_DATAGRAM_BYTES)
    at = job[SCRATCH] + MAX_DATAGRAM_BYTES
    return load_i64(at) * 1_000_000_000 + load_i64(at + 8)


@subkernel
def _write_body(
    messages: Messages,
    used: int,
    column: Address,
    count: int,
    sizes: Address,
    scratch: Address,
    batches: bool,
) -> Address:
    """Write lengths, uids, pids and bytes of the `count` accepted messages; the address behind them.

    All are counted in the slot of the histogram at address `sizes`. A batch is written as its messages.
    """
    at = column + COLUMNS_BYTES * count
    for i in range(used):
        message = messages[i]
        if message["verdict"] != 0:
            add_by_input(sizes, message["input"], 0, _count_of(message, batches))
            continue
        if not batches or message["batch"] == 0:
            copy_message(Address(at), message)
            column = _write_columns(column, count, message, message["length"], sizes)
            at += message["length"]
            continue
        one = Address(_whole(message, scratch) + BATCH_HEAD_BYTES)
        copy(Address(at), one, message["length"] - BATCH_HEAD_BYTES)
        for _ in range(message["batch"]):
            length = load_be32(one)
            column = _write_columns(column, count, message, length, sizes)
            one = Address(one + length)
            at += length
    return Address(at)


@subkernel
def _write_columns(column: Address, count: int, message: Message, length: int, sizes: Address) -> Address:
    """Write length, uid and pid of one of the `count` messages, and count it; the address of the next."""
    store_u32(column, length)
    store_u32(column + _COLUMN_BYTES * count, message["uid"])
    store_u32(column + 2 * _COLUMN_BYTES * count, message["pid"])
    add_size(sizes, length)
    add_by_input(sizes, message["input"], 1, 0)
    return Address(column + _COLUMN_BYTES)


@subkernel
def _write_row(at: Address, reason: int, count: int, message: Message, wrong: int) -> Address:
    """Write a discard row for `count` messages, of which this is the first; the address behind it.

    `wrong`: where in it the sample begins.
    """
    first = message["first"] - wrong
    sample = min(first if message["rest"] == 0 else message["length"] - wrong, SAMPLE_BYTES)
    store_u16(at + ROW_REASON_AT, reason)
    store_u16(at + ROW_SIZE_AT, UID_BYTES + sample)
    store_u32(at + ROW_COUNT_AT, count)
    store_u32(at + ROW_UID_AT, message["uid"])
    at = Address(at + _ROW_SAMPLE_AT)
    here = min(max(first, 0), sample)
    copy(at, message["at"] + wrong, here)
    if here < sample:
        copy(Address(at + here), message["rest"] + here - first, sample - here)
    return Address(at + sample)


@subkernel
def _write_refused(messages: Messages, used: int, at: Address, batches: bool) -> Address:
    """Write a discard row for each reason and sender, over quota for each topic; the address behind them.

    The verdicts of the refused messages are 0 afterwards.
    """
    for i in range(used):
        message = messages[i]
        reason = message["verdict"]
        if reason == 0:
            continue
        count = 0
        for j in range(i, used):
            other = messages[j]
            if other["verdict"] == reason and other["uid"] == message["uid"]:
                count += _count_of(other, batches)
                other["verdict"] = 0
        wrong = message["wrong"] if batches else 0
        at = _write_row(at, reason if reason < REASONS else _OVER_QUOTA, count, message, wrong)
    return at


@subkernel
def _tell(messages: Messages, used: int, sequence: int, batches: bool) -> None:
    """Write the outcomes that are wanted: the frame comes next, and its first message has this sequence."""
    for i in range(used):
        message = messages[i]
        verdict, outcome = message["verdict"], message["outcome"]
        if outcome != 0:
            publish_i64(outcome + FIRST, sequence)
            reason = verdict if verdict < REASONS else _OVER_QUOTA
            publish_i64(outcome + VERDICT, IS_STORED if verdict == 0 else -reason)
        if verdict == 0:
            sequence += _count_of(message, batches)


@subkernel
def _announce(job: Job, tail: Tail) -> None:
    """A frame is in the log: count its sizes, publish the log's end, and wake the keeper if it sleeps."""
    commit_sizes(job[PAGE] + _SIZES, tail[BURST])
    publish_i64(job[PAGE] + _WRITTEN_SEQUENCE, tail[SEQUENCE])
    publish_i64(job[PAGE] + _WRITTEN, (job[NUMBER] << 32) | (tail[POSITION] >> 3))
    fence()
    if load_acquire(job[PAGE] + _KEEPER_WAITS) != 0:
        store_i64(job[SCRATCH] + MAX_DATAGRAM_BYTES, 1)
        call(job[WRITE], job[BELL], job[SCRATCH] + MAX_DATAGRAM_BYTES, 8)


@subkernel
def _has_room(job: Job, tail: Tail, room: int) -> bool:
    """Whether the live segment takes a frame with a body of `room` bytes."""
    if job[BASE] == 0 or tail[POSITION] + HEAD_BYTES + padded(room) > job[CAPACITY]:
        return False
    return load_acquire(job[PAGE] + _SUSPECT) != job[NUMBER]


@kernel
def store(job: Job, tail: Tail, messages: Messages, used: int, flags: int) -> int:
    """Append the first `used` messages to the live segment as one frame.

    `messages` MESSAGE[at least used]: the verdicts are set here. `flags` go into the frame; POISON refuses
    every message, and only counts it. Messages that their sender may not write are refused, and those of
    topics over their quota (spool.log.quotas). Returns STORED; or NEEDS_SEGMENT, with nothing changed, when
    the frame has no room or a sync of the segment has failed.
    """
    batches = _judge(job, messages, used, flags)
    count = refused = room = 0
    for i in range(used):
        number = _count_of(messages[i], batches)
        if messages[i]["verdict"] == 0:
            count += number
            room += COLUMNS_BYTES * number + messages[i]["length"]
        else:
            refused += number
            # Each may need a row of its own.
            room += ROW_BYTES
    if not _has_room(job, tail, room):
        return NEEDS_SEGMENT
    start = Address(job[BASE] + tail[POSITION] + HEAD_BYTES)
    sizes = begin_sizes(job[PAGE] + _SIZES)
    _tell(messages, used, tail[SEQUENCE], batches)
    rows = _write_body(messages, used, start, count, sizes, job[SCRATCH], batches)
    end = _write_refused(messages, used, rows, batches) if refused > 0 else rows
    burst, now = tail[BURST] + 1, _clock_ns(job, _CLOCK_REALTIME)
    prepare_sizes(job[PAGE] + _SIZES, sizes, rows - start - COLUMNS_BYTES * count, burst)
    flags |= UIDS | PIDS | SENDERS
    finish(job[BASE], tail, count, refused, end - start, end - rows, flags, burst, now, job[DIGEST])
    _announce(job, tail)
    return STORED


@kernel
def discard(job: Job, ledger_slot: Address, messages: Messages, used: int, flags: int) -> None:
    """Count the first `used` messages in a slot of the ledger: there is no room to store them.

    `messages` MESSAGE[at least used]. One that would have been refused anyway keeps its own reason, but for
    its topic's quota. POISON in `flags` is the reason of all.
    """
    if used == 0:
        return
    now = _clock_ns(job, _CLOCK_REALTIME)
    batches = _judge(job, messages, used, flags)
    for i in range(used):
        reason, number = messages[i]["verdict"], _count_of(messages[i], batches)
        if messages[i]["outcome"] != 0:
            told = reason if 0 < reason < REASONS else _SPOOL_FULL
            publish_i64(messages[i]["outcome"] + VERDICT, -told)
        if 0 < reason < REASONS:
            add(ledger_slot, Address(0), 0, reason, now, job[DIGEST], number)
            continue
        one = _whole(messages[i], job[SCRATCH])
        if batches and messages[i]["batch"] > 0:
            one = Address(one + BATCH_HEAD_BYTES)
        for _ in range(number):
            topic = topic_at(one)
            add(
                ledger_slot,
                Address(topic + TOPIC_SIZE_BYTES),
                load_be16(topic),
                _SPOOL_FULL,
                now,
                job[DIGEST],
            )
            one = Address(one + load_be32(one))


def compile_kernels() -> None:
    """Compile."""
    job, tail, shared = (np.zeros(fields, np.int64) for fields in (JOB_FIELDS, TAIL_FIELDS, WORDS))
    job[PAGE] = address_of(shared)
    nothing = np.zeros(0, MESSAGE)
    receive(job, tail, nothing, 0)
    store(job, tail, nothing, 0, 0)
    discard(job, Address(0), nothing, 0, 0)
