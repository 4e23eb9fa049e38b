"""Storing what came by streams: as `ingest.burst` does with datagrams, from messages that lie in lines.

`messages` int64[n, MESSAGE_FIELDS] says where they lie (ingest.lines). `job` and what is returned are those
of `ingest.burst`. Messages have any size that fits into a segment.
"""

from __future__ import annotations

import numpy as np

from ingest.access import TCP_GID, is_permitted
from ingest.burst import (
    BASE,
    DIGEST,
    JOB_FIELDS,
    NEEDS_SEGMENT,
    PAGE,
    RULES,
    SIZES,
    STORED,
    Column,
    Job,
    add_without_room,
    announce,
    any_over_quota,
    has_room,
    now_ns,
    over_quota,
    write_row,
)
from ingest.lines import (
    AT,
    LENGTH,
    MESSAGE_FIELDS,
    REFUSED,
    SENDER_GID,
    SENDER_PID,
    SENDER_UID,
    Messages,
)
from spool.format import HEAD_BYTES, PIDS, POISON, ROW_BYTES, SENDERS, UIDS
from spool.frame import BURST, POSITION, Tail, finish
from spool.histogram import STREAM, TCP, add_by_input, add_size, begin_sizes, prepare_sizes
from spool.kernel import address_of, copy, kernel, store_u32
from spool.ledger import add
from spool.page import WORDS
from spool.wire import REASONS, Reason, check

_POISONED, _OVER_QUOTA = int(Reason.POISON), int(Reason.OVER_QUOTA)
_NOT_PERMITTED = int(Reason.NOT_PERMITTED)


@kernel
def _judge(job: Job, message: Messages, flags: int) -> int:
    """The Reason to refuse a message; REASONS and more for the topics over their quota; 0 accepts it."""
    if flags & POISON:
        return _POISONED
    if message[REFUSED] != 0:
        return message[REFUSED]
    reason = check(message[AT], message[LENGTH])
    if reason == 0 and job[RULES] != 0:
        uid, gid = message[SENDER_UID], message[SENDER_GID]
        reason = 0 if is_permitted(job[RULES], message[AT], uid, gid) else _NOT_PERMITTED
    if reason == 0 and any_over_quota(job[PAGE]):
        topic = over_quota(job[PAGE], message[AT])
        if topic >= 0:
            return REASONS + topic
    return reason


@kernel
def store(job: Job, tail: Tail, messages: Messages, used: int, verdicts: Column, flags: int) -> int:
    """Append the first `used` messages to the live segment as one frame. `verdicts`: int64[used], to work in.

    Returns STORED; or NEEDS_SEGMENT, with nothing changed, when the frame has no room or a sync of the
    segment has failed.
    """
    count = room = 0
    for i in range(used):
        verdicts[i] = _judge(job, messages[i], flags)
        count += 1 if verdicts[i] == 0 else 0
        # Each that is refused may need a row of its own.
        room += 12 + messages[i, LENGTH] if verdicts[i] == 0 else ROW_BYTES
    if not has_room(job, tail, room):
        return NEEDS_SEGMENT
    start = job[BASE] + tail[POSITION] + HEAD_BYTES
    sizes = begin_sizes(job[PAGE] + SIZES)
    rows = _write_body(start, messages, verdicts, used, count, sizes)
    end = _write_refused(rows, messages, verdicts, used)
    prepare_sizes(job[PAGE] + SIZES, sizes, rows - start - 12 * count, tail[BURST] + 1)
    finish(
        job[BASE],
        tail,
        count,
        used - count,
        end - start,
        end - rows,
        flags | UIDS | PIDS | SENDERS,
        tail[BURST] + 1,
        now_ns(job),
        job[DIGEST],
    )
    announce(job, tail)
    return STORED


@kernel
def _write_body(column: int, messages: Messages, verdicts: Column, used: int, count: int, sizes: int) -> int:
    """Write lengths, uids, pids and messages of the accepted ones; the address behind them.

    All are counted in the bank at address `sizes`.
    """
    at = column + 12 * count
    for i in range(used):
        number = TCP if messages[i, SENDER_GID] == TCP_GID else STREAM
        add_by_input(sizes, number, 1 if verdicts[i] == 0 else 0, 1 if verdicts[i] != 0 else 0)
        if verdicts[i] != 0:
            continue
        length = messages[i, LENGTH]
        store_u32(column, length)
        store_u32(column + 4 * count, messages[i, SENDER_UID])
        store_u32(column + 8 * count, messages[i, SENDER_PID])
        copy(at, messages[i, AT], length)
        add_size(sizes, length)
        column += 4
        at += length
    return at


@kernel
def _write_refused(at: int, messages: Messages, verdicts: Column, used: int) -> int:
    """Write a discard row for each reason and sender, over quota for each topic; the address behind them."""
    for i in range(used):
        reason = verdicts[i]
        if reason == 0:
            continue
        count = 0
        for other in range(i, used):
            if verdicts[other] == reason and messages[other, SENDER_UID] == messages[i, SENDER_UID]:
                count += 1
                verdicts[other] = 0
        reason = reason if reason < REASONS else _OVER_QUOTA
        at = write_row(at, reason, count, messages[i, SENDER_UID], messages[i, AT], messages[i, LENGTH])
    return at


@kernel
def discard(job: Job, bank: int, messages: Messages, used: int, flags: int) -> None:
    """Count the first `used` messages in a bank of the ledger: there is no room to store them.

    One that would have been refused anyway keeps its own reason, but for its topic's quota.
    """
    if used == 0:
        return
    now = now_ns(job)
    for i in range(used):
        reason = _judge(job, messages[i], flags)
        if reason == 0 or reason >= REASONS:
            add_without_room(job, bank, messages[i, AT], now)
        else:
            add(bank, 0, 0, reason, now, job[DIGEST])


def compile_kernels() -> None:
    """Compile, or load from the cache."""
    job, tail, page = (
        np.zeros(JOB_FIELDS, np.int64),
        np.zeros(5 + REASONS, np.int64),
        np.zeros(WORDS, np.int64),
    )
    job[PAGE] = address_of(page)
    nothing = np.zeros((0, MESSAGE_FIELDS), np.int64)
    store(job, tail, nothing, 0, np.zeros(0, np.int64), 0)
    discard(job, 0, nothing, 0, 0)
