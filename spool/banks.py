"""Two banks of a table in a file: one is right, the other is being written.

    file := bank[2]
    bank := digest:u64 burst:u64 zero:240 bytes rows                                    65,536 bytes

`digest` is the xxh3 of the bank behind it, `burst` the last burst that the bank counts: a burst is counted
once, whatever is killed in between. The newest bank that is whole is the right one. What the rows are:
spool.ledger. Little-endian.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from spool.digest import digest
from spool.disk import allocate, is_regular, open_to_write, read_bytes, write_at

BANK_BYTES = 65536
BANKS_BYTES = 2 * BANK_BYTES
HEAD_BYTES = 256


def make_banks(path: Path) -> None:
    """Make a file that counts nothing where none is, or none that is whole. Raises SpoolFull, OSError."""
    if not is_regular(path) or path.stat().st_size != BANKS_BYTES:
        allocate(path, b"", BANKS_BYTES)


def right_bank(data: bytes) -> tuple[int, int]:
    """(burst, number) of the newest bank in a file's bytes that is whole; (0, 0) when there is none."""
    best = (0, 0)
    for number in (0, 1):
        bank = bank_of(data, number)
        burst = int.from_bytes(bank[8:16], "little")
        if burst > best[0] and digest(bank[8:]) == int.from_bytes(bank[:8], "little"):
            best = (burst, number)
    return best


def bank_of(data: bytes, number: int) -> bytes:
    """One of the two."""
    return data[number * BANK_BYTES : (number + 1) * BANK_BYTES]


def read_bank(path: Path) -> tuple[int, bytes]:
    """(burst, the right bank) of a file; (0, nothing) without one."""
    try:
        data = read_bytes(path, BANKS_BYTES)
    except FileNotFoundError:
        return 0, b""
    burst, number = right_bank(data)
    return (burst, bank_of(data, number)) if burst else (0, b"")


class SyncedBanks:
    """A file of which each bank is synced before the other is written: power loss tears one at most."""

    def __init__(self, path: Path) -> None:
        """Open the file at `path`; made when it is not there. Raises SpoolFull, OSError."""
        make_banks(path)
        data = read_bytes(path, BANKS_BYTES)
        self.burst, self._right = right_bank(data)
        self.bank = bank_of(data, self._right) if self.burst else bytes(BANK_BYTES)
        """The right one. What two torn ones hold is nothing to count on from."""
        self._fd = open_to_write(path)
        try:
            # The last sync before may have failed: what is read is in memory, and perhaps only there.
            write_at(self._fd, self.bank, self._right * BANK_BYTES)
            os.fdatasync(self._fd)
        except OSError:
            os.close(self._fd)
            raise

    def put(self, rows: bytes, burst: int) -> None:
        """Have these rows, which count up to and including `burst`, in the right bank. Raises OSError."""
        behind = burst.to_bytes(8, "little") + bytes(HEAD_BYTES - 16) + rows
        bank = digest(behind).to_bytes(8, "little") + behind
        write_at(self._fd, bank, (1 - self._right) * BANK_BYTES)
        os.fdatasync(self._fd)
        # Only now: a bank whose sync failed is written again, whole, and the other one stays.
        self.burst, self._right, self.bank = burst, 1 - self._right, bank

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
