"""The guard: a second thread of the ingest worker, which receives while a store into the log waits.

A store into a mapped page can wait for the disk: the first one after each sync needs the filesystem's leave,
which a stalled journal or a freeze withholds. The worker then waits in the kernel, and every sender waits
behind the socket's queue. The guard looks every LOOK_NS whether the same burst is still being stored. If so
it takes the socket over and receives into the reserve, buffer after buffer, until the worker has caught up.
On a healthy host it never receives anything. Its looks become rarer while little arrives; while nothing
arrives it waits in poll, until a datagram stays in a socket.

**The handoff** is the words by which the two agree which of them receives, in memory of their process:

    0    state     RECEIVING: the worker has the socket; STORING: it has it, and stores a burst;
                   GUARDED: the guard has it
    8    beat      counts bursts, so that a store which lasts can be told from many short ones
    16   done      buffers of the reserve that the worker has stored; -1 while it stores the burst before them
    24   closed    buffers of the reserve that the guard has received into and left to the worker
    32   leave     1: the guard is to end
    40   blocked   1: neither receives; senders wait until there is room
    48   faults    lost datagrams, counted by the thread that has the socket

From STORING either side goes on by one exchange, the worker to RECEIVING, the guard to GUARDED. From there
only the guard leads back.

**The guard's loop** is one kernel, without the interpreter's lock, on one int64 array:

    guard[FDS]       address of the sockets          guard[RECVMMSG]    address of recvmmsg
    guard[FILE]      the staging file                guard[FALLOCATE]   address of fallocate
    guard[RESERVE_AT], [BUFFER_BYTES], [OFFSET]      guard[SLEEP]       address of nanosleep
                     of buffer 1: address, length,   guard[HANDOFF]     address of the words above
                     place in the file               guard[ARMED]       address of the armed burst
    guard[SLOTS]     of a buffer; in [BURST] of      guard[FIRST], [OPENED]  addresses of those words
                     them is received                guard[TIME]        address of 16 bytes, for SLEEP
    guard[FD_COUNT]  number of sockets               guard[ERRNO]       address of errno's location function
    guard[POLL]      address of poll                 guard[POLLED]      address of its rows: the sockets, and
                                                     the eventfd that rings for LEAVE

**Faults** are datagrams that the kernel took from the socket and could not copy to us: they are lost, and
counted. recvmmsg takes a datagram from the queue before it copies it. When it finds no memory for a page of
the target, it says EFAULT (behind datagrams that it could copy: at the next call), and the datagram is freed.
So each EFAULT is one datagram. Pages of staging are reserved before anything is received into them: a full
tmpfs is no cause, and no process punches the first receive buffer. The one cause left is a page that was
swapped out, and finds no memory on its way back, the host's or a cgroup's. So the supervisor locks the
overflow of the first buffer (Staging.lock_overflow), once for all workers; each worker locks headers, slots
and control buffers. The reserve is not locked: it is allocated just before the guard receives into it.

One case remains: where RLIMIT_MEMLOCK allows less than the overflow takes, a large datagram in a slot behind
the locked part can be lost on a host that swaps and has no memory. The worker stores the count in the ledger;
a SIGKILL before that takes the count along.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ingest.buffers.staging import (
    FAILED,
    INT_MASK,
    MSG_DONTWAIT,
    MSG_WAITFORONE,
    MSGHDR_BYTES,
    OVERFLOW_BYTES,
    PUNCH,
    RESERVE,
    Staging,
    count_received,
    is_large,
    load_word,
    overflow_at,
    point,
    reset,
    store_word,
)
from spool.format.scan import digest_address
from spool.format.wire import Reason
from spool.native.kernel import kernel, subkernel
from spool.native.memory import (
    Address,
    address_of,
    call,
    exchange,
    function_address,
    load_acquire,
    load_i64,
    load_u32,
    publish_i64,
    store_i64,
)
from spool.shared.ledger import Ledger, add
from spool.storage.ownership import open_own
from spool.words import counted

log = logging.getLogger("bruce.ingest")

STATE, BEAT, DONE, CLOSED, LEAVE, BLOCKED, FAULTS = 0, 8, 16, 24, 32, 40, 48
RECEIVING, STORING, GUARDED = range(3)
(
    FDS,
    FILE,
    RESERVE_AT,
    BUFFER_BYTES,
    OFFSET,
    SLOTS,
    BURST,
    RECVMMSG,
    FALLOCATE,
    SLEEP,
    HANDOFF,
    ARMED,
    FIRST,
    OPENED,
    TIME,
    FD_COUNT,
    ERRNO,
    POLL,
    POLLED,
) = range(19)
FIELDS = 19
LOOK_NS, FEW_NS, IDLE_NS, SHORT_NS = 3_000_000, 12_000_000, 24_000_000, 200_000
"""Between two looks: at work, while few bursts come, before it waits in poll, and while the worker is about
to catch up."""
_FEW = 8
"""Bursts between two looks that are few."""
_FOR_EVER = -1
_POLLFD = np.dtype([("fd", np.int32), ("events", np.int16), ("revents", np.int16)])
"""struct pollfd."""
_PATIENCE = 10
"""Short looks for the worker to catch up before the next buffer is begun."""
_NO_MEMORY, _LOST = FAILED, FAILED + 1
"""No system call returns these: no memory to receive into; a datagram was lost."""
KEPT = 8
"""Buffers that stay free for what is in the socket when a worker stops without room."""
AT_ONCE = 32
"""Slots received into at once: so much overflow is reserved meanwhile, 64 KiB a slot."""

Job = npt.NDArray[np.int64]
"""int64[FIELDS]."""
_EFAULT = errno.EFAULT


class Handoff:
    """The words. `address` is for kernels."""

    def __init__(self) -> None:
        self._words = np.zeros(8, np.int64)
        self.address = address_of(self._words)

    def begin_storing(self) -> None:
        """The worker has something to store; the socket is its own."""
        self.publish(BEAT, self.load(BEAT) + 1)
        self.publish(STATE, STORING)

    def finish_storing(self) -> bool:
        """The worker's burst is stored; whether the socket is still its own."""
        return bool(finish_storing(self.address))

    def load(self, word: int) -> int:
        """One of the words."""
        return int(load_word(Address(self.address + word)))

    def publish(self, word: int, value: int) -> None:
        """Change one of the words, after all stores before."""
        store_word(Address(self.address + word), value)


@kernel
def finish_storing(handoff: Address) -> bool:
    """From STORING back to RECEIVING, if the guard did not take over."""
    return exchange(handoff, STORING, RECEIVING)


class Guard:
    """The thread. It ends with its process, or by `leave`."""

    def __init__(self, receivers: Sequence[int], staging: Staging, handoff: Handoff) -> None:
        """`receivers`: the sockets; the timeout of a single one bounds how long `leave` takes."""
        self._handoff, self._staging = handoff, staging
        self._file = open_own(staging.path)
        self._time = np.zeros(2, np.int64)
        libc = ctypes.CDLL(None)
        job = self._job = np.zeros(FIELDS, np.int64)
        self._receivers = np.array(receivers, np.int64)
        job[FDS], job[FD_COUNT] = address_of(self._receivers), len(receivers)
        job[FILE] = self._file
        job[RESERVE_AT], job[BUFFER_BYTES] = staging.reserve_at, staging.buffer_bytes
        job[OFFSET] = staging.reserve_at - staging.address
        job[SLOTS], job[BURST] = staging.slots, staging.most
        job[RECVMMSG] = function_address(libc.recvmmsg)
        job[FALLOCATE] = function_address(libc.fallocate)
        job[SLEEP] = function_address(libc.nanosleep)
        job[ERRNO] = function_address(libc["__errno_location"])
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        self._polled = np.array([(fd, select.POLLIN, 0) for fd in (*receivers, self._bell)], _POLLFD)
        job[POLL], job[POLLED] = function_address(libc.poll), address_of(self._polled)
        job[HANDOFF], job[TIME] = handoff.address, address_of(self._time)
        job[ARMED], job[FIRST], job[OPENED] = staging.armed_at, staging.first_at, staging.opened_at
        self._thread = threading.Thread(target=self._run, name="guard", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def leave(self) -> None:
        """End it. Only while the socket is the worker's."""
        self._handoff.publish(LEAVE, 1)
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        self._close()

    def take_rest(self) -> int:
        """Receive the datagrams of the socket into the reserve, behind those that wait there; how many.

        For a worker that stops without room, in place of the thread. The socket is shut down for reading.
        """
        taken = int(_take_rest(self._job))
        self._close()
        return taken

    def _close(self) -> None:
        os.close(self._file)
        os.close(self._bell)

    def _run(self) -> None:
        # Signals are for the thread that waits in recvmmsg.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        stand_by(self._job)


@subkernel
def _sleep(guard: Job, nanoseconds: int) -> None:
    store_i64(guard[TIME], 0)
    store_i64(guard[TIME] + 8, nanoseconds)
    call(guard[SLEEP], guard[TIME], 0)


@kernel
def stand_by(guard: Job) -> None:
    """Look, and take over where a store lasts, until LEAVE is set."""
    handoff, pause, beat = guard[HANDOFF], LOOK_NS, -1
    while load_acquire(handoff + LEAVE) == 0:
        if pause < IDLE_NS:
            _sleep(guard, pause)
        else:
            # Only a datagram that stays in a socket needs the guard.
            call(guard[POLL], guard[POLLED], guard[FD_COUNT] + 1, _FOR_EVER)
            pause = LOOK_NS
            _sleep(guard, pause)
        state, now = load_acquire(handoff), load_acquire(handoff + BEAT)
        if state == STORING and now == beat and load_acquire(handoff + BLOCKED) == 0:
            publish_i64(handoff + DONE, -1)
            publish_i64(handoff + CLOSED, 0)
            if exchange(handoff, STORING, GUARDED):
                _receive(guard)
        if state == STORING or now - beat >= _FEW:
            pause = LOOK_NS
        else:
            pause = min(2 * pause, FEW_NS if now != beat else IDLE_NS)
        beat = now


@subkernel
def _receive(guard: Job) -> None:
    """Receive into the reserve, buffer after buffer, until the worker has stored all of it."""
    handoff, closed = guard[HANDOFF], 0
    publish_i64(guard[OPENED], 0)
    publish_i64(guard[FIRST], load_acquire(guard[ARMED]) + 1)
    while load_acquire(handoff + DONE) != closed:
        if load_acquire(handoff + BLOCKED) != 0 or closed == RESERVE - KEPT or not _open(guard, closed):
            # No room, or no memory is left: senders wait in the socket.
            _sleep(guard, LOOK_NS)
            continue
        if _fill(guard, closed) > 0:
            closed += 1
            publish_i64(handoff + CLOSED, closed)
            looks = 0
            while looks < _PATIENCE and load_acquire(handoff + DONE) == closed - 1:
                _sleep(guard, SHORT_NS)
                looks += 1
    publish_i64(handoff, RECEIVING)


@subkernel
def _buffer(guard: Job, number: int) -> Address:
    """The address of a buffer of the reserve."""
    return Address(guard[RESERVE_AT] + number * guard[BUFFER_BYTES])


@subkernel
def _large(guard: Job, number: int, first: int, how: int) -> bool:
    """Reserve (how: 0), or give back, the overflow of up to AT_ONCE slots of a buffer; False without room."""
    slots = guard[SLOTS]
    at = guard[OFFSET] + number * guard[BUFFER_BYTES] + overflow_at(slots) + first * OVERFLOW_BYTES
    length = min(AT_ONCE, slots - first) * OVERFLOW_BYTES
    return call(guard[FALLOCATE], guard[FILE], how, at, length) & INT_MASK == 0


@subkernel
def _receive_some(guard: Job, number: int, first: int, flags: int) -> int:
    """Receive into a few slots of a buffer from `first` on; how many, or the low half of a negative int.

    Their overflow is reserved before, since a datagram that finds no memory is lost, and given back behind
    small ones.
    """
    if not _large(guard, number, first, 0):
        return _NO_MEMORY
    buffer = _buffer(guard, number)
    room = min(AT_ONCE, guard[BURST] - first)
    got = FAILED + 2
    if guard[FD_COUNT] > 1:
        # With several sockets, receive without blocking.
        flags |= MSG_DONTWAIT
    for which in range(guard[FD_COUNT]):
        # By turns: a flood of one does not keep the others out.
        turn = (which + number + first // AT_ONCE) % guard[FD_COUNT]
        fd = load_i64(guard[FDS] + 8 * turn)
        got = call(guard[RECVMMSG], fd, buffer + first * MSGHDR_BYTES, room, flags, 0) & INT_MASK
        if got < FAILED:
            break
        if note_fault(guard[HANDOFF], guard[ERRNO]):
            got = _LOST
            break
    if got < FAILED and not is_large(buffer, first, first + got):
        _large(guard, number, first, PUNCH)
    return got


@subkernel
def _open(guard: Job, number: int) -> bool:
    """Make the reserve's buffer ready; False when there is no memory for it."""
    slots = guard[SLOTS]
    offset = guard[OFFSET] + number * guard[BUFFER_BYTES]
    # Reserved first: a store into a hole of a full tmpfs is a SIGBUS.
    if call(guard[FALLOCATE], guard[FILE], 0, offset, overflow_at(slots)) & INT_MASK:
        return False
    buffer = _buffer(guard, number)
    point(buffer, slots)
    reset(buffer, slots)
    publish_i64(guard[OPENED], number + 1)
    return True


@subkernel
def _fill(guard: Job, number: int) -> int:
    """Receive into a buffer until it is full, or the worker waits for it; how many datagrams."""
    used = 0
    while used < guard[BURST]:
        flags = MSG_WAITFORONE | (MSG_DONTWAIT if used > 0 else 0)
        got = _receive_some(guard, number, used, flags)
        if got < FAILED:
            used += got
        elif got == _NO_MEMORY and used > 0:
            break
        if load_acquire(guard[HANDOFF] + DONE) == number or load_acquire(guard[HANDOFF] + BLOCKED) != 0:
            break
        if got >= FAILED and got != _LOST:
            # Nothing there, or an error that the worker will see when it receives.
            _sleep(guard, SHORT_NS)
    if used < guard[SLOTS]:
        _large(guard, number, used, PUNCH)
    return used


@kernel
def _take_rest(guard: Job) -> int:
    """Receive into buffer after buffer until nothing is left to receive, or no memory."""
    number, total = load_acquire(guard[OPENED]), 0
    last = _buffer(guard, number - 1)
    if 0 < number < RESERVE and count_received(last, guard[SLOTS]) == 0:
        # A buffer without a datagram would hide those behind it.
        number -= 1
    if number == 0:
        publish_i64(guard[FIRST], load_acquire(guard[ARMED]) + 1)
    while number < RESERVE and _open(guard, number):
        used = 0
        while used < guard[BURST]:
            got = _receive_some(guard, number, used, MSG_WAITFORONE | MSG_DONTWAIT)
            if got == _LOST:
                continue
            if got >= FAILED:
                return total + used
            used += got
        total += used
        number += 1
    return total


@subkernel
def note_fault(handoff: Address, error: Address) -> bool:
    """Count a fault if errno, whose location function is at address `error`, is EFAULT; whether it is."""
    if load_u32(call(error)) != _EFAULT:
        return False
    publish_i64(handoff + FAULTS, load_acquire(handoff + FAULTS) + 1)
    return True


class Faults:
    """Those that a worker and its guard have met."""

    def __init__(self, handoff: Handoff) -> None:
        self._handoff, self._counted = handoff, 0

    def count(self, ledger: Ledger, burst: int) -> bool:
        """Count new ones in the ledger, as this burst, which no datagram is in; False without any."""
        lost = self._handoff.load(FAULTS) - self._counted
        if not lost:
            return False
        self._counted += lost
        log.error(
            "the kernel had no memory for %s that it had taken from the socket: lost, and counted as "
            "truncated; give this host memory, or raise RLIMIT_MEMLOCK so that staging is locked",
            counted(lost, "datagram"),
        )
        add(ledger.begin(), Address(0), 0, int(Reason.TRUNCATED), time.time_ns(), digest_address(), lost)
        ledger.commit(burst)
        return True


def compile_kernels() -> None:
    """Compile."""
    handoff, job = Handoff(), np.zeros(FIELDS, np.int64)
    handoff.publish(STATE, handoff.load(STATE))
    handoff.finish_storing()
    handoff.publish(LEAVE, 1)
    job[HANDOFF] = handoff.address
    stand_by(job)
    opened = np.array([RESERVE], np.int64)
    job[OPENED] = address_of(opened)
    _take_rest(job)
