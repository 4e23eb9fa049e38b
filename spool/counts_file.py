"""Counts files: how many partitions topics had when a job began to deliver, for the marks to remember.

    file  := magic:"brucecnt" version:u32=1 rows:u32 spool:16 bytes row[rows] check:u64
    row   := first:u64 partitions:u32 topic_bytes:u16 topic

Little-endian; `check` is the xxh3 of all before it. The rows of a topic are its history, in order: from the
sequence number `first` on it had so many partitions. A job writes one before it sends what goes by it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spool.digest import digest
from spool.disk import read_bytes, write_file
from spool.errors import BadSpool, UnknownVersion

MAGIC = b"brucecnt"
VERSION = 1
SUFFIX = ".counts"
_HEAD = struct.Struct("<8sII16s")
_ROW = struct.Struct("<QIH")
_CHECK_BYTES = 8
MOST_BYTES = 64 << 20
"""Of a file that is read: histories of some hundred thousand topics."""

History = list[tuple[int, int]]
"""(from sequence, partitions), in order."""


@dataclass(frozen=True, slots=True)
class CountsFile:
    """What one file says."""

    spool: bytes
    """The uuid of the spool whose messages go by it."""
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
    """What a file's bytes say; `where` names it. Raises BadSpool, UnknownVersion."""
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
    """Put histories in a file, durable; its path. `spool`: 16 bytes. Raises OSError."""
    path = directory / f"{name}{SUFFIX}"
    write_file(path, encode_counts(spool, histories))
    return path


def read_counts(path: Path) -> CountsFile:
    """What a file says. Raises BadSpool when it is damaged or something else, UnknownVersion, OSError."""
    return decode_counts(read_bytes(path, MOST_BYTES), path)
