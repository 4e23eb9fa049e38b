"""Staging: the receive buffers of datagrams, in a file that survives the process which received them.

A sparse file on tmpfs. It outlives every process of bruce, though not the host; a host that goes down
takes the socket's queue with it all the same.

    0       magic "brucestg"  layout:u32=2  slots:u32  spool uuid:16
    64      armed:u64         the burst that is being received into buffer 0, or was last
    72      attempts:u64      tries to salvage one burst
    80      first:u64         the burst of buffer 1
    88      opened:u64        how many buffers from 1 on hold bursts: first, first + 1, ...
    4096    buffer[1 + RESERVE]

    buffer := mmsghdr[slots]    64 bytes each
              iovec[2*slots]    16 bytes each: slot and overflow of each datagram
              control[slots]    32 bytes each: exactly one SCM_CREDENTIALS, so that passed descriptors are
                                closed by the kernel, not leaked
              slot[slots]       2 KiB each, from a page boundary on
              overflow[slots]   64 KiB apart: the rest of a large datagram, a range of its own for each

Buffer 0 takes every burst while the log takes them at once; its memory is reserved ahead, at first with the
overflow of FEW_SLOTS. The others are the reserve, for datagrams that arrive while a store into the log waits
(ingest.worker.guard); they take memory only then.

Pointers found in the file are never followed: each process writes its own before it receives.

The protocol, with L the last burst that is in the log or in the ledger:

1. for the slots used: msg_len = 0xFFFFFFFF (0 is a legal length), msg_flags = 0, msg_controllen = 32;
2. armed = L + 1, in one aligned store; for a buffer of the reserve, opened = its number;
3. recvmmsg, which sets msg_len of one slot after the other;
4. append them to the log; its digest makes L + 1 the last burst.

After a crash, the buffer whose burst is L + 1 holds, in the slots before the first 0xFFFFFFFF, the datagrams
that were received and not appended, and then the one with L + 2; buffers of any other burst are done with.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ingest.access import NO_ID
from ingest.buffers.messages import MESSAGE, Messages
from ingest.errors import BadStaging
from spool.errors import NotAFile, NotOurs
from spool.format.segment_format import HEADER_BYTES, MAX_BURST, MOST_COLUMNS_BYTES, ROW_BYTES
from spool.format.wire import MAX_DATAGRAM_BYTES, REASONS, Reason
from spool.native.kernel import kernel, subkernel
from spool.native.memory import (
    Address,
    load_acquire,
    load_i64,
    load_u32,
    publish_i64,
    store_i64,
    store_u32,
)
from spool.shared.histogram import DATAGRAM
from spool.storage.disk import Mapping, name_file
from spool.storage.ownership import Owners, open_believed, open_own, put_own

SLOT_BYTES = 2048
OVERFLOW_BYTES = 65536
CONTROL_BYTES = 32
MSGHDR_BYTES, IOVEC_BYTES = 64, 16
MSG_NAME_AT, MSG_NAMELEN_AT, MSG_IOV_AT, MSG_IOVLEN_AT = 0, 8, 16, 24
MSG_CONTROL_AT, MSG_CONTROLLEN_AT, MSG_FLAGS_AT, MSG_LEN_AT = 32, 40, 48, 56
"""Offsets in a struct mmsghdr."""
_MMSGHDR = np.dtype(
    {"names": ["length"], "formats": ["<u4"], "offsets": [MSG_LEN_AT], "itemsize": MSGHDR_BYTES}
)
IOV_BASE_AT, IOV_LEN_AT = 0, 8
"""Offsets in a struct iovec."""
_VECTOR_BYTES = 2 * IOVEC_BYTES
_CMSG_LEN_AT, _CMSG_KIND_AT, _CMSG_PID_AT, _CMSG_UID_AT, _CMSG_GID_AT = 0, 8, 16, 20, 24
_CREDENTIALS_LEN = 28
_CREDENTIALS = (2 << 32) | 1
"""cmsg_len of an SCM_CREDENTIALS; its cmsg_level SOL_SOCKET and cmsg_type, as one word."""
MSG_WAITFORONE, MSG_DONTWAIT = 0x10000, 0x40
_MSG_TRUNC = 0x20
FAILED = 0x80000000
"""From here on an int in the low half of a register is negative: recvmmsg has failed."""
INT_MASK = 0xFFFFFFFF
"""That half."""
NOT_RECEIVED = 0xFFFFFFFF
MAGIC = b"brucestg"
LAYOUT_VERSION = 2
FEW_SLOTS = 64
"""With 4 MiB of overflow: few hosts ever have as many datagrams waiting, and all 512 take 32 MiB."""
RESERVE = 128
"""Banks of the reserve: with 512 slots 128 MiB, or 6.5 s at 10,000 datagrams a second."""
_ARMED, _ATTEMPTS, _FIRST, _OPENED, _BUFFERS = 64, 72, 80, 88, 4096
PUNCH = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_PAGE_MASK = 4095
_TRUNCATED = int(Reason.TRUNCATED)

_libc = ctypes.CDLL(None, use_errno=True)


class Staging:
    """One mapped staging file. The addresses are for kernels; offsets are those of the module's text."""

    def __init__(self, path: Path, spool: bytes, slots: int, few: int = FEW_SLOTS) -> None:
        """Map the staging file of spool uuid `spool`, which is made when it is not there.

        A file with another number of slots keeps its own, and of them `burst` are received into, and later up
        to `most`; fewer where the tmpfs has no room for that many large datagrams. Raises NotOurs when
        another user may have made it, BadStaging when it is of another spool, OSError without room for one.
        """
        if not os.path.lexists(path):
            _create(path, spool, slots)
        self.path, fd = path, open_own(path, secret=True)
        try:
            self.slots = _check(fd, path, spool)
            self.most = min(slots, self.slots)
            self.burst = _reserve(fd, self.slots, min(few, self.most))
        except BaseException as error:
            os.close(fd)
            name_file(error, path)
            raise
        self.buffer_bytes = buffer_bytes(self.slots)
        self._mapping = Mapping(fd)
        self.address = self._mapping.address
        self.armed_at, self.opened_at = Address(self.address + _ARMED), Address(self.address + _OPENED)
        self.first_at, self.reserve_at = Address(self.address + _FIRST), self.buffer(1)
        point(self.buffer(0), self.slots)
        # Only the part that every burst touches; refused without harm where the limit is small.
        _libc.mlock(ctypes.c_void_p(self.buffer(0)), ctypes.c_size_t(overflow_at(self.slots)))

    def grow(self) -> int:
        """Let bursts have up to `most` datagrams, or as many as there is room for; how many.

        Without room it is not tried again, since senders wait meanwhile.
        """
        fd = open_own(self.path)
        try:
            with contextlib.suppress(OSError):
                self.burst = max(self.burst, _reserve(fd, self.slots, self.most))
        finally:
            os.close(fd)
        self.most = self.burst
        self.lock_overflow()
        return self.burst

    def lock_overflow(self) -> int:
        """Keep buffer 0's overflow in memory while this mapping lives; how many bytes the limit allowed.

        For the supervisor, whose mapping outlives the workers': they share its pages (ingest.worker.guard).
        """
        at, length = self.buffer(0) + overflow_at(self.slots), self.burst * OVERFLOW_BYTES
        while length and _libc.mlock(ctypes.c_void_p(at), ctypes.c_size_t(length)):
            length = (length // 2) & ~(OVERFLOW_BYTES - 1)
        return length

    def buffer(self, number: int) -> Address:
        """The address of a buffer."""
        return Address(self.address + _BUFFERS + number * self.buffer_bytes)

    @property
    def armed(self) -> int:
        """The burst that is being received into buffer 0, or was last; 0 before the first."""
        return int(load_word(self.armed_at))

    def bursts(self) -> Iterator[tuple[int, int]]:
        """(buffer, burst) of every buffer that may hold one, in the order of bursts."""
        yield 0, self.armed
        first = int(load_word(self.first_at))
        for i in range(int(load_word(self.opened_at))):
            yield 1 + i, first + i

    def buffer_of(self, burst: int) -> int | None:
        """The buffer into which datagrams of `burst` were received; None when there are none."""
        return next((b for b, number in self.bursts() if number == burst and self.received(b)), None)

    @property
    def reserve_in_use(self) -> bool:
        """Whether a buffer of the reserve was opened since the reserve was closed."""
        return bool(load_word(self.opened_at))

    def attempt(self) -> int:
        """Count one more try to salvage the burst that is next; how many there were."""
        tries = int(load_word(Address(self.address + _ATTEMPTS))) + 1
        store_word(Address(self.address + _ATTEMPTS), tries)
        return tries

    def settle(self) -> None:
        """That burst is done with."""
        store_word(Address(self.address + _ATTEMPTS), 0)

    def received(self, buffer: int) -> int:
        """How many slots of a buffer were received into."""
        return int(count_received(self.buffer(buffer), self.slots))

    def list_messages(self, buffer: int, out: Messages) -> int:
        """Fill `out` MESSAGE[slots] with the datagrams received into a buffer; how many."""
        return int(list_datagrams(self.buffer(buffer), self.slots, self.received(buffer), out))

    def close_reserve(self) -> None:
        """Every burst in the reserve is stored: it holds none, and gives its memory back."""
        store_word(self.opened_at, 0)
        fd = open_own(self.path)
        try:
            start, length = self.reserve_at - self.address, RESERVE * self.buffer_bytes
            _libc.fallocate(fd, PUNCH, ctypes.c_int64(start), ctypes.c_int64(length))
        finally:
            os.close(fd)


SUFFIX = ".staging"
"""Of its file, which is called as the spool's page is."""


def slots_for(segment_bytes: int) -> int:
    """Datagrams in a burst, at most: the largest burst must fit an empty segment."""
    room = segment_bytes - HEADER_BYTES - REASONS * ROW_BYTES - 4096
    return max(1, min(MAX_BURST, room // (MAX_DATAGRAM_BYTES + MOST_COLUMNS_BYTES)))


def staging_path(directory: Path, spool: bytes, boot: bytes) -> Path:
    """The staging file of a spool, in this boot of the host."""
    return directory / f"bruce-{spool.hex()}-{boot.hex()}{SUFFIX}"


def read_staging(path: Path, owners: Owners = ()) -> list[tuple[int, int]]:
    """(burst, slots received) of each buffer that has any, without mapping or changing anything.

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
    head = os.pread(fd, _BUFFERS, 0)
    slots = int.from_bytes(head[12:16], "little")
    if len(head) < _BUFFERS or not head.startswith(MAGIC) or not 0 < slots <= MAX_BURST:
        return
    armed, first, opened = (int.from_bytes(head[at : at + 8], "little") for at in (_ARMED, _FIRST, _OPENED))
    for buffer, number in enumerate([armed, *range(first, first + min(opened, RESERVE))]):
        data = os.pread(fd, slots * MSGHDR_BYTES, _BUFFERS + buffer * buffer_bytes(slots))
        lengths = np.frombuffer(data, _MMSGHDR, len(data) // MSGHDR_BYTES)["length"]
        missing = np.flatnonzero(lengths == NOT_RECEIVED)
        count = int(missing[0]) if len(missing) else len(lengths)
        if count:
            yield number, count


def _create(path: Path, spool: bytes, slots: int) -> None:
    def fill(fd: int) -> None:
        os.ftruncate(fd, _file_bytes(slots))
        os.posix_fallocate(fd, 0, _BUFFERS + overflow_at(slots))
        head = MAGIC + LAYOUT_VERSION.to_bytes(4, "little") + slots.to_bytes(4, "little") + spool
        os.pwrite(fd, head, 0)
        nothing = np.zeros(slots, _MMSGHDR)
        nothing["length"] = NOT_RECEIVED
        os.pwrite(fd, nothing.tobytes(), _BUFFERS)

    put_own(path, fill)


def _file_bytes(slots: int) -> int:
    return _BUFFERS + (1 + RESERVE) * buffer_bytes(slots)


def _reserve(fd: int, slots: int, wanted: int) -> int:
    """Reserve the overflow of the first slots of buffer 0, `wanted` of them or as many as there is room for.

    Ahead, because a datagram whose overflow finds the tmpfs full is lost: recvmmsg has taken it from the
    socket when it fails.
    """
    at = _BUFFERS + overflow_at(slots)
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
    """The number of slots of a staging file that is this spool's, and has the length that it says."""
    head = os.pread(fd, 32, 0)
    slots = int.from_bytes(head[12:16], "little")
    ours = head[:12] == MAGIC + LAYOUT_VERSION.to_bytes(4, "little") and head[16:32] == spool
    if not (ours and 0 < slots <= MAX_BURST and os.fstat(fd).st_size == _file_bytes(slots)):
        raise BadStaging(f"{path} is no staging file of this spool; move it away and start again")
    return slots


@subkernel
def control_at(slots: int) -> int:
    """Offset in a buffer at which the control buffers begin."""
    return slots * (MSGHDR_BYTES + _VECTOR_BYTES)


@subkernel
def slots_at(slots: int) -> int:
    """Offset in a buffer at which the slots begin."""
    return (control_at(slots) + slots * CONTROL_BYTES + _PAGE_MASK) & ~_PAGE_MASK


@kernel
def overflow_at(slots: int) -> int:
    """Offset in a buffer at which the overflow ranges begin; every burst touches the memory before it."""
    return slots_at(slots) + slots * SLOT_BYTES


@subkernel
def is_large(buffer: Address, first: int, end: int) -> bool:
    """Whether a datagram in these slots went on in its overflow."""
    for i in range(first, end):
        length = load_u32(buffer + i * MSGHDR_BYTES + MSG_LEN_AT)
        if length != NOT_RECEIVED and length > SLOT_BYTES:
            return True
    return False


@kernel
def buffer_bytes(slots: int) -> int:
    """From one buffer to the next."""
    return (overflow_at(slots) + slots * OVERFLOW_BYTES + _PAGE_MASK) & ~_PAGE_MASK


@kernel
def load_word(address: Address) -> int:
    """One aligned word."""
    return load_acquire(address)


@kernel
def store_word(address: Address, value: int) -> None:
    """One aligned word, after all stores before it."""
    publish_i64(address, value)


@subkernel
def load_length(buffer: Address, slot: int) -> int:
    """msg_len of a slot."""
    return load_u32(buffer + slot * MSGHDR_BYTES + MSG_LEN_AT)


@kernel
def count_received(buffer: Address, slots: int) -> int:
    """Slots before the first that nothing was received into."""
    for i in range(slots):
        if load_u32(buffer + i * MSGHDR_BYTES + MSG_LEN_AT) == NOT_RECEIVED:
            return i
    return slots


@kernel
def point(buffer: Address, slots: int) -> None:
    """Write the pointers of this process's mapping; lengths and flags stay as they are."""
    for i in range(slots):
        header = buffer + i * MSGHDR_BYTES
        vector = buffer + slots * MSGHDR_BYTES + i * _VECTOR_BYTES
        store_i64(header + MSG_NAME_AT, 0)
        store_i64(header + MSG_NAMELEN_AT, 0)
        store_i64(header + MSG_IOV_AT, vector)
        store_i64(header + MSG_IOVLEN_AT, 2)
        store_i64(header + MSG_CONTROL_AT, buffer + control_at(slots) + i * CONTROL_BYTES)
        store_i64(vector + IOV_BASE_AT, buffer + slots_at(slots) + i * SLOT_BYTES)
        store_i64(vector + IOV_LEN_AT, SLOT_BYTES)
        vector += IOVEC_BYTES
        store_i64(vector + IOV_BASE_AT, buffer + overflow_at(slots) + i * OVERFLOW_BYTES)
        store_i64(vector + IOV_LEN_AT, MAX_DATAGRAM_BYTES - SLOT_BYTES)


@kernel
def reset(buffer: Address, used: int) -> None:
    """Make the first `used` slots ready to receive."""
    for i in range(used):
        header = buffer + i * MSGHDR_BYTES
        store_i64(header + MSG_CONTROLLEN_AT, CONTROL_BYTES)
        store_u32(header + MSG_FLAGS_AT, 0)
        store_u32(header + MSG_LEN_AT, NOT_RECEIVED)


@kernel
def list_datagrams(buffer: Address, slots: int, used: int, out: Messages) -> int:
    """Fill `out` with the datagrams in the first `used` of a buffer's `slots`; returns `used`.

    `out` MESSAGE[at least used].
    """
    control = buffer + control_at(slots)
    slot, overflow = buffer + slots_at(slots), buffer + overflow_at(slots)
    for i in range(used):
        header, row = buffer + i * MSGHDR_BYTES, out[i]
        length = min(load_u32(header + MSG_LEN_AT), MAX_DATAGRAM_BYTES)
        row["at"], row["length"] = slot + i * SLOT_BYTES, length
        row["first"] = min(length, SLOT_BYTES)
        row["rest"] = overflow + i * OVERFLOW_BYTES if length > SLOT_BYTES else 0
        row["pid"], row["uid"], row["gid"] = _sender(Address(control + i * CONTROL_BYTES))
        row["input"] = DATAGRAM
        row["outcome"] = 0
        row["refused"] = _TRUNCATED if load_u32(header + MSG_FLAGS_AT) & _MSG_TRUNC else 0
    return used


@subkernel
def _sender(control: Address) -> tuple[int, int, int]:
    """(pid, uid, gid) of the sender, from the kernel; each NO_ID if it does not say."""
    if (
        load_i64(control + _CMSG_LEN_AT) == _CREDENTIALS_LEN
        and load_i64(control + _CMSG_KIND_AT) == _CREDENTIALS
    ):
        return (
            load_u32(control + _CMSG_PID_AT),
            load_u32(control + _CMSG_UID_AT),
            load_u32(control + _CMSG_GID_AT),
        )
    return NO_ID, NO_ID, NO_ID


def compile_kernels() -> None:
    """Compile what a worker does with arrays beside its staging."""
    list_datagrams(Address(0), 0, 0, np.zeros(0, MESSAGE))
