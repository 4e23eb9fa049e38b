"""Memory by address: each operation does the same compiled and as plain Python."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spool.native import memory
from spool.native.kernel import kernel
from spool.native.memory import Address

BYTES = np.frombuffer(bytes([0x80, 0x91, 0xA2, 0xB3, 0xC4, 0xD5, 0xE6, 0xF7] * 3), np.uint8)
NUMBER = -0x0123456789ABCDEF
LIBC = ctypes.CDLL(None)


def load_all(address: Address) -> tuple[int, int, int, int, int]:
    """The value at an address, by each load."""
    return (
        memory.load_u8(address),
        memory.load_u16(address),
        memory.load_i32(address),
        memory.load_u32(address),
        memory.load_i64(address),
    )


def store_all(address: Address, value: int) -> None:
    """A value by each store, one before the other: no later one hides that an earlier one wrote too much."""
    memory.store_i64(Address(address + 7), value)
    memory.store_u32(Address(address + 3), value)
    memory.store_u16(Address(address + 1), value)
    memory.store_u8(address, value)


def swap(address: Address, expected: int, value: int) -> bool:
    """An exchange."""
    return memory.exchange(address, expected, value)


def move(target: Address, source: Address, length: int) -> None:
    """A copy."""
    memory.copy(target, source, length)


def ask(function: Address, value: int) -> int:
    """A call of a function in C."""
    return memory.call(function, value)


def ways(loop: Callable[..., Any]) -> Any:
    """Run a test with `loop` as plain Python, and compiled."""
    return pytest.mark.parametrize("run", [loop, kernel(loop)], ids=["Python", "compiled"])


@ways(load_all)
def test_loads_widen(run: Callable[..., tuple[int, ...]]) -> None:
    """At any alignment; unsigned ones have no sign, signed ones keep it."""
    for at in range(8):
        data = BYTES.tobytes()[at : at + 8]
        wanted = [int.from_bytes(data[:size], "little") for size in (1, 2, 4, 4, 8)]
        wanted[2] -= wanted[2] >> 31 << 32
        wanted[4] -= wanted[4] >> 63 << 64
        assert run(memory.address_of(BYTES) + at) == tuple(wanted)


@ways(store_all)
def test_stores_write_their_bytes_alone(run: Callable[..., None]) -> None:
    """The low ones of the value, at any alignment, and nothing before or behind them."""
    low = (NUMBER % (1 << 64)).to_bytes(8, "little")
    for at in range(1, 9):
        held = np.full(32, 0x55, np.uint8)
        run(memory.address_of(held) + at, NUMBER)
        wanted = low[:1] + low[:2] + low[:4] + low
        assert held.tobytes() == (b"\x55" * at + wanted).ljust(32, b"\x55")


@ways(move)
def test_a_copy_is_exact(run: Callable[..., None]) -> None:
    """Of so many bytes, none of them too."""
    for length in (0, 1, 9):
        held = np.zeros(16, np.uint8)
        run(memory.address_of(held) + 3, memory.address_of(BYTES) + 1, length)
        assert held.tobytes() == (bytes(3) + BYTES.tobytes()[1 : 1 + length]).ljust(16, b"\0")


@ways(swap)
def test_an_exchange_needs_the_expected_value(run: Callable[..., bool]) -> None:
    """It sets the word and says so, or leaves it and says so."""
    word = np.array([7], np.int64)
    assert not run(memory.address_of(word), 8, 9)
    assert word[0] == 7
    assert run(memory.address_of(word), 7, -9)
    assert word[0] == -9


@ways(swap)
def test_of_several_threads_one_has_the_word(run: Callable[..., bool]) -> None:
    """Threads that add one by exchanges lose no addition."""
    word, each, begin = np.zeros(1, np.int64), 3000, threading.Barrier(4)
    at = memory.address_of(word)

    def add() -> None:
        begin.wait(60)
        for _ in range(each):
            while not run(at, seen := memory.load_acquire(at), seen + 1):
                continue

    before, threads = sys.getswitchinterval(), [threading.Thread(target=add) for _ in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    finally:
        sys.setswitchinterval(before)
    assert word[0] == 4 * each


@ways(ask)
def test_a_function_is_called_by_its_address(run: Callable[..., int]) -> None:
    """A result of 32 bits is in the low half of the value, and one of 64 bits is all of it."""
    assert run(memory.function_address(LIBC.abs), -5) & 0xFFFFFFFF == 5
    assert run(memory.function_address(LIBC.labs), -(1 << 40)) == 1 << 40


def test_no_function_is_no_address() -> None:
    """A pointer to nothing is 0, for which loops can ask."""
    assert memory.function_address(ctypes.CFUNCTYPE(None)()) == 0
