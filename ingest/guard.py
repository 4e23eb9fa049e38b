"""The guard: a second thread of the ingest worker, which receives while a store into the log waits.

A store into a mapped page can wait for the disk: the first one after each sync needs the filesystem's leave,
which a stalled journal or a freeze withholds. The worker then stands in the kernel, and every sender behind
the socket's queue with it. The guard looks every LOOK_NS whether the same burst is still being stored. If so
it takes the socket over and receives into the reserve, bank after bank, until the worker has caught up. On
a host that is well it never receives anything, and its looks become rare while nothing arrives.

It is one kernel, without the interpreter's lock; see ingest.turn for how the two agree. All that it works on
is in one int64 array:

    guard[FDS]       address of the sockets          guard[RECVMMSG]    address of recvmmsg
    guard[FILE]      the staging file                guard[FALLOCATE]   address of fallocate
    guard[RESERVE_AT], [BANK_BYTES], [OFFSET]        guard[SLEEP]       address of nanosleep
                     of bank 1: address, length,     guard[TURN]        address of the words of the turn
                     place in the file               guard[ARMED]       address of the armed burst
    guard[SLOTS]     of a bank; in [BURST] of them   guard[FIRST], [OPENED]  addresses of those words
                     is received                     guard[TIME]        address of 16 bytes, for SLEEP
    guard[FD_COUNT]  how many sockets                guard[ERRNO]       address of errno's location function
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ingest.bank import MSGHDR_BYTES, OVERFLOW_BYTES, count_received, is_large, overflow_at, point, reset
from ingest.faults import note_fault
from ingest.staging import PUNCH, RESERVE, Staging
from ingest.turn import BEAT, CLOSED, DONE, GUARDED, HOLD, LEAVE, RECEIVING, STORING, Turn
from spool.kernel import (
    address_of,
    call,
    exchange,
    function_address,
    kernel,
    load_acquire,
    load_i64,
    publish_i64,
    store_i64,
)
from spool.own import open_own

(
    FDS,
    FILE,
    RESERVE_AT,
    BANK_BYTES,
    OFFSET,
    SLOTS,
    BURST,
    RECVMMSG,
    FALLOCATE,
    SLEEP,
    TURN,
    ARMED,
    FIRST,
    OPENED,
    TIME,
    FD_COUNT,
    ERRNO,
) = range(17)
FIELDS = 17
LOOK_NS, IDLE_NS, SHORT_NS = 3_000_000, 48_000_000, 200_000
"""Between two looks: at work, at rest, and while the worker is about to catch up."""
_PATIENCE = 10
"""Short looks for the worker to catch up before the next bank is begun."""
_MSG_WAITFORONE, _MSG_DONTWAIT = 0x10000, 0x40
_FAILED = 0x80000000
"""From here on an int in the low half of a register is negative."""
_NO_MEMORY, _LOST = _FAILED, _FAILED + 1
"""What no system call returns: no memory to receive into; a datagram was lost (ingest.faults)."""
KEPT = 8
"""Banks that stay free for what is in the socket when a worker stops without room."""
AT_ONCE = 32
"""Slots received into at once: so much overflow is reserved meanwhile, 64 KiB a slot."""

Job = npt.NDArray[np.int64]


class Guard:
    """The thread. It ends with its process, or when told to leave."""

    def __init__(self, receivers: Sequence[int], staging: Staging, turn: Turn) -> None:
        """`receivers`: the sockets; the timeout of a single one bounds how long `leave` takes."""
        self._turn, self._staging = turn, staging
        self._file = open_own(staging.path)
        self._time = np.zeros(2, np.int64)
        libc = ctypes.CDLL(None)
        job = self._job = np.zeros(FIELDS, np.int64)
        self._receivers = np.array(receivers, np.int64)
        job[FDS], job[FD_COUNT] = address_of(self._receivers), len(receivers)
        job[FILE] = self._file
        job[RESERVE_AT], job[BANK_BYTES] = staging.reserve_at, staging.bank_bytes
        job[OFFSET] = staging.reserve_at - staging.address
        job[SLOTS], job[BURST] = staging.slots, staging.burst
        job[RECVMMSG] = function_address(libc.recvmmsg)
        job[FALLOCATE] = function_address(libc.fallocate)
        job[SLEEP] = function_address(libc.nanosleep)
        job[ERRNO] = function_address(libc["__errno_location"])
        job[TURN], job[TIME] = turn.address, address_of(self._time)
        job[ARMED], job[FIRST], job[OPENED] = staging.armed_at, staging.first_at, staging.opened_at
        self._thread = threading.Thread(target=self._run, name="guard", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def leave(self) -> None:
        """End it. Only while the socket is the worker's."""
        self._turn.publish(LEAVE, 1)
        self._thread.join()
        os.close(self._file)

    def take_rest(self) -> int:
        """Receive what lies in the socket into the reserve, behind what waits there; how many datagrams.

        For a worker that stops without room, in place of the thread. The socket is shut down for reading.
        """
        taken = int(_take_rest(self._job))
        os.close(self._file)
        return taken

    def _run(self) -> None:
        # Signals are for the thread that waits in recvmmsg.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        stand_by(self._job)


@kernel
def _sleep(guard: Job, nanoseconds: int) -> None:
    store_i64(guard[TIME], 0)
    store_i64(guard[TIME] + 8, nanoseconds)
    call(guard[SLEEP], guard[TIME], 0)


@kernel
def stand_by(guard: Job) -> None:
    """Look, and take over where a store lasts, until told to leave."""
    turn, pause, beat = guard[TURN], LOOK_NS, -1
    while load_acquire(turn + LEAVE) == 0:
        _sleep(guard, pause)
        state, now = load_acquire(turn), load_acquire(turn + BEAT)
        if state == STORING and now == beat and load_acquire(turn + HOLD) == 0:
            publish_i64(turn + DONE, -1)
            publish_i64(turn + CLOSED, 0)
            if exchange(turn, STORING, GUARDED):
                _receive(guard)
        pause = LOOK_NS if state == STORING or now != beat else min(2 * pause, IDLE_NS)
        beat = now


@kernel
def _receive(guard: Job) -> None:
    """Receive into the reserve, bank after bank, until the worker has stored all of it."""
    turn, closed = guard[TURN], 0
    publish_i64(guard[OPENED], 0)
    publish_i64(guard[FIRST], load_acquire(guard[ARMED]) + 1)
    while load_acquire(turn + DONE) != closed:
        if load_acquire(turn + HOLD) != 0 or closed == RESERVE - KEPT or not _open(guard, closed):
            # No room, or no memory is left: senders wait in the socket.
            _sleep(guard, LOOK_NS)
            continue
        if _fill(guard, closed) > 0:
            closed += 1
            publish_i64(turn + CLOSED, closed)
            looks = 0
            while looks < _PATIENCE and load_acquire(turn + DONE) == closed - 1:
                _sleep(guard, SHORT_NS)
                looks += 1
    publish_i64(turn, RECEIVING)


@kernel
def _large(guard: Job, number: int, first: int, how: int) -> bool:
    """Reserve (how: 0), or give back, the overflow of up to AT_ONCE slots of a bank; False without room."""
    slots = guard[SLOTS]
    at = guard[OFFSET] + number * guard[BANK_BYTES] + overflow_at(slots) + first * OVERFLOW_BYTES
    length = min(AT_ONCE, slots - first) * OVERFLOW_BYTES
    return call(guard[FALLOCATE], guard[FILE], how, at, length) & 0xFFFFFFFF == 0


@kernel
def _receive_some(guard: Job, number: int, first: int, flags: int) -> int:
    """Receive into a few slots of a bank from `first` on; how many, or the low half of a negative int.

    Their overflow is reserved before, since a datagram that finds no memory is lost, and given back behind
    small ones.
    """
    if not _large(guard, number, first, 0):
        return _NO_MEMORY
    bank = guard[RESERVE_AT] + number * guard[BANK_BYTES]
    room = min(AT_ONCE, guard[BURST] - first)
    got = _FAILED + 2
    if guard[FD_COUNT] > 1:
        # Who has several to wait for waits for none of them.
        flags |= _MSG_DONTWAIT
    for which in range(guard[FD_COUNT]):
        fd = load_i64(guard[FDS] + 8 * which)
        got = call(guard[RECVMMSG], fd, bank + first * MSGHDR_BYTES, room, flags, 0) & 0xFFFFFFFF
        if got < _FAILED:
            break
        if note_fault(guard[TURN], guard[ERRNO]):
            got = _LOST
            break
    if got < _FAILED and not is_large(bank, first, first + got):
        _large(guard, number, first, PUNCH)
    return got


@kernel
def _open(guard: Job, number: int) -> bool:
    """Make the reserve's bank ready; False when there is no memory for it."""
    slots = guard[SLOTS]
    offset = guard[OFFSET] + number * guard[BANK_BYTES]
    # Reserved first: a store into a hole of a full tmpfs is a SIGBUS.
    if call(guard[FALLOCATE], guard[FILE], 0, offset, overflow_at(slots)) & 0xFFFFFFFF:
        return False
    bank = guard[RESERVE_AT] + number * guard[BANK_BYTES]
    point(bank, slots)
    reset(bank, slots)
    publish_i64(guard[OPENED], number + 1)
    return True


@kernel
def _fill(guard: Job, number: int) -> int:
    """Receive into a bank until it is full, or the worker waits for it; how many datagrams."""
    used = 0
    while used < guard[BURST]:
        flags = _MSG_WAITFORONE | (_MSG_DONTWAIT if used > 0 else 0)
        got = _receive_some(guard, number, used, flags)
        if got < _FAILED:
            used += got
        elif got == _NO_MEMORY and used > 0:
            break
        if load_acquire(guard[TURN] + DONE) == number or load_acquire(guard[TURN] + HOLD) != 0:
            break
        if got >= _FAILED and got != _LOST:
            # Nothing there, or what the worker will be told in its turn.
            _sleep(guard, SHORT_NS)
    if used < guard[SLOTS]:
        _large(guard, number, used, PUNCH)
    return used


@kernel
def _take_rest(guard: Job) -> int:
    """Receive into bank after bank until nothing is left to receive, or no memory."""
    number, total = load_acquire(guard[OPENED]), 0
    last = guard[RESERVE_AT] + (number - 1) * guard[BANK_BYTES]
    if 0 < number < RESERVE and count_received(last, guard[SLOTS]) == 0:
        # A bank without a datagram would hide those behind it.
        number -= 1
    if number == 0:
        publish_i64(guard[FIRST], load_acquire(guard[ARMED]) + 1)
    while number < RESERVE and _open(guard, number):
        used = 0
        while used < guard[BURST]:
            got = _receive_some(guard, number, used, _MSG_WAITFORONE | _MSG_DONTWAIT)
            if got == _LOST:
                continue
            if got >= _FAILED:
                return total + used
            used += got
        total += used
        number += 1
    return total


def compile_kernels() -> None:
    """Compile, or load from the cache."""
    turn, job = Turn(), np.zeros(FIELDS, np.int64)
    turn.publish(LEAVE, 1)
    job[TURN] = turn.address
    stand_by(job)
    opened = np.array([RESERVE], np.int64)
    job[OPENED] = address_of(opened)
    _take_rest(job)
