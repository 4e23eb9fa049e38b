"""The C library for compiled loops: its functions by address; the time, and waits for bells, by them.

The functions write into memory of the caller: SCRATCH_WORDS words, of which nothing else is kept.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

from spool.native.kernel import subkernel
from spool.native.memory import Address, call, function_address, load_i32, load_i64, load_u16, store_i64

REALTIME, MONOTONIC = 0, 1
"""clockid_t of Linux."""
SCRATCH_WORDS = 5
_POLLIN, _REVENTS_AT, _POLL_BYTES = 1, 6, 8
"""Of a struct pollfd: the event, the offset of the events that came, and its size."""
_VALUE_AT, _TIME_AT = 16, 24
"""Offsets in the scratch, behind two of these: of an eventfd's value, and of a struct timespec."""
_FAILED = 1 << 31
"""A result as 32 bits that is not below it is negative."""
_WORD_BYTES = 8
_NS = 1_000_000_000
_SYMBOLS = {"errno_location": "__errno_location"}


class Libc(NamedTuple):
    """Addresses of functions of the C library."""

    ppoll: int
    read: int
    write: int
    pread: int
    pwrite: int
    fdatasync: int
    clock_gettime: int
    errno_location: int


@cache
def libc() -> Libc:
    """Those of this process."""
    library = ctypes.CDLL(None)
    return Libc(*(function_address(getattr(library, _SYMBOLS.get(name, name))) for name in Libc._fields))


@subkernel
def now(functions: Libc, scratch: Address, clock: int) -> int:
    """The time of a clock, in ns."""
    call(functions.clock_gettime, clock, scratch)
    return load_i64(scratch) * _NS + load_i64(scratch + 8)


@subkernel
def await_bells(functions: Libc, scratch: Address, one: int, other: int, most_ns: int) -> bool:
    """Sleep until one of two eventfds rings, or for `most_ns`; False when a signal came first.

    `rung` says which did; -1 for `other`: there is none.
    """
    store_i64(scratch, one & 0xFFFFFFFF | _POLLIN << 32)
    store_i64(scratch + _POLL_BYTES, other & 0xFFFFFFFF | _POLLIN << 32)
    time = Address(scratch + _TIME_AT)
    store_i64(time, max(0, most_ns) // _NS)
    store_i64(time + 8, max(0, most_ns) % _NS)
    return call(functions.ppoll, scratch, 2, time, 0) & 0xFFFFFFFF < _FAILED


@subkernel
def rung(functions: Libc, scratch: Address, number: int, eventfd: int) -> int:
    """How often an eventfd of `await_bells` rang meanwhile: its first (`number` 0) or the other (1)."""
    at = scratch + _POLL_BYTES * number
    if load_u16(at + _REVENTS_AT) & _POLLIN == 0:
        return 0
    value = scratch + _VALUE_AT
    return load_i64(value) if call(functions.read, eventfd, value, _WORD_BYTES) == _WORD_BYTES else 0


@subkernel
def ring(functions: Libc, scratch: Address, eventfd: int) -> None:
    """Ring an eventfd."""
    store_i64(scratch, 1)
    call(functions.write, eventfd, scratch, _WORD_BYTES)


@subkernel
def failure(functions: Libc) -> int:
    """The errno of the function that failed last in this thread."""
    return load_i32(call(functions.errno_location))
