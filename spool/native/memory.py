"""Memory by address: loads, stores, copies, fences and calls of C functions, for hot loops.

The hot loops of bruce run over memory that is shared with the kernel (staging), with other processes
(mappings) and with C libraries (librdkafka, xxHash). Numba knows arrays, not addresses. The operations that
it lacks are here, in ctypes; compiled code has the same from `spool.native.kernel`.

Addresses and integers are int64 throughout; unsigned 64-bit values travel as their two's complement. An
`Address` is an int to the compiler and to Numba; the type checker refuses a plain number, an offset or a
length in its place. So a loop says `Address(row + OFFSET)` where it hands on what it has computed.

Processors other than x86 may show one thread's stores to another in any order. So a word that one process
or thread writes and another reads is stored by `publish_i64` (a release) and read by `load_acquire` (an
acquire), or changed by `exchange`. On x86 both are plain moves, and bind only the compiler. The words:

    word                                        written by               read in loops of
    handoff: STATE                              worker, guard            worker, guard
    handoff: BEAT, DONE, LEAVE, BLOCKED, FAULTS worker (LEAVE: at stop)  guard
    handoff: CLOSED, FAULTS while it is GUARDED guard                    worker
    staging: armed; first, opened               worker; guard            guard; worker
    connection buffer: KIND, SIDE, OFFERED      stream worker            ingest worker
    connection buffer: TAKEN; all: burst, runs  ingest worker            stream worker
    state: WRITTEN, WRITTEN_SEQUENCE, PAUSED    ingest worker            keeper; others, from Python
    state: SYNCED, SYNCED_SEQUENCE              keeper                   delivery worker
    state: KEEPER_WAITS, SUSPECT, QUOTAS,       keeper                   ingest worker
           QUOTA_TOPICS and its rows
    state: SYNC_WANTED, SYNC_SOON               Kafka worker             keeper
    state: PAUSE                                `drain --stop-intake`    ingest worker

KEEPER_WAITS is read behind a `fence`: WRITTEN must be visible before that read. Python's own stores into
the shared state are followed by system calls, or depend on no other word; SYNC_SOON may be seen late. The
kernel stores msg_len for the thread that reads it, or that publishes a word behind it.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any, NewType

if TYPE_CHECKING:
    import numpy.typing as npt

Address = NewType("Address", int)
"""A place in the memory of this process; 0 for none. Not valid in any other process."""


def address_of(array: npt.NDArray[Any]) -> Address:
    """The address of the first byte of `array`. The caller keeps the array alive."""
    return Address(int(array.ctypes.data))


def function_address(function: Any) -> Address:
    """The address of a ctypes function, for `call`."""
    return Address(int(ctypes.cast(function, ctypes.c_void_p).value or 0))


def _loader(ctype: Any) -> Any:
    """A function address -> value, widened to int64. Any alignment."""
    return lambda address: ctype.from_address(int(address)).value


def _storer(ctype: Any) -> Any:
    """A function (address, value): any alignment, or aligned and after all earlier stores."""

    def store(address: int, value: int) -> None:
        ctype.from_address(int(address)).value = int(value)

    return store


load_u8 = _loader(ctypes.c_uint8)
load_u16 = _loader(ctypes.c_uint16)
load_i32 = _loader(ctypes.c_int32)
load_u32 = _loader(ctypes.c_uint32)
load_i64 = _loader(ctypes.c_int64)
load_acquire = _loader(ctypes.c_int64)
"""Load 8 aligned bytes so that no later load or store can be seen before it: stores that precede a
`publish_i64` are visible when its word is."""
store_u8 = _storer(ctypes.c_uint8)
store_u16 = _storer(ctypes.c_uint16)
store_u32 = _storer(ctypes.c_uint32)
store_i64 = _storer(ctypes.c_int64)
publish_i64 = _storer(ctypes.c_int64)
"""Store 8 aligned bytes so that no earlier store can be seen after them."""


def places_of(address: int, byte: int) -> int:
    """Which of the 64 bytes at an address are `byte`: a bit for each, that of the first is 1."""
    found = sum(1 << at for at, one in enumerate(ctypes.string_at(int(address), 64)) if one == byte)
    return found - (found >> 63 << 64)


def copy(target: int, source: int, length: int) -> None:
    """Copy bytes between addresses; the ranges must not overlap."""
    ctypes.memmove(int(target), int(source), int(length))


_exchanging = threading.Lock()


def fence() -> None:
    """Order the stores before it with the loads after it, on every processor."""
    for _ in range(2):  # what may sink into a lock, or rise into it, passes no second one
        with _exchanging:
            pass


def exchange(address: int, expected: int, value: int) -> bool:
    """Set 8 aligned bytes to `value` if they are `expected`, atomically; returns whether they were."""
    with _exchanging:
        word = ctypes.c_int64.from_address(int(address))
        if word.value != expected:
            return False
        word.value = int(value)
        return True


def call(address: int, *arguments: int) -> int:
    """Call a C function of integers at this address; a 32-bit result is in the low half of the value."""
    signature = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))
    return int(signature(int(address))(*(int(a) for a in arguments)))
