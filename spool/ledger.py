"""The ledger: what was discarded while the spool had no room, in a file that needs none.

Two banks of the same table; one is right, the other is being written. A burst's discards are added to a
copy of the right bank, whose digest is stored last: like a frame, a bank is there whole or not at all. A
bank names the last burst it counts, so that a burst is counted once, whatever is killed in between.

    ledger := bank[2]
    bank   := digest:u64 burst:u64 zero:240 bytes row[255]                        65,536 bytes
    row    := hash:i64 count:u64 first_ns:u64 last_ns:u64 reason:u16 topic_bytes:u16 zero:u32 topic:216

`digest` is the xxh3 of the bank behind it. A topic and a reason have a row among the first 223, found by
their hash. The last 32 rows, one a reason, take what has no topic or finds no row of its own. Little-endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spool.digest import digest as xxh3
from spool.disk import allocate
from spool.kernel import address_of, call, copy, kernel, load_i64, publish_i64, store_i64, store_u16
from spool.mapping import Mapping
from spool.scan import digest_address
from spool.wire import REASONS

BANK_BYTES = 65536
LEDGER_BYTES = 2 * BANK_BYTES
ROW_BYTES = 256
ROWS = 255
TOPIC_ROWS = ROWS - REASONS
TOPIC_BYTES = 216
_HEAD = 256


@dataclass(frozen=True, slots=True)
class Discards:
    """Messages discarded for one reason, of one topic (empty: unknown)."""

    topic: bytes
    reason: int
    count: int
    first_ns: int
    last_ns: int


@kernel
def add(bank: int, topic: int, topic_bytes: int, reason: int, now_ns: int, digest: int) -> None:
    """Count one discarded datagram in the bank at address `bank`; `topic` is the address of its name."""
    row = bank + _HEAD + (TOPIC_ROWS + reason) * ROW_BYTES
    hashed = 0
    kept = 0
    if topic_bytes > 0:
        hashed = call(digest, topic, topic_bytes, reason)
        for step in range(TOPIC_ROWS):
            probe = bank + _HEAD + (((hashed & 0x7FFFFFFF) + step) % TOPIC_ROWS) * ROW_BYTES
            if load_i64(probe + 8) == 0 or load_i64(probe) == hashed:
                row = probe
                kept = min(topic_bytes, TOPIC_BYTES)
                break
    if load_i64(row + 8) == 0:
        store_i64(row, hashed)
        store_i64(row + 16, now_ns)
        store_u16(row + 32, reason)
        store_u16(row + 34, kept)
        copy(row + 40, topic, kept)
    store_i64(row + 8, load_i64(row + 8) + 1)
    store_i64(row + 24, now_ns)


@kernel
def begin(right: int, other: int) -> None:
    """Make the bank at address `other` a copy of the right one, to be added to."""
    copy(other, right, BANK_BYTES)


@kernel
def commit(bank: int, burst: int, digest: int) -> None:
    """Make a bank the right one, counting up to and including `burst`."""
    store_i64(bank + 8, burst)
    publish_i64(bank, call(digest, bank + 8, BANK_BYTES - 8, 0))


class Ledger:
    """The mapped ledger of a spool."""

    def __init__(self, path: Path) -> None:
        """Map the ledger at `path`, which is made when it is not there, or not whole.

        Raises SpoolFull, OSError.
        """
        if not path.exists() or path.stat().st_size != LEDGER_BYTES:
            allocate(path, b"", LEDGER_BYTES)
        self._mapping = Mapping(path, length=LEDGER_BYTES)
        self.burst, self._right = _right_bank(self._mapping.bytes.tobytes())

    def begin(self) -> int:
        """The address of a bank to add discards to."""
        base = self._mapping.address
        bank = base + (1 - self._right) * BANK_BYTES
        begin(base + self._right * BANK_BYTES, bank)
        return bank

    def commit(self, burst: int) -> None:
        """Make what was added count, for bursts up to and including `burst`."""
        commit(self._mapping.address + (1 - self._right) * BANK_BYTES, burst, digest_address())
        self._right, self.burst = 1 - self._right, burst


def compile_kernels() -> None:
    """Compile, or load from the cache, what discarding takes."""
    banks = np.zeros(LEDGER_BYTES, np.uint8)
    begin(address_of(banks), address_of(banks) + BANK_BYTES)
    commit(address_of(banks), 0, digest_address())


def _right_bank(data: bytes) -> tuple[int, int]:
    """(burst, bank) of the newest bank that is whole; (0, 0) when there is none."""
    best = (0, 0)
    for number in (0, 1):
        bank = data[number * BANK_BYTES : (number + 1) * BANK_BYTES]
        burst = int.from_bytes(bank[8:16], "little")
        if burst > best[0] and xxh3(bank[8:]) == int.from_bytes(bank[:8], "little"):
            best = (burst, number)
    return best


def read_ledger(path: Path) -> list[Discards]:
    """What the ledger counts; nothing when there is none."""
    return read_books(path)[1]


def read_books(path: Path) -> tuple[int, list[Discards]]:
    """(last burst counted, what the ledger counts); (0, nothing) when there is none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0, []
    burst, number = _right_bank(data)
    if not burst:
        return 0, []
    rows = np.frombuffer(data, np.uint8)[number * BANK_BYTES : (number + 1) * BANK_BYTES]
    return burst, [_discards(row) for row in rows[_HEAD:].reshape(ROWS, ROW_BYTES) if row[8:16].any()]


def _discards(row: npt.NDArray[np.uint8]) -> Discards:
    _, count, first, last = row[:32].view(np.int64).tolist()
    reason, length = row[32:36].view(np.uint16).tolist()
    return Discards(row[40 : 40 + length].tobytes(), reason, count, first, last)
