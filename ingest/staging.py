"""The staging memory: where recvmmsg puts datagrams, and where they survive whoever received them.

A sparse file on tmpfs. It outlives every process of bruce, though not the host; a host that goes down
takes the socket's queue with it all the same.

    0       magic "brucestg"  layout:u32=2  slots:u32  spool uuid:16
    64      armed:u64         the burst that is being received into bank 0, or was last
    72      attempts:u64      tries to salvage one burst
    80      first:u64         the burst of bank 1
    88      opened:u64        how many banks from 1 on hold bursts: first, first + 1, ...
    4096    bank[1 + RESERVE] ingest.bank

Bank 0 takes every burst while the log takes them at once; its memory is reserved ahead. The others are the
reserve, for what arrives while a store into the log waits (ingest.guard); they take memory only then.

Pointers found in it are never followed: each process writes its own before it receives.

The protocol, with L the last burst that is in the log or in the ledger:

1. for the slots used: msg_len = 0xFFFFFFFF (0 is a legal length), msg_flags = 0, msg_controllen = 32;
2. armed = L + 1, in one aligned store; for a bank of the reserve, opened = its number;
3. recvmmsg, which sets msg_len of one slot after the other;
4. append them to the log; its digest makes L + 1 the last burst.

After a crash, the bank whose burst is L + 1 holds, in the slots before the first 0xFFFFFFFF, what was
received and not appended, and then the one with L + 2; banks of any other burst are done with.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ingest.bank import (
    MSGHDR_BYTES,
    NOT_RECEIVED,
    OVERFLOW_BYTES,
    SLOT_BYTES,
    bank_bytes,
    count_received,
    load_length,
    load_word,
    overflow_at,
    point,
    slots_at,
    store_word,
)
from ingest.errors import BadStaging
from spool.errors import NotAFile, NotOurs
from spool.format import HEADER_BYTES, MAX_BURST, ROW_BYTES
from spool.mapping import Mapping
from spool.own import Owners, open_believed, open_own, put_own
from spool.wire import MAX_DATAGRAM_BYTES, REASONS

MAGIC = b"brucestg"
LAYOUT_VERSION = 2
RESERVE = 128
"""Banks of the reserve: with 512 slots 128 MiB, or 6.5 s at 10,000 datagrams a second."""
_ARMED, _ATTEMPTS, _FIRST, _OPENED, _BANKS = 64, 72, 80, 88, 4096
PUNCH = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FLPUNCH_HOLE

_libc = ctypes.CDLL(None, use_errno=True)


class Staging:
    """One mapped staging file. The addresses are for kernels; offsets are those of the module's text."""

    def __init__(self, path: Path, spool: bytes, slots: int) -> None:
        """Map the staging file of spool uuid `spool`, which is made when it is not there.

        A file with another number of slots keeps its own, and of them `burst` are received into from now
        on; fewer where the tmpfs has no room for that many large datagrams. Raises NotOurs when
        somebody else may have made it, BadStaging when it is of another spool, OSError without room for one.
        """
        if not os.path.lexists(path):
            _create(path, spool, slots)
        self.path, fd = path, open_own(path, secret=True)
        try:
            self.slots = _check(fd, path, spool)
            self.burst = _reserve(fd, self.slots, min(slots, self.slots))
        except BaseException:
            os.close(fd)
            raise
        self.bank_bytes = bank_bytes(self.slots)
        self._mapping = Mapping(fd)
        self.address = self._mapping.address
        self.armed_at, self.opened_at = self.address + _ARMED, self.address + _OPENED
        self.first_at, self.reserve_at = self.address + _FIRST, self.bank(1)
        point(self.bank(0), self.slots)
        # Only the part that every burst touches; refused without harm where the limit is small.
        _libc.mlock(ctypes.c_void_p(self.bank(0)), ctypes.c_size_t(overflow_at(self.slots)))

    def lock_overflow(self) -> int:
        """Keep bank 0's overflow in memory while this mapping lives; how many bytes the limit allowed.

        For the supervisor, whose mapping outlives the workers': their pages are the same (ingest.faults).
        """
        at, length = self.bank(0) + overflow_at(self.slots), self.burst * OVERFLOW_BYTES
        while length and _libc.mlock(ctypes.c_void_p(at), ctypes.c_size_t(length)):
            length = (length // 2) & ~(OVERFLOW_BYTES - 1)
        return length

    def bank(self, number: int) -> int:
        """The address of a bank."""
        return self.address + _BANKS + number * self.bank_bytes

    @property
    def armed(self) -> int:
        """The burst that is being received into bank 0, or was last; 0 before the first."""
        return int(load_word(self.armed_at))

    def bursts(self) -> Iterator[tuple[int, int]]:
        """(bank, burst) of every bank that may hold one, in the order of bursts."""
        yield 0, self.armed
        first = int(load_word(self.first_at))
        for i in range(int(load_word(self.opened_at))):
            yield 1 + i, first + i

    def holder(self, burst: int) -> int | None:
        """The bank into which datagrams of `burst` were received; None when there are none."""
        return next((b for b, number in self.bursts() if number == burst and self.received(b)), None)

    @property
    def reserve_in_use(self) -> bool:
        """Whether a bank of the reserve was opened since the reserve was closed."""
        return bool(load_word(self.opened_at))

    def attempt(self) -> int:
        """Count one more try to salvage the burst that is next; how many there were."""
        tries = int(load_word(self.address + _ATTEMPTS)) + 1
        store_word(self.address + _ATTEMPTS, tries)
        return tries

    def settle(self) -> None:
        """That burst is done with."""
        store_word(self.address + _ATTEMPTS, 0)

    def received(self, bank: int) -> int:
        """How many slots of a bank were received into."""
        return int(count_received(self.bank(bank), self.slots))

    def image(self, bank: int, used: int) -> bytes:
        """What lies in the first `used` slots of a bank, length by length, for quarantine."""
        at = self.bank(bank)
        slot, overflow = at + slots_at(self.slots), at + overflow_at(self.slots)
        parts = []
        for i in range(used):
            length = min(int(load_length(at, i)), MAX_DATAGRAM_BYTES)
            head = ctypes.string_at(slot + i * SLOT_BYTES, min(length, SLOT_BYTES))
            rest = ctypes.string_at(overflow + i * OVERFLOW_BYTES, max(0, length - SLOT_BYTES))
            parts.append(length.to_bytes(4, "little") + head + rest)
        return b"".join(parts)

    def close_reserve(self) -> None:
        """Every burst in the reserve is stored: it holds none, and gives its memory back."""
        store_word(self.opened_at, 0)
        self._give_back(self.reserve_at, RESERVE * self.bank_bytes)

    def _give_back(self, address: int, length: int) -> None:
        fd = open_own(self.path)
        try:
            start = ctypes.c_int64(address - self.address)
            _libc.fallocate(fd, PUNCH, start, ctypes.c_int64(length))
        finally:
            os.close(fd)


SUFFIX = ".staging"
"""Of its file, which is called as the spool's page is."""


def slots_for(segment_bytes: int) -> int:
    """Datagrams in a burst, at most: the largest burst must fit an empty segment."""
    room = segment_bytes - HEADER_BYTES - REASONS * ROW_BYTES - 4096
    return max(1, min(MAX_BURST, room // (MAX_DATAGRAM_BYTES + 12)))


def staging_path(directory: Path, spool: bytes, boot: bytes) -> Path:
    """Where the staging of a spool lies, in this boot of the host."""
    return directory / f"bruce-{spool.hex()}-{boot.hex()}{SUFFIX}"


def read_staging(path: Path, owners: Owners = ()) -> list[tuple[int, int]]:
    """(burst, slots received) of each bank that has any, without mapping or changing anything.

    `owners`: whose file is believed, beside ours and root's.
    """
    try:
        fd = open_believed(path, owners)
    except (FileNotFoundError, NotADirectoryError, PermissionError, NotAFile, NotOurs):
        return []
    try:
        return list(_list_received(fd))
    finally:
        os.close(fd)


def _list_received(fd: int) -> Iterator[tuple[int, int]]:
    head = os.pread(fd, _BANKS, 0)
    slots = int.from_bytes(head[12:16], "little")
    if len(head) < _BANKS or not head.startswith(MAGIC) or not 0 < slots <= MAX_BURST:
        return
    armed, first, opened = (int.from_bytes(head[at : at + 8], "little") for at in (_ARMED, _FIRST, _OPENED))
    for bank, number in enumerate([armed, *range(first, first + min(opened, RESERVE))]):
        data = os.pread(fd, slots * MSGHDR_BYTES, _BANKS + bank * bank_bytes(slots))
        lengths = np.frombuffer(data[: len(data) & ~63], "<u4")[14::16]
        missing = np.flatnonzero(lengths == NOT_RECEIVED)
        count = int(missing[0]) if len(missing) else len(lengths)
        if count:
            yield number, count


def _create(path: Path, spool: bytes, slots: int) -> None:
    def fill(fd: int) -> None:
        os.ftruncate(fd, _file_bytes(slots))
        os.posix_fallocate(fd, 0, _BANKS + overflow_at(slots))
        head = MAGIC + LAYOUT_VERSION.to_bytes(4, "little") + slots.to_bytes(4, "little") + spool
        os.pwrite(fd, head, 0)
        nothing = np.zeros((slots, 16), "<u4")
        nothing[:, 14] = NOT_RECEIVED
        os.pwrite(fd, nothing.tobytes(), _BANKS)

    put_own(path, fill)


def _file_bytes(slots: int) -> int:
    return _BANKS + (1 + RESERVE) * bank_bytes(slots)


def _reserve(fd: int, slots: int, wanted: int) -> int:
    """Reserve the overflow of the first slots of bank 0, `wanted` of them or as many as there is room for.

    Ahead, because a datagram whose overflow finds the tmpfs full is lost: recvmmsg has taken it from the
    socket when it fails.
    """
    at = _BANKS + overflow_at(slots)
    while True:
        try:
            os.posix_fallocate(fd, at, wanted * OVERFLOW_BYTES)
        except OSError as error:
            if error.errno != errno.ENOSPC or wanted == 1:
                raise
            wanted //= 2
        else:
            return wanted


def _check(fd: int, path: Path, spool: bytes) -> int:
    """The number of slots of a staging file that is this spool's, and as long as it says."""
    head = os.pread(fd, 32, 0)
    slots = int.from_bytes(head[12:16], "little")
    ours = head[:12] == MAGIC + LAYOUT_VERSION.to_bytes(4, "little") and head[16:32] == spool
    if not (ours and 0 < slots <= MAX_BURST and os.fstat(fd).st_size == _file_bytes(slots)):
        raise BadStaging(f"{path} is no staging file of this spool; move it away and start again")
    return slots
