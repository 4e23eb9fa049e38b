"""How far the log is committed: a small file beside the index, which compiled loops write, too.

    file := slot[2]
    slot := spool:16 bytes turn:i64 number:i64 tail:i64[TAIL_FIELDS] digest:u64

`number` is that of the segment, `tail` its committed end (spool.format.frame), `digest` the xxh3 of all
before it; each write has the next `turn`, and goes to the slot of its parity. The keeper syncs neither: a
writer that is killed tears one at most, and a reader takes the newest that is whole. After a power loss the
file may be old, or gone, like the index. Little-endian.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spool.errors import NotAFile
from spool.format.frame import TAIL_FIELDS, Tail
from spool.native.digest import digest
from spool.native.kernel import subkernel
from spool.native.libc import Libc
from spool.native.memory import Address, call
from spool.storage.disk import make_anew, open_to_write, read_bytes, write_at

log = logging.getLogger("bruce.keeper")

CommittedEnd = tuple[int, Tail]
"""(segment number, tail) that is committed."""

_TURN, _NUMBER, _TAIL = 2, 3, 4
_DIGEST = _TAIL + TAIL_FIELDS
"""Offsets in a slot, in words."""
SLOT_WORDS = _DIGEST + 1
SLOT_BYTES = 8 * SLOT_WORDS
NAME = "committed"
_TRIES = 3


class CommittedFile:
    """The file as its one writer has it. Without room for it readers learn nothing, and the log goes on."""

    def __init__(self, directory: Path, spool: bytes) -> None:
        """Open it in the index's folder, for the spool with this uuid; one of another is replaced."""
        self.words = np.zeros(SLOT_WORDS, np.int64)
        """The slot that was written last."""
        self.words[:_TURN] = np.frombuffer(spool, np.int64)
        self.fd, self._fails = -1, False
        with suppress(OSError):
            if slots := _slots(directory, spool):
                self.fd, self.words[_TURN] = open_to_write(directory / NAME), slots[-1][_TURN]
        try:
            if self.fd < 0:
                self.fd = make_anew(directory / NAME)
                write_at(self.fd, bytes(2 * SLOT_BYTES), 0)
        except OSError as error:
            self.note_failure(error)

    def write(self, number: int, tail: Tail) -> None:
        """The log is committed up to `tail` in segment `number`."""
        if self.fd < 0:
            return
        words = self.words
        words[_NUMBER], words[_TAIL:_DIGEST] = number, tail
        words[_TURN] += 1
        data = words[:_DIGEST].tobytes()
        try:
            write_at(self.fd, data + digest(data).to_bytes(8, "little"), SLOT_BYTES * int(words[_TURN] & 1))
            self._fails = False
        except OSError as error:
            # The same slot again: the other one is whole.
            words[_TURN] -= 1
            self.note_failure(error)

    def note_failure(self, error: OSError) -> None:
        """Say, once, that it cannot be written."""
        if not self._fails:
            log.warning("readers do not learn how far the log is committed: %s", error)
        self._fails = True

    def close(self) -> None:
        """Let go of the file."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@subkernel
def write_committed(
    functions: Libc, fd: int, words: npt.NDArray[np.int64], number: int, tail: Tail, digest_at: int
) -> bool:
    """As CommittedFile.write, of its `words`; False when that failed.

    `digest_at`: the address of the digest function.
    """
    at = Address(words.ctypes.data)
    words[_NUMBER] = number
    words[_TAIL:_DIGEST] = tail
    words[_TURN] += 1
    words[_DIGEST] = call(digest_at, at, 8 * _DIGEST, 0)
    if call(functions.pwrite, fd, at, SLOT_BYTES, SLOT_BYTES * (words[_TURN] & 1)) == SLOT_BYTES:
        return True
    words[_TURN] -= 1
    return False


def read_committed(directory: Path, spool: bytes | None = None) -> CommittedEnd | None:
    """(segment number, tail) that an index's folder calls committed; None when nothing there says so.

    `spool`: only of the spool with this uuid. Raises ReadFailed.
    """
    slots = _slots(directory, spool)
    return (int(slots[-1][_NUMBER]), slots[-1][_TAIL:_DIGEST].copy()) if slots else None


def is_blank(directory: Path) -> bool:
    """Whether nothing was ever written: a process that is killed early leaves no file, or zeros."""
    with suppress(NotADirectoryError, PermissionError, NotAFile):
        try:
            return not any(read_bytes(directory / NAME, 2 * SLOT_BYTES))
        except FileNotFoundError:
            return True
    return False


def _slots(directory: Path, spool: bytes | None) -> list[npt.NDArray[np.int64]]:
    """Those that are whole, the newest last. Raises ReadFailed."""
    found: list[npt.NDArray[np.int64] | None] = []
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError, NotAFile):
        # A reader that is held up in the middle of its read can see both slots half written.
        for _ in range(_TRIES):
            data = read_bytes(directory / NAME, 2 * SLOT_BYTES)
            found = [_unpack(data[at : at + SLOT_BYTES], spool) for at in (0, SLOT_BYTES)]
            if any(slot is not None for slot in found):
                break
    return sorted((slot for slot in found if slot is not None), key=lambda slot: int(slot[_TURN]))


def _unpack(data: bytes, spool: bytes | None) -> npt.NDArray[np.int64] | None:
    if len(data) != SLOT_BYTES or digest(data[:-8]) != int.from_bytes(data[-8:], "little"):
        return None
    return np.frombuffer(data, np.int64) if spool in (None, data[: 8 * _TURN]) else None
