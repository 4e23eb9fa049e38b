"""Files that a job on Spark leaves in a spool: counts of partitions, and the names of transactional tasks.

A counts file says how many partitions topics had when a job began to deliver, for the marks to remember:

    file  := magic:"brucecnt" version:u32=1 rows:u32 spool:16 bytes row[rows] check:u64
    row   := first:u64 partitions:u32 topic_bytes:u16 topic

Little-endian; `check` is the xxh3 of all bytes before it. The rows of a topic are its history, in order: the
number of partitions that it had from the sequence number `first` on. A job writes the file before it sends
messages by these counts.

The file of the transactional tasks says under which names jobs deliver messages of the spool in transactions:

    delivery/lanes   written by a job's driver that has delivery on lease, each time whole
        lanes := magic:"brucelan" version:u32=1 names:u32 epoch:u64 check:u64

Little-endian; `check` is the xxh3 of all bytes before it. The transactional task n delivers messages for
partitions of number n. Kafka knows it by a name made of the spool's uuid and n
(dispatch.transactions.progress); n is below `names`. The driver writes the file before a task may begin its
first transaction. So the next deliverer knows each name under which Kafka may hold, or may yet get, messages
that no outcome file has. It closes these tasks (dispatch.transactions.closing), records what they delivered,
and removes the file. `epoch` tells the tasks of this job, or of this batch of a run, from those before it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from spool.errors import BadSpool, UnknownVersion
from spool.layout import Layout
from spool.native.digest import digest
from spool.storage.disk import make_directory, read_bytes, sync_directory, write_file

MAGIC = b"brucecnt"
VERSION = 1
SUFFIX = ".counts"
_HEAD = struct.Struct("<8sII16s")
_ROW = struct.Struct("<QIH")
_CHECK_BYTES = 8
MOST_BYTES = 64 << 20
"""Most bytes of a file that is read: histories of some hundred thousand topics."""

History = list[tuple[int, int]]
"""(from sequence, partitions), in order."""
_TASKS_MAGIC, _TASKS_VERSION = b"brucelan", 1
_TASKS = struct.Struct("<8sIIQ")


@dataclass(frozen=True, slots=True)
class CountsFile:
    """The content of one file."""

    spool: bytes
    """The uuid of the spool whose messages are sent by these counts."""
    histories: Mapping[bytes, History]
    """By topic."""


def encode_counts(spool: bytes, histories: Mapping[bytes, History]) -> bytes:
    """The bytes of a file. Raises struct.error for numbers and names that no topic has."""
    rows = [
        _ROW.pack(first, partitions, len(topic)) + topic
        for topic, history in histories.items()
        for first, partitions in history
    ]
    data = _HEAD.pack(MAGIC, VERSION, len(rows), spool) + b"".join(rows)
    return data + digest(data).to_bytes(_CHECK_BYTES, "little")


def decode_counts(data: bytes, where: object) -> CountsFile:
    """Decode the bytes of a file; `where` names it. Raises BadSpool, UnknownVersion."""
    if len(data) < _HEAD.size + _CHECK_BYTES or not data.startswith(MAGIC):
        raise BadSpool(f"{where} is no counts file; remove it")
    _, version, rows, spool = _HEAD.unpack_from(data)
    if version > VERSION:
        raise UnknownVersion(
            f"{where} has version {version}, and this release knows {VERSION}: use a newer one"
        )
    if digest(data[:-_CHECK_BYTES]) != int.from_bytes(data[-_CHECK_BYTES:], "little"):
        raise BadSpool(f"{where} is damaged; remove it: what it says of topics is found out again")
    histories: dict[bytes, History] = {}
    at = _HEAD.size
    for _ in range(rows):
        first, partitions, topic_bytes = _ROW.unpack_from(data, at)
        at += _ROW.size + topic_bytes
        histories.setdefault(data[at - topic_bytes : at], []).append((first, partitions))
    return CountsFile(spool, histories)


def write_counts(directory: Path, name: str, spool: bytes, histories: Mapping[bytes, History]) -> Path:
    """Write histories to a file, durably; its path. `spool`: 16 bytes. Raises OSError."""
    path = directory / f"{name}{SUFFIX}"
    write_file(path, encode_counts(spool, histories))
    return path


def read_counts(path: Path) -> CountsFile:
    """Read a file. Raises BadSpool when it is damaged or something else, UnknownVersion, OSError."""
    return decode_counts(read_bytes(path, MOST_BYTES), path)


class TransactionalTasks(NamedTuple):
    """The tasks that are not closed."""

    names: int
    """0 when not known: then the tasks that have left a record."""
    epoch: int


_UNKNOWN = TransactionalTasks(0, 0)


def read_transactional_tasks(layout: Layout) -> TransactionalTasks | None:
    """The tasks that jobs have used; None when all are closed."""
    try:
        data = read_bytes(layout.transactional_tasks, _TASKS.size + _CHECK_BYTES)
    except FileNotFoundError:
        return None
    except OSError:
        return _UNKNOWN
    head, check = data[: _TASKS.size], data[_TASKS.size :]
    if len(head) < _TASKS.size or check != digest(head).to_bytes(_CHECK_BYTES, "little"):
        return _UNKNOWN
    magic, version, names, epoch = _TASKS.unpack(head)
    is_known = (magic, version) == (_TASKS_MAGIC, _TASKS_VERSION)
    return TransactionalTasks(names, epoch) if is_known else _UNKNOWN


def write_transactional_tasks(layout: Layout, tasks: TransactionalTasks) -> None:
    """Record which tasks deliver from now on; durable. Raises OSError."""
    make_directory(layout.delivery)
    row = _TASKS.pack(_TASKS_MAGIC, _TASKS_VERSION, *tasks)
    write_file(layout.transactional_tasks, row + digest(row).to_bytes(_CHECK_BYTES, "little"))


def remove_transactional_tasks(layout: Layout) -> None:
    """Remove the file: all tasks are closed, and the marks have their outcomes. Raises OSError."""
    layout.transactional_tasks.unlink(missing_ok=True)
    sync_directory(layout.delivery)
