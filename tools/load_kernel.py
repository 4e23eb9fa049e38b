"""The hot loop of a sender: write ids into prepared datagrams, and send them by sendmmsg. Compiled.

Message number `id` of a sender is in slot `id % slots`, so that a burst of any length has the mix of the
whole. Only its id, its time and its partition change from message to message. The messages of a batch are in
slots side by side, and in one datagram.

    plan[slot]  = the fields below: the message's address, and offsets from there
    job[...]    = the words below; they are in memory that outlives the sender

Times are ns of CLOCK_MONOTONIC; job[WALL] is the offset to wall-clock time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spool.native.kernel import kernel
from spool.native.memory import call, load_i64, load_u32, store_i64, store_u8, store_u32
from tools.payload import HEAD_BYTES, NO_KEY, PLACED, PLACES, WITH_HEADERS

(
    STOP,
    FD,
    HEADERS,
    SENDER,
    KEYS,
    COUNT,
    END,
    RATE,
    LUMP,
    START,
    WALL,
    SENT,
    FIRST,
    LAST,
    WORST,
    RECONNECTS,
    SENDMMSG,
    ERRNO,
    CLOCK,
    SLEEP,
    SCRATCH,
    BATCH,
    PARTITIONS,
) = range(23)
JOB_FIELDS = 24

(
    ADDRESS,
    TIMESTAMP_AT,
    KEY_AT,
    VALUE_AT,
    VALUE_BYTES,
    KEYED,
    MESSAGE_KEY,
    TRAITS,
    TRACE_AT,
) = range(9)
PLAN_FIELDS = 9
"""MESSAGE_KEY: bytes of the message's own key. TRAITS: of the payload, and its `batch` << 8."""
MMSGHDR_BYTES = 64
BUCKETS = 1152
"""Of a latency histogram: 32 to each power of two of microseconds."""

NEVER = 1 << 62
SECOND_NS = 1_000_000_000
NAP_NS = 50_000_000
"""Longest sleep between two checks of job[STOP]."""
_MS_NS = 1_000_000
_LINEAR = 32
_ERRORS = 0x80000000
_AGAIN, _INTERRUPTED = 11, 4

Words = npt.NDArray[np.int64]


@kernel
def now_ns(job: Words) -> int:
    """CLOCK_MONOTONIC."""
    call(job[CLOCK], 1, job[SCRATCH])
    return load_i64(job[SCRATCH]) * SECOND_NS + load_i64(job[SCRATCH] + 8)


@kernel
def scheduled_ns(job: Words, message: int) -> int:
    """When a message is due on an open schedule; with lumps, many of them at once."""
    after = message * SECOND_NS // job[RATE]
    if job[LUMP] > 0:
        after = (after + job[LUMP] - 1) // job[LUMP] * job[LUMP]
    return job[START] + after


@kernel
def due(job: Words, now: int) -> int:
    """How many messages are due by now, those sent included; everything, without a schedule.

    A batch is due with the last of its messages.
    """
    if job[RATE] == 0:
        return job[COUNT]
    if now < job[START]:
        return 0
    elapsed = now - job[START]
    if job[LUMP] > 0:
        elapsed = elapsed // job[LUMP] * job[LUMP]
    # Rounded down: the message at the border may be due one check later, never earlier.
    ready = min(job[COUNT], elapsed * job[RATE] // SECOND_NS + 1)
    return ready - ready % job[BATCH]


@kernel
def _store_swapped(at: int, value: int, size: int) -> None:
    """A big-endian integer of `size` bytes."""
    for i in range(size):
        store_u8(at + i, (value >> (8 * (size - 1 - i))) & 0xFF)


@kernel
def write_message(job: Words, row: Words, number: int, sent_ns: int) -> None:
    """Make the datagram of one slot that of message `number`."""
    at = row[ADDRESS]
    key = NO_KEY
    own = number
    spread = (number * 2654435761) >> 9
    if row[TRAITS] & PLACED:
        key = PLACES + spread % job[PARTITIONS]
        _store_swapped(at + 10, key - PLACES, 4)
    elif row[KEYED] != 0:
        key = spread % job[KEYS] - job[KEYS] // 2
        own = key
        _store_swapped(at + 10, key, 4)
    _store_swapped(at + row[TIMESTAMP_AT], sent_ns // _MS_NS, 8)
    if row[MESSAGE_KEY] != 0:
        store_i64(at + row[KEY_AT], own)
    value = at + row[VALUE_AT]
    store_u32(value, job[SENDER] | (row[TRAITS] << 16))
    store_u32(value + 4, key & 0xFFFFFFFF)
    store_i64(value + 8, number)
    store_i64(value + 16, sent_ns)
    store_i64(value + row[VALUE_BYTES] - 8, number)
    if row[TRAITS] & WITH_HEADERS:
        store_i64(at + row[TRACE_AT], number)


@kernel
def bucket(microseconds: int) -> int:
    """The histogram bucket of a latency."""
    if microseconds < _LINEAR:
        return max(0, microseconds)
    power = 0
    while (microseconds >> power) >= 2 * _LINEAR:
        power += 1
    return min(BUCKETS - 1, _LINEAR * power + (microseconds >> power))


@kernel
def _count_latency(job: Words, histogram: Words, sent: int) -> None:
    """Count `sent` messages from job[SENT] on, each from the time at which it was due."""
    done = now_ns(job)
    for i in range(sent):
        late = done - scheduled_ns(job, job[SENT] + i)
        job[WORST] = max(job[WORST], late)
        histogram[bucket(late // 1000)] += 1


@kernel
def _nap(job: Words, now: int) -> None:
    """Sleep until the next message is due, but not so long that a stop goes unseen."""
    until = min(scheduled_ns(job, job[SENT] + job[BATCH] - 1), now + NAP_NS, job[END])
    store_i64(job[SCRATCH], until // SECOND_NS)
    store_i64(job[SCRATCH] + 8, until % SECOND_NS)
    call(job[SLEEP], 1, 1, job[SCRATCH], 0)


@kernel
def _send_burst(job: Words, plan: Words, now: int, wanted: int) -> int:
    """Send messages job[SENT] and on, to the end of the slots at most: what sendmmsg returned, or -errno."""
    batch = job[BATCH]
    first = job[SENT] % plan.shape[0]
    length = min(plan.shape[0] - first, wanted)
    for i in range(length):
        number = job[SENT] + i
        at = now if job[RATE] == 0 else scheduled_ns(job, number)
        write_message(job, plan[first + i], number, job[WALL] + at)
    headers = job[HEADERS] + first // batch * MMSGHDR_BYTES
    sent = call(job[SENDMMSG], job[FD], headers, length // batch, 0) & 0xFFFFFFFF
    return sent * batch if sent < _ERRORS else -load_u32(call(job[ERRNO]))


@kernel
def send(job: Words, plan: Words, histogram: Words) -> int:
    """Send until there is nothing more to send: 0. Or until the socket fails: its errno."""
    while load_i64(job[STOP]) == 0 and job[SENT] < job[COUNT]:
        now = now_ns(job)
        if now >= job[END]:
            return 0
        wanted = due(job, now) - job[SENT]
        if wanted <= 0:
            _nap(job, now)
            continue
        sent = _send_burst(job, plan, now, wanted)
        if sent < 0:
            if sent not in (-_AGAIN, -_INTERRUPTED):
                return -sent
            continue
        if job[FIRST] == 0:
            job[FIRST] = now
        if job[RATE] != 0:
            _count_latency(job, histogram, sent)
        job[SENT] += sent
        job[LAST] = now_ns(job)
    return 0


assert HEAD_BYTES == 24  # noqa: PLR2004  (the offsets that write_message has in it)
