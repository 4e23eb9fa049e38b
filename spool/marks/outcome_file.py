"""Outcome files: the outcomes of a job's task, for the owner of the marks to import.

    file  := magic:"bruceout" version:u32=1 zero:u32 spool:16 bytes count:u64 zstd[...] check:u64
    plain := gap_byte:u8[8][count] reason_byte:u8[4][count]

Little-endian. `plain` has one row a byte: the lowest byte of each gap, then the next higher one, then those
of the reasons; most rows are zeros and compress to nothing. The gaps are the differences of the sequence
numbers in ascending order, modulo 2^64; the first is the difference from 0. A reason is 0 for a delivered
message, else a spool.format.wire.Reason, with 256 added when the message is in the dead-letter topic. `check`
is the xxh3 of all bytes before it.

A task on any executor writes one, whole or not at all, without LMDB. To import it twice does no harm. Its
name begins with that of the task, so that another attempt finds the messages that need not be sent. It ends
in `.out`, or in `.taken` after the import: such files are kept while the job may try its tasks again.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spool.errors import BadSpool, UnknownVersion
from spool.format.packed import compress, decompress
from spool.native.digest import digest
from spool.storage.disk import opened, read_bytes, write_file

MAGIC = b"bruceout"
VERSION = 1
SUFFIX = ".out"
TAKEN = ".taken"
"""Suffix of a file that was imported, and is kept for tasks that are tried again."""
MOST = 1 << 27
"""Most outcomes in one file: more would take 1.5 GB to unpack."""
_HEAD = struct.Struct("<8sI4x16sQ")
_GAP_BYTES, _REASON_BYTES = 8, 4
_UUID_BYTES = 16
MOST_BYTES = MOST * 13
"""Most bytes of a file that is read: incompressible data grows by less than a twelfth."""
_CHECK_BYTES = 8


@dataclass(frozen=True, slots=True)
class OutcomeFile:
    """The content of one file."""

    spool: bytes
    """The uuid of the spool that holds the messages."""
    sequences: npt.NDArray[np.int64]
    """Ascending."""
    reasons: npt.NDArray[np.int32]
    """By sequence: 0 for delivered, else the reason of the discard."""


def encode_outcomes(spool: bytes, sequences: npt.NDArray[np.int64], reasons: npt.NDArray[np.int32]) -> bytes:
    """The bytes of a file. Raises ValueError for outcomes that no file can hold."""
    if len(spool) != _UUID_BYTES or len(sequences) != len(reasons) or len(sequences) > MOST:
        raise ValueError(f"a spool's uuid, and up to {MOST} sequence numbers with a reason each")
    order = np.argsort(sequences, kind="stable")
    gaps = np.diff(sequences[order].astype("<i8").view("<u8"), prepend=np.uint64(0))
    rows = [_rows(gaps.astype("<u8"), _GAP_BYTES), _rows(reasons[order].astype("<i4"), _REASON_BYTES)]
    data = _HEAD.pack(MAGIC, VERSION, spool, len(sequences)) + compress(b"".join(rows))
    return data + digest(data).to_bytes(_CHECK_BYTES, "little")


def _rows(values: npt.NDArray[np.generic], width: int) -> bytes:
    """The lowest byte of each value, then the next higher one of each, and so on."""
    return values.view(np.uint8).reshape(-1, width).T.tobytes()


def decode_outcomes(data: bytes, where: object) -> OutcomeFile:
    """Decode the bytes of a file; `where` names it. Raises BadSpool, UnknownVersion."""
    head, check = data[: _HEAD.size], data[-_CHECK_BYTES:]
    if len(data) < _HEAD.size + _CHECK_BYTES or not head.startswith(MAGIC):
        raise BadSpool(f"{where} is no outcome file; remove it")
    _, version, spool, count = _HEAD.unpack(head)
    if version > VERSION:
        raise UnknownVersion(
            f"{where} has version {version}, and this release knows {VERSION}: use a newer one"
        )
    plain = None
    if digest(data[:-_CHECK_BYTES]) == int.from_bytes(check, "little") and count <= MOST:
        plain = decompress(data[_HEAD.size : -_CHECK_BYTES], count * (_GAP_BYTES + _REASON_BYTES))
    if plain is None:
        raise BadSpool(f"{where} is damaged; remove it: what it called delivered will be sent again")
    rows = np.frombuffer(plain, np.uint8).reshape(-1, count).T if count else np.zeros((0, 12), np.uint8)
    gaps = np.ascontiguousarray(rows[:, :_GAP_BYTES]).view("<u8").ravel()
    reasons = np.ascontiguousarray(rows[:, _GAP_BYTES:]).view("<i4").ravel()
    sequences = np.cumsum(gaps, dtype=np.uint64).view(np.int64)
    return OutcomeFile(spool, sequences, reasons.astype(np.int32))


def write_outcomes(
    directory: Path,
    name: str,
    spool: bytes,
    sequences: npt.NDArray[np.int64],
    reasons: npt.NDArray[np.int32],
) -> Path:
    """Write the outcomes of one task to a file of their own, durably; its path.

    `spool` is the uuid of the spool (16 bytes), `sequences` int64[n] in any order, `reasons` int32[n]. `name`
    says which task it was; two attempts at it write two files. Raises ValueError, and OSError when the file
    could not be written: then none of the outcomes is recorded.
    """
    if "/" in name or not name:
        raise ValueError(f"{name!r} is no name of a file")
    path = directory / f"{name}.{secrets.token_hex(4)}{SUFFIX}"
    write_file(path, encode_outcomes(spool, sequences, reasons))
    return path


def read_outcomes(path: Path) -> OutcomeFile:
    """Read a file. Raises BadSpool when it is damaged or something else, UnknownVersion, OSError."""
    return decode_outcomes(read_bytes(path, MOST_BYTES), path)


def count_outcomes(path: Path) -> int:
    """How many outcomes a file has, by its first bytes alone; 0 when it is none. Raises OSError."""
    with opened(path) as file:
        head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or not head.startswith(MAGIC):
        return 0
    return min(MOST, int(_HEAD.unpack(head)[3]))


def list_outcomes(directory: Path) -> list[Path]:
    """The whole outcome files in a directory, by name; none when there is no directory."""
    return sorted(directory.glob(f"*{SUFFIX}"))


def read_task(directory: Path, task: str) -> list[OutcomeFile]:
    """Read the files whose names begin with `task`, also those that were imported.

    Raises BadSpool, UnknownVersion, OSError.
    """
    return [_read_either(path) for path in sorted(directory.iterdir()) if _is_of(path, task)]


def _is_of(path: Path, task: str) -> bool:
    return path.name.startswith(task) and path.suffix in (SUFFIX, TAKEN)


def _read_either(path: Path) -> OutcomeFile:
    try:
        return read_outcomes(path)
    except FileNotFoundError:
        return read_outcomes(path.with_suffix(TAKEN))


def forget_taken(directory: Path) -> None:
    """Remove the imported files, when none of their tasks will be tried again. Raises OSError."""
    for path in directory.glob(f"*{TAKEN}"):
        path.unlink(missing_ok=True)


class Settled(NamedTuple):
    """The outcomes of several files; a message that one of them calls delivered was not discarded."""

    delivered: npt.NDArray[np.int64]
    """In ascending order, each once."""
    discarded: npt.NDArray[np.int64]
    """The same."""
    reasons: npt.NDArray[np.int32]
    """int32[discarded]: from the files; if several have the message, from the first."""


def settle(files: Sequence[OutcomeFile]) -> Settled:
    """Merge the outcomes of several files."""
    sequences = np.concatenate([np.empty(0, np.int64), *(file.sequences for file in files)])
    reasons = np.concatenate([np.empty(0, np.int32), *(file.reasons for file in files)])
    delivered = np.unique(sequences[reasons == 0])
    discarded, first = np.unique(sequences[reasons != 0], return_index=True)
    only = ~np.isin(discarded, delivered, assume_unique=True)
    return Settled(delivered, discarded[only], reasons[reasons != 0][first][only])
