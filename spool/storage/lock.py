"""One process owns a directory: advisory locks that the kernel drops when their holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from pathlib import Path

from spool.errors import NotAFile, SpoolBusy
from spool.storage.disk import open_or_make, open_to_read, read_bytes

HOLDER_BYTES = 32
"""At the beginning of a locked file: the pid of its holder, for people."""
PATIENCE_S = 2.0
"""A daemon that was killed leaves its workers dying for a moment; its successor waits that long for them."""


class Lock:
    """An exclusive flock on a file. Children of a fork share it; it is free when the last of them is gone."""

    def __init__(self, path: Path, purpose: str, *, note: str = "", patience_s: float = PATIENCE_S) -> None:
        """Take the lock, or raise SpoolBusy naming `purpose` and the process that holds it.

        `note`: a word about this process, for one that finds the lock held.
        """
        self._fd = open_or_make(path)
        end = time.monotonic() + patience_s
        while not self._taken():
            if time.monotonic() > end:
                os.close(self._fd)
                holder = read_holder(path) or "unknown"
                raise SpoolBusy(f"{path} is held by process {holder}: it is already {purpose}")
            time.sleep(0.01)
        # Overwritten in place: a full disk may have no block for it. Only the message above needs it.
        with contextlib.suppress(OSError):
            line = f"{os.getpid()} {note}".strip()
            os.pwrite(self._fd, f"{line}\n".ljust(HOLDER_BYTES).encode(), 0)

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let go of the lock."""
        os.close(self._fd)


def read_holder(path: Path) -> str:
    """The pid of a lock's holder, or last holder, and the note behind it; empty if it never had one."""
    return read_bytes(path, HOLDER_BYTES)[:HOLDER_BYTES].decode("ascii", "replace").strip()


def is_held(path: Path) -> bool:
    """Whether a process on this host holds the flock on a file. For a moment no other can take it."""
    try:
        fd = open_to_read(path)
    except (FileNotFoundError, NotAFile):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def is_in_use(path: Path) -> bool:
    """Whether another process holds a POSIX lock on a file's first byte, like LMDB on its lock file.

    Not for a process that holds one itself: the call would drop it.
    """
    try:
        fd = open_to_read(path)
    except (FileNotFoundError, PermissionError, NotAFile):
        return False
    try:
        # struct flock: type, whence, start, length, pid
        wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        held = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, wanted))
    finally:
        os.close(fd)
    return bool(held[0] != fcntl.F_UNLCK)
