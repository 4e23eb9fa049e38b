"""Two slots of a table in a file: one is right, the other is being written.

    file := slot[2]
    slot := digest:u64 burst:u64 zero:240 bytes rows                                    65,536 bytes

`digest` is the xxh3 of the slot behind it, `burst` the last burst that the slot counts: a burst is counted
once, whichever process is killed in between. The newest slot that is whole is the right one. The rows are
specified in spool.shared.ledger. Little-endian.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from spool.native.digest import digest
from spool.storage.disk import allocate, is_regular, open_to_write, read_bytes, write_at

SLOT_BYTES = 65536
SLOTS_BYTES = 2 * SLOT_BYTES
HEAD_BYTES = 256


def make_slots(path: Path) -> None:
    """Make a file that counts nothing unless there is one of the right size. Raises SpoolFull, OSError."""
    if not is_regular(path) or path.stat().st_size != SLOTS_BYTES:
        allocate(path, b"", SLOTS_BYTES)


def right_slot(data: bytes) -> tuple[int, int]:
    """(burst, number) of the newest slot in a file's bytes that is whole; (0, 0) when there is none."""
    best = (0, 0)
    for number in (0, 1):
        slot = slot_of(data, number)
        burst = int.from_bytes(slot[8:16], "little")
        if burst > best[0] and digest(slot[8:]) == int.from_bytes(slot[:8], "little"):
            best = (burst, number)
    return best


def slot_of(data: bytes, number: int) -> bytes:
    """One of the two."""
    return data[number * SLOT_BYTES : (number + 1) * SLOT_BYTES]


def read_slot(path: Path) -> tuple[int, bytes]:
    """(burst, the right slot) of a file; (0, nothing) without one."""
    try:
        data = read_bytes(path, SLOTS_BYTES)
    except FileNotFoundError:
        return 0, b""
    burst, number = right_slot(data)
    return (burst, slot_of(data, number)) if burst else (0, b"")


class SyncedSlots:
    """A file of which each slot is synced before the other is written: power loss tears one at most."""

    def __init__(self, path: Path) -> None:
        """Open the file at `path`, and make it when it is not there. Raises SpoolFull, OSError."""
        make_slots(path)
        data = read_bytes(path, SLOTS_BYTES)
        self.burst, self._right = right_slot(data)
        self.slot = slot_of(data, self._right) if self.burst else bytes(SLOT_BYTES)
        """The right one; zeros when both are torn."""
        self._fd = open_to_write(path)
        try:
            # An earlier sync may have failed: the bytes just read may be in the page cache alone.
            write_at(self._fd, self.slot, self._right * SLOT_BYTES)
            os.fdatasync(self._fd)
        except OSError:
            os.close(self._fd)
            raise

    def put(self, rows: bytes, burst: int) -> None:
        """Write these rows, which count up to and including `burst`, as the right slot. Raises OSError."""
        behind = burst.to_bytes(8, "little") + bytes(HEAD_BYTES - 16) + rows
        slot = digest(behind).to_bytes(8, "little") + behind
        write_at(self._fd, slot, (1 - self._right) * SLOT_BYTES)
        os.fdatasync(self._fd)
        # Only now: a slot whose sync failed is written again, whole, and the other one stays.
        self.burst, self._right, self.slot = burst, 1 - self._right, slot

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
