"""The staging memory: where recvmmsg puts datagrams, and where they survive whoever received them.

A sparse file on tmpfs. It outlives every process of bruce, though not the host; a host that goes down
takes the socket's queue with it all the same.

    0       magic "brucestg"  layout:u32=1  slots:u32  spool uuid:16
    64      armed:u64         the burst that is being received, or was last
    72      attempts:u64      tries to salvage that burst
    4096    mmsghdr[slots]    64 bytes each
            iovec[2*slots]    16 bytes each
            control[slots]    32 bytes each: exactly one SCM_CREDENTIALS, so that passed descriptors are
                              closed by the kernel, not leaked
            slot[slots]       2 KiB each, from a page boundary on
            overflow[slots]   64 KiB apart: the rest of a large datagram, a range of its own for each

Pointers found in it are never followed: each process writes its own before it receives.

The protocol, with L the last burst that is in the log or in the ledger:

1. for the slots used: msg_len = 0xFFFFFFFF (0 is a legal length), msg_flags = 0, msg_controllen = 32;
2. armed = L + 1, in one aligned store;
3. recvmmsg, which sets msg_len of one slot after the other;
4. append them to the log; its digest makes L + 1 the last burst.

After a crash, armed = L + 1 means that the slots before the first 0xFFFFFFFF were received and not
appended; any other value means that there is nothing to do.
"""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path

import numpy as np

from ingest.errors import BadStaging
from spool.kernel import address_of, kernel, load_i64, load_u32, publish_i64, store_i64, store_u32
from spool.mapping import Mapping
from spool.wire import MAX_DATAGRAM_BYTES

MAGIC = b"brucestg"
LAYOUT_VERSION = 1
SLOT_BYTES = 2048
OVERFLOW_BYTES = 65536
CONTROL_BYTES = 32
MSGHDR_BYTES = 64
NOT_RECEIVED = 0xFFFFFFFF
_ARMED, _ATTEMPTS, _HEADERS = 64, 72, 4096
_PUNCH = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE

_libc = ctypes.CDLL(None, use_errno=True)


class Staging:
    """One mapped staging file. The addresses are for kernels; offsets are those of the module's text."""

    def __init__(self, path: Path, spool: bytes, slots: int) -> None:
        """Map the staging file of spool uuid `spool`, which is made when it is not there.

        A file with another number of slots keeps its own, and of them `burst` are received into from now
        on. Raises BadStaging when it belongs to somebody else, OSError when there is no room.
        """
        if not path.exists():
            _create(path, spool, slots)
        self.path = path
        self.slots = _check(path, spool)
        self.burst = min(slots, self.slots)
        self._mapping = Mapping(path)
        self.address = self._mapping.address
        self.headers = self.address + _HEADERS
        self.control = self.headers + self.slots * (MSGHDR_BYTES + 32)
        self.slot = self.address + _slots_at(self.slots)
        self.overflow = self.slot + self.slots * SLOT_BYTES
        point(self.headers, self.control, self.slot, self.overflow, self.slots)
        # Only the part that every burst touches; refused without harm where the limit is small.
        _libc.mlock(ctypes.c_void_p(self.address), ctypes.c_size_t(self.overflow - self.address))

    @property
    def armed(self) -> int:
        """The burst that is being received, or was last; 0 before the first."""
        return int(load_word(self.address + _ARMED))

    @property
    def armed_at(self) -> int:
        """The address of `armed`, for kernels."""
        return self.address + _ARMED

    def attempt(self) -> int:
        """Count one more try to salvage the armed burst; how many there were."""
        tries = int(load_word(self.address + _ATTEMPTS)) + 1
        store_word(self.address + _ATTEMPTS, tries)
        return tries

    def settle(self) -> None:
        """The armed burst is done with."""
        store_word(self.address + _ATTEMPTS, 0)

    def received(self) -> int:
        """How many slots of the armed burst were received."""
        return int(count_received(self.headers, self.slots))

    def image(self, used: int) -> bytes:
        """What lies in the first `used` slots, length by length, for quarantine."""
        parts = []
        for i in range(used):
            length = min(int(load_length(self.headers, i)), MAX_DATAGRAM_BYTES)
            head = ctypes.string_at(self.slot + i * SLOT_BYTES, min(length, SLOT_BYTES))
            rest = ctypes.string_at(self.overflow + i * OVERFLOW_BYTES, max(0, length - SLOT_BYTES))
            parts.append(length.to_bytes(4, "little") + head + rest)
        return b"".join(parts)

    def punch(self) -> None:
        """Give the memory of large datagrams back."""
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            start = self.overflow - self.address
            length = self.slots * OVERFLOW_BYTES
            _libc.fallocate(fd, _PUNCH, ctypes.c_int64(start), ctypes.c_int64(length))
        finally:
            os.close(fd)


def compile_kernels() -> None:
    """Compile, or load from the cache, what a worker does with its staging."""
    memory = np.zeros(8, np.uint64)
    at = address_of(memory)
    store_word(at, load_word(at) + load_length(at, 0) + count_received(at, 0))
    point(at, at, at, at, 0)


def staging_path(directory: Path, spool: bytes, boot: bytes) -> Path:
    """Where the staging of a spool lies, in this boot of the host."""
    return directory / f"bruce-{spool.hex()}-{boot.hex()}.staging"


def read_staging(path: Path) -> tuple[int, int]:
    """(armed burst, slots received) without mapping or changing anything; (0, 0) when there is none."""
    try:
        with path.open("rb") as file:
            data = file.read(_HEADERS + 512 * MSGHDR_BYTES)
    except (FileNotFoundError, PermissionError):
        return 0, 0
    if not data.startswith(MAGIC):
        return 0, 0
    slots = int.from_bytes(data[12:16], "little")
    lengths = np.frombuffer(data, "<u4", count=slots * 16, offset=_HEADERS)[14::16]
    missing = np.flatnonzero(lengths == NOT_RECEIVED)
    return int.from_bytes(data[_ARMED : _ARMED + 8], "little"), int(missing[0]) if len(missing) else slots


def _slots_at(slots: int) -> int:
    return (_HEADERS + slots * (MSGHDR_BYTES + 32 + CONTROL_BYTES) + 4095) & ~4095


def _create(path: Path, spool: bytes, slots: int) -> None:
    temporary = path.with_suffix(".new")
    # The directory may be one that everybody can write to.
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        part = _slots_at(slots) + slots * SLOT_BYTES
        os.ftruncate(fd, part + slots * OVERFLOW_BYTES)
        os.posix_fallocate(fd, 0, part)
        head = MAGIC + LAYOUT_VERSION.to_bytes(4, "little") + slots.to_bytes(4, "little") + spool
        os.pwrite(fd, head, 0)
        nothing = np.zeros((slots, 16), "<u4")
        nothing[:, 14] = NOT_RECEIVED
        os.pwrite(fd, nothing.tobytes(), _HEADERS)
        os.rename(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def _check(path: Path, spool: bytes) -> int:
    """The number of slots of a staging file that is ours."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise BadStaging(f"{path} belongs to another user or is open to others; remove it and start again")
    with path.open("rb") as file:
        head = file.read(32)
    if head[:8] != MAGIC or head[8:12] != LAYOUT_VERSION.to_bytes(4, "little") or head[16:32] != spool:
        raise BadStaging(f"{path} is no staging file of this spool; move it away and start again")
    return int.from_bytes(head[12:16], "little")


@kernel
def load_word(address: int) -> int:
    """One aligned word."""
    return load_i64(address)


@kernel
def store_word(address: int, value: int) -> None:
    """One aligned word, after all stores before it."""
    publish_i64(address, value)


@kernel
def load_length(headers: int, slot: int) -> int:
    """msg_len of a slot."""
    return load_u32(headers + slot * MSGHDR_BYTES + 56)


@kernel
def count_received(headers: int, slots: int) -> int:
    """Slots before the first that nothing was received into."""
    for i in range(slots):
        if load_u32(headers + i * MSGHDR_BYTES + 56) == NOT_RECEIVED:
            return i
    return slots


@kernel
def point(headers: int, control: int, slot: int, overflow: int, slots: int) -> None:
    """Write the pointers of this process's mapping; lengths and flags stay as they are."""
    for i in range(slots):
        header = headers + i * MSGHDR_BYTES
        vector = headers + slots * MSGHDR_BYTES + i * 32
        store_i64(header, 0)
        store_i64(header + 8, 0)
        store_i64(header + 16, vector)
        store_i64(header + 24, 2)
        store_i64(header + 32, control + i * CONTROL_BYTES)
        store_i64(vector, slot + i * SLOT_BYTES)
        store_i64(vector + 8, SLOT_BYTES)
        store_i64(vector + 16, overflow + i * OVERFLOW_BYTES)
        store_i64(vector + 24, MAX_DATAGRAM_BYTES - SLOT_BYTES)


@kernel
def reset(headers: int, used: int) -> None:
    """Make the first `used` slots ready to receive."""
    for i in range(used):
        header = headers + i * MSGHDR_BYTES
        store_i64(header + 40, CONTROL_BYTES)
        store_u32(header + 48, 0)
        store_u32(header + 56, NOT_RECEIVED)
