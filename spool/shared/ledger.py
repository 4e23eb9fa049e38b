"""The ledger: datagrams discarded while the spool had no room, counted in a file that needs none.

Two slots of the same table (spool.storage.ab_slots). A burst's discards are added to a copy of the right
slot, whose digest is stored last: like a frame, a slot is there whole or not at all.

The process that counts may not wait for the disk, so the two slots reach it in no order: a power loss can
tear both. So the keeper has a copy in a file of its own, of the same form, and syncs each slot before it
writes the other: one of the two is always whole on the disk. The newest whole slot of both files is right.

    slot := digest:u64 burst:u64 zero:240 bytes row[255]                          65,536 bytes
    row  := hash:i64 count:u64 first_ns:u64 last_ns:u64 reason:u16 topic_bytes:u16 zero:u32 topic:216

A topic and a reason have a row among the first 223, found by their hash. The last 32 rows, one a reason, take
discards that have no topic or find no row of their own. Little-endian.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spool.format.scan import digest_address
from spool.format.segment_format import Record
from spool.format.wire import REASONS
from spool.layout import copy_of_ledger
from spool.native.kernel import kernel
from spool.native.memory import Address, call, copy, load_i64, publish_i64, store_i64, store_u16
from spool.storage.ab_slots import (
    BURST_AT,
    HEAD_BYTES,
    SLOT_BYTES,
    SLOTS_BYTES,
    SyncedSlots,
    make_slots,
    read_slot,
    right_slot,
)
from spool.storage.disk import Mapping, open_to_read, open_to_write, read_at

ROWS = 255
TOPIC_ROWS = ROWS - REASONS
TOPIC_BYTES = 216
LEDGER_ROW = np.dtype(
    [
        ("hash", "<i8"),
        ("count", "<i8"),
        ("first_ns", "<i8"),
        ("last_ns", "<i8"),
        ("reason", "<u2"),
        ("topic_bytes", "<u2"),
        ("zero", "<u4"),
        ("topic", "u1", TOPIC_BYTES),
    ]
)
ROW_BYTES = LEDGER_ROW.itemsize
_COUNT_AT, _FIRST_AT, _LAST_AT, _REASON_AT, _TOPIC_BYTES_AT, _TOPIC_AT = (
    int(LEDGER_ROW.fields[name][1])  # type: ignore[index]
    for name in ("count", "first_ns", "last_ns", "reason", "topic_bytes", "topic")
)
"""Offsets of a row's fields, for compiled loops; its hash is at 0."""


@dataclass(frozen=True, slots=True)
class Discards:
    """Messages discarded for one reason, of one topic (empty: unknown)."""

    topic: bytes
    reason: int
    count: int
    first_ns: int
    last_ns: int


@kernel
def add(
    slot: Address, topic: Address, topic_bytes: int, reason: int, now_ns: int, digest: int, count: int = 1
) -> None:
    """Count discarded datagrams in the slot at address `slot`; `topic` is the address of a topic's name.

    With `topic_bytes` 0 it is not read.
    """
    row = slot + HEAD_BYTES + (TOPIC_ROWS + reason) * ROW_BYTES
    hashed = 0
    kept = 0
    if topic_bytes > 0:
        hashed = call(digest, topic, topic_bytes, reason)
        for step in range(TOPIC_ROWS):
            probe = slot + HEAD_BYTES + (((hashed & 0x7FFFFFFF) + step) % TOPIC_ROWS) * ROW_BYTES
            if load_i64(probe + _COUNT_AT) == 0 or load_i64(probe) == hashed:
                row = probe
                kept = min(topic_bytes, TOPIC_BYTES)
                break
    if load_i64(row + _COUNT_AT) == 0:
        store_i64(row, hashed)
        store_i64(row + _FIRST_AT, now_ns)
        store_u16(row + _REASON_AT, reason)
        store_u16(row + _TOPIC_BYTES_AT, kept)
        copy(row + _TOPIC_AT, topic, kept)
    store_i64(row + _COUNT_AT, load_i64(row + _COUNT_AT) + count)
    store_i64(row + _LAST_AT, now_ns)


@kernel
def begin(right: Address, other: Address) -> None:
    """Make the slot at address `other` a copy of the one at `right`, to be added to."""
    copy(other, right, SLOT_BYTES)


@kernel
def commit(slot: Address, burst: int, digest: int) -> None:
    """Make the slot at an address the right one, counting up to and including `burst`."""
    store_i64(slot + BURST_AT, burst)
    publish_i64(slot, call(digest, slot + BURST_AT, SLOT_BYTES - BURST_AT, 0))


class Ledger:
    """The mapped ledger of a spool."""

    def __init__(self, path: Path) -> None:
        """Map the ledger at `path`, which is made when it is not there, or not whole.

        A newer slot of its copy becomes the right one. Raises SpoolFull, OSError.
        """
        make_slots(path)
        self._mapping = Mapping(open_to_write(path), length=SLOTS_BYTES)
        self.burst, self._right = right_slot(self._mapping.bytes.tobytes())
        burst, slot = _newest(path)
        if burst > self.burst:
            self.burst, self._right = burst, 1 - self._right
            at = self._right * SLOT_BYTES
            self._mapping.bytes[at : at + SLOT_BYTES] = np.frombuffer(slot, np.uint8)
        elif not self.burst and self._mapping.bytes.any():
            # Both slots are torn: count from zero.
            self._mapping.bytes[:] = 0

    def begin(self) -> Address:
        """The address of a slot to add discards to."""
        slot = self._slot(1 - self._right)
        begin(self._slot(self._right), slot)
        return slot

    def commit(self, burst: int) -> None:
        """Make what was added count, for bursts up to and including `burst`."""
        commit(self._slot(1 - self._right), burst, digest_address())
        self._right, self.burst = 1 - self._right, burst

    def _slot(self, number: int) -> Address:
        return Address(self._mapping.address + number * SLOT_BYTES)


class LedgerCopy:
    """The copy of a ledger that power loss does not tear, as the keeper has it."""

    def __init__(self, path: Path) -> None:
        """Open the copy of the ledger at `path`, or make it. Raises SpoolFull, OSError."""
        self._path, self._slots = path, SyncedSlots(copy_of_ledger(path))

    @property
    def burst(self) -> int:
        """The last one that it counts."""
        return self._slots.burst

    def update(self) -> bool:
        """Copy the ledger's right slot, and sync it; False without anything new. Raises OSError."""
        if not self._is_behind():
            return False
        burst, slot = read_slot(self._path)
        if burst <= self.burst:
            return False
        self._slots.put(slot[HEAD_BYTES:], burst)
        return True

    def _is_behind(self) -> bool:
        """Whether the ledger may count more than its copy; reads two words."""
        try:
            fd = open_to_read(self._path)
        except FileNotFoundError:
            return False
        try:
            bursts = [read_at(fd, 8, slot * SLOT_BYTES + BURST_AT) for slot in (0, 1)]
        finally:
            os.close(fd)
        return max(int.from_bytes(burst, "little") for burst in bursts) > self.burst

    def close(self) -> None:
        """Let go of the file."""
        self._slots.close()


def _newest(path: Path) -> tuple[int, bytes]:
    """(last burst counted, the slot) of the newest slot that is whole, in a ledger and its copy."""
    return max(read_slot(path), read_slot(copy_of_ledger(path)), key=lambda one: one[0])


def read_ledger(path: Path) -> list[Discards]:
    """The discards that the ledger counts; none without a ledger."""
    return read_totals(path)[1]


def read_totals(path: Path) -> tuple[int, list[Discards]]:
    """(last burst counted, the discards that the ledger counts); (0, none) without a ledger."""
    burst, slot = _newest(path)
    return burst, list_rows(np.frombuffer(slot, np.uint8)) if burst else []


def list_rows(slot: npt.NDArray[np.uint8]) -> list[Discards]:
    """The discards that a slot counts; `slot` uint8[SLOT_BYTES]."""
    rows = slot[HEAD_BYTES:].view(LEDGER_ROW)
    return [_discards(row) for row in rows[rows["count"] != 0]]


def _discards(row: Record) -> Discards:
    topic = row["topic"][: row["topic_bytes"]].tobytes()
    return Discards(topic, int(row["reason"]), int(row["count"]), int(row["first_ns"]), int(row["last_ns"]))
