"""The discard file: discarded messages as they were received, so that they can be sent again.

    FILE, FILE.1     the younger and the older of two generations; each grows to a size, then the next begins
    FILE.lock        flock: the process that writes
    file   := magic:"brucedis" version:u32=1 zero:u32 record*
    record := check:u64 magic:"bdis" bytes:u32 reason:u32 zero:u32 spool:16 bytes sequence:u64 time:u64
              datagram, padded with zeros to a multiple of 8

Little-endian. `check` is the xxh3 of the record behind it, without the padding; `bytes` counts the datagram;
`reason` is a spool.format.wire.Reason; `time` is when the message was discarded, in ns since the epoch. After
a host crash, the next writer cuts off a half-written record; readers skip it, and go on at the next whole
record. A message can be in the file twice, with the same sequence number.

A writer holds a flock on FILE.lock: the daemon takes turns with a job's driver on the same host, which writes
for spools whose daemon is dead. A group may read FILE, but whoever may read a file can lock it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spool.errors import BadSpool, SpoolBusy
from spool.format.batch import Batch
from spool.format.segment_format import MAX_BODY_BYTES
from spool.format.wire import MAX_DATAGRAM_BYTES
from spool.layout import older
from spool.native.digest import digest, digest_function
from spool.native.kernel import kernel
from spool.native.memory import Address, address_of, call, copy, load_u32, store_i64
from spool.storage.disk import open_or_make, open_to_read, read_at, sync_directory, write_at
from spool.storage.lock import Lock

HEAD = b"brucedis" + (1).to_bytes(4, "little") + bytes(4)
RECORD_MAGIC = b"bdis"
_RECORD = np.dtype(
    [
        ("check", "<u8"),
        ("magic", "S4"),
        ("bytes", "<u4"),
        ("reason", "<u4"),
        ("zero", "<u4"),
        ("spool", "V16"),
        ("sequence", "<u8"),
        ("time_ns", "<u8"),
    ]
)
_HEAD_BYTES, _CHECKED_FROM, _BYTES_AT = _RECORD.itemsize, 8, 12
_PIECE_BYTES = 1 << 20
"""Read at a time to find a record."""
_AGAIN = 4
"""How many times a file's bytes may be read for claims that are no records; then only short ones count."""
PATIENCE_S = 5.0
"""How long to wait for another writer, which syncs some MiB."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """One message of the file."""

    spool: bytes
    """The uuid of the spool that it was in."""
    sequence: int
    reason: int
    time_ns: int
    datagram: bytes


class Records(NamedTuple):
    """Whole records, one behind the other."""

    data: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]
    """int64[records]: the offset behind each, padding included."""

    @staticmethod
    def join(parts: Sequence[Records]) -> Records:
        """All of them, in this order; one part at least."""
        starts = np.cumsum([0, *(len(one.data) for one in parts[:-1])])
        ends = [one.ends + start for one, start in zip(parts, starts.tolist(), strict=True)]
        return Records(np.concatenate([one.data for one in parts]), np.concatenate(ends))


def encode_records(
    batch: Batch, rows: npt.NDArray[np.int64], reasons: npt.NDArray[np.int32], spool: bytes, time_ns: int
) -> Records:
    """The records of messages that are discarded at this time, in ns since the epoch.

    `rows` int64[n]: of the batch; `reasons` int32[n]; `spool`: the uuid of theirs.
    """
    lengths = batch.datagram_bytes[rows].astype(np.int64)
    heads = np.zeros(len(rows), _RECORD)
    heads["magic"], heads["bytes"], heads["reason"] = RECORD_MAGIC, lengths, reasons
    heads["spool"], heads["sequence"] = np.frombuffer(spool, "V16"), batch.sequence[rows]
    heads["time_ns"] = time_ns
    ends = np.cumsum(_HEAD_BYTES + ((lengths + 7) & -8))
    data = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    _lay_out(
        address_of(heads),
        batch.data_at,
        batch.datagram_at[rows],
        address_of(data),
        ends,
        digest_function(),
    )
    return Records(data, ends)


@kernel
def _lay_out(
    heads_at: Address,
    source_at: Address,
    datagrams: npt.NDArray[np.int64],
    target_at: Address,
    ends: npt.NDArray[np.int64],
    digest: int,
) -> None:
    """Write each record to the target, up to its end: its head, its datagram, and the check of both.

    `datagrams` int64[records]: offsets from the source; `ends` int64[records].
    """
    start = 0
    for i in range(len(ends)):
        at, behind = Address(target_at + start), Address(target_at + start + _HEAD_BYTES)
        copy(at, Address(heads_at + i * _HEAD_BYTES), _HEAD_BYTES)
        length = load_u32(at + _BYTES_AT)
        copy(behind, Address(source_at + datagrams[i]), length)
        store_i64(at, call(digest, at + _CHECKED_FROM, _HEAD_BYTES - _CHECKED_FROM + length, 0))
        start = ends[i]


def decode_record(data: bytes, at: int) -> tuple[GivenUp, int] | None:
    """(the record at an offset, the offset behind it); None when no whole one is there."""
    if len(data) - at < _HEAD_BYTES or data[at + 8 : at + 12] != RECORD_MAGIC:
        return None
    record = np.frombuffer(data, _RECORD, 1, at)[0]
    length = int(record["bytes"])
    end = at + _HEAD_BYTES + length
    if length > MAX_BODY_BYTES or end > len(data):
        return None
    if digest(data[at + _CHECKED_FROM : end]) != int(record["check"]):
        return None
    datagram = data[at + _HEAD_BYTES : end]
    spool, sequence = record["spool"].tobytes(), int(record["sequence"])
    found = GivenUp(spool, sequence, int(record["reason"]), int(record["time_ns"]), datagram)
    return found, end + -end % 8


def lock_of(path: Path) -> Path:
    """The path of the lock that a writer holds."""
    return path.with_name(path.name + ".lock")


def _records(fd: int) -> Iterator[tuple[GivenUp, int]]:
    """(record, the offset behind it) of each whole one in a file. Raises ReadFailed, OSError.

    The file is read in pieces, a record or _PIECE_BYTES at a time. Bytes that claim to be a long record and
    are none are looked at a few times in all: a sender can put such claims into a message.
    """
    size = os.fstat(fd).st_size
    at, left = len(HEAD), _AGAIN * size
    while 0 < at < size:
        data = read_at(fd, _HEAD_BYTES, at)
        if (length := _claimed(data)) <= (MAX_BODY_BYTES if left > 0 else MAX_DATAGRAM_BYTES):
            data += read_at(fd, min(length, size - at), at + _HEAD_BYTES)
        if found := decode_record(data, 0):
            yield found[0], at + found[1]
            at += found[1]
        else:
            left -= len(data)
            at = _next_record(fd, at)


def _is_ours(fd: int) -> bool:
    """Whether a file is a discard file, or empty. A power loss leaves zeros for its head, or all."""
    head = read_at(fd, len(HEAD), 0)
    return HEAD.startswith(head) or (not any(head) and (any(_records(fd)) or _is_blank(fd)))


def _is_blank(fd: int) -> bool:
    at = 0
    while data := read_at(fd, _PIECE_BYTES, at):
        if np.frombuffer(data, np.uint8).any():
            return False
        at += len(data)
    return True


def _claimed(head: bytes) -> int:
    """Bytes of the datagram in the record with this head; 0 for other bytes."""
    if len(head) < _HEAD_BYTES or head[8:12] != RECORD_MAGIC:
        return 0
    return int(np.frombuffer(head, _RECORD, 1)[0]["bytes"])


def _next_record(fd: int, at: int) -> int:
    """The next offset where a record may begin, behind one without a whole record; -1 when there is none."""
    at += 16
    while len(data := read_at(fd, _PIECE_BYTES, at)) >= len(RECORD_MAGIC):
        words = np.frombuffer(data, "<u4", len(data) // 4)[::2]
        found = np.flatnonzero(words == int.from_bytes(RECORD_MAGIC, "little"))
        if len(found):
            return int(at + 8 * int(found[0]) - 8)
        at += _PIECE_BYTES
    return -1


def read_file(path: Path) -> Iterator[GivenUp]:
    """The whole records of one generation, in order; none when there is no file.

    Raises BadSpool when the file is something else, OSError.
    """
    try:
        fd = open_to_read(path, links=True)
    except FileNotFoundError:
        return
    try:
        if not _is_ours(fd):
            raise BadSpool(f"{path} is no discard file of a version that is known here")
        yield from (message for message, _ in _records(fd))
    finally:
        os.close(fd)


def read_discard_file(path: Path) -> Iterator[GivenUp]:
    """All messages of both generations, the older one first; each once. Raises BadSpool, OSError."""
    seen = set()
    for generation in (older(path), path):
        for message in read_file(generation):
            if (message.spool, message.sequence) not in seen:
                seen.add((message.spool, message.sequence))
                yield message


class DiscardFile:
    """The file, for one of its writers."""

    def __init__(self, path: Path, most_bytes: int, *, patience_s: float = PATIENCE_S) -> None:
        """A generation grows to `most_bytes`, or to one record. `patience_s`: to wait for another writer."""
        self.path, self._most, self._patience_s = path, most_bytes, patience_s
        self._known: tuple[int, int] | None = None
        """Inode and size after our last write; if another process has written since, search for the end."""

    def append(self, records: Records) -> None:
        """Write records, durably. Raises BadSpool, OSError; then some may be in it: write all again."""
        done = 0
        while done < len(records.ends):
            done = self._fill(records, done)

    def _fill(self, records: Records, first: int) -> int:
        """Write those from number `first` on that fit into this generation; the number of the next one."""
        known, self._known = self._known, None
        begin = int(records.ends[first - 1]) if first else 0
        with self._turn() as fd:
            found = os.fstat(fd)
            end = found.st_size if (found.st_ino, found.st_size) == known else self._find_end(fd)
            fit = int(np.searchsorted(records.ends, begin + self._most - end, side="right"))
            # A record that is larger than a generation has one of its own.
            following = max(fit, first + (end <= len(HEAD)))
            data = records.data[begin : int(records.ends[following - 1]) if following > first else begin]
            write_at(fd, data.tobytes(), end)
            os.fdatasync(fd)
            if following < len(records.ends):
                os.rename(self.path, older(self.path))
            else:
                # After a failed write or sync the content is unknown.
                self._known = found.st_ino, end + len(data)
        return following

    @contextlib.contextmanager
    def _turn(self) -> Iterator[int]:
        """A descriptor of the younger generation, while no other process writes to it. Raises OSError."""
        try:
            lock = Lock(lock_of(self.path), "being written to", patience_s=self._patience_s)
        except SpoolBusy as error:
            raise OSError(errno.EWOULDBLOCK, str(error)) from error
        try:
            fd = open_or_make(self.path, links=True)
            try:
                yield fd
            finally:
                os.close(fd)
        finally:
            lock.release()

    def _find_end(self, fd: int) -> int:
        """The offset behind the last whole record, where the file is cut; in a new file, behind its head."""
        if _is_ours(fd):
            end = max((end for _, end in _records(fd)), default=len(HEAD))
            write_at(fd, HEAD, 0)
            os.ftruncate(fd, end)
            os.fdatasync(fd)
            sync_directory(self.path.parent)
            return end
        raise BadSpool(f"{self.path} is no discard file; name another one in [dispatch] discard_file")
