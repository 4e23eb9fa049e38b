"""A bank of slots in staging, as recvmmsg sees it: where what lies, and the loops over it.

bank := mmsghdr[slots]    64 bytes each
        iovec[2*slots]    16 bytes each
        control[slots]    32 bytes each: exactly one SCM_CREDENTIALS, so that passed descriptors are
                          closed by the kernel, not leaked
        slot[slots]       2 KiB each, from a page boundary on
        overflow[slots]   64 KiB apart: the rest of a large datagram, a range of its own for each
"""

from __future__ import annotations

import numpy as np

from spool.kernel import address_of, kernel, load_acquire, load_u32, publish_i64, store_i64, store_u32
from spool.wire import MAX_DATAGRAM_BYTES

SLOT_BYTES = 2048
OVERFLOW_BYTES = 65536
CONTROL_BYTES = 32
MSGHDR_BYTES = 64
NOT_RECEIVED = 0xFFFFFFFF


@kernel
def control_at(slots: int) -> int:
    """Where in a bank the control buffers begin."""
    return slots * (MSGHDR_BYTES + 32)


@kernel
def slots_at(slots: int) -> int:
    """Where in a bank the slots begin."""
    return (slots * (MSGHDR_BYTES + 32 + CONTROL_BYTES) + 4095) & ~4095


@kernel
def overflow_at(slots: int) -> int:
    """Where in a bank the overflow ranges begin; what every burst touches ends here."""
    return slots_at(slots) + slots * SLOT_BYTES


@kernel
def is_large(bank: int, first: int, end: int) -> bool:
    """Whether a datagram in these slots went on in its overflow."""
    for i in range(first, end):
        length = load_u32(bank + i * MSGHDR_BYTES + 56)
        if length != NOT_RECEIVED and length > SLOT_BYTES:
            return True
    return False


@kernel
def bank_bytes(slots: int) -> int:
    """From one bank to the next."""
    return (overflow_at(slots) + slots * OVERFLOW_BYTES + 4095) & ~4095


@kernel
def load_word(address: int) -> int:
    """One aligned word."""
    return load_acquire(address)


@kernel
def store_word(address: int, value: int) -> None:
    """One aligned word, after all stores before it."""
    publish_i64(address, value)


@kernel
def load_length(bank: int, slot: int) -> int:
    """msg_len of a slot."""
    return load_u32(bank + slot * MSGHDR_BYTES + 56)


@kernel
def count_received(bank: int, slots: int) -> int:
    """Slots before the first that nothing was received into."""
    for i in range(slots):
        if load_u32(bank + i * MSGHDR_BYTES + 56) == NOT_RECEIVED:
            return i
    return slots


@kernel
def point(bank: int, slots: int) -> None:
    """Write the pointers of this process's mapping; lengths and flags stay as they are."""
    for i in range(slots):
        header = bank + i * MSGHDR_BYTES
        vector = bank + slots * MSGHDR_BYTES + i * 32
        store_i64(header, 0)
        store_i64(header + 8, 0)
        store_i64(header + 16, vector)
        store_i64(header + 24, 2)
        store_i64(header + 32, bank + control_at(slots) + i * CONTROL_BYTES)
        store_i64(vector, bank + slots_at(slots) + i * SLOT_BYTES)
        store_i64(vector + 8, SLOT_BYTES)
        store_i64(vector + 16, bank + overflow_at(slots) + i * OVERFLOW_BYTES)
        store_i64(vector + 24, MAX_DATAGRAM_BYTES - SLOT_BYTES)


@kernel
def reset(bank: int, used: int) -> None:
    """Make the first `used` slots ready to receive."""
    for i in range(used):
        header = bank + i * MSGHDR_BYTES
        store_i64(header + 40, CONTROL_BYTES)
        store_u32(header + 48, 0)
        store_u32(header + 56, NOT_RECEIVED)


def compile_kernels() -> None:
    """Compile, or load from the cache, what a worker does with its staging."""
    memory = np.zeros(8, np.uint64)
    at = address_of(memory)
    store_word(at, load_word(at) + load_length(at, 0) + count_received(at, 0))
    point(at, 0)
    control_at(0), slots_at(0), overflow_at(0), bank_bytes(0), is_large(at, 0, 0)
