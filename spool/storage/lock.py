"""One process owns a directory: advisory locks that the kernel drops when their holder dies.

The kernel gives a lock to whoever can open the file, to read alone if need be. So no other user may open a
lock file: a group that may read a spool could stop its daemon, LMDB's own locks among them. Such a user looks
into /proc/locks, which lists the locks of its own pid namespace by device and inode.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from spool.errors import NotAFile, SpoolBusy
from spool.storage.disk import LOCK_MODE, locate, open_or_make, open_to_read, read_bytes

HOLDER_BYTES = 32
"""At the beginning of a locked file: the pid of its holder, for people."""
PATIENCE_S = 2.0
"""A daemon that was killed leaves its workers dying for a moment; its successor waits that long for them."""
LOCK_FILES = frozenset(("lock", "hold", "owner", "lease", "lock.mdb"))
"""Names of the lock files in a spool."""
_LOCKS = Path("/proc/locks")
_FIRST_PIDS = "pid:[4026531836]"
"""The pid namespace that has all processes of the host (PROC_PID_INIT_INO of the kernel)."""


class Lock:
    """An exclusive flock on a file. Children of a fork share it; it is free when the last of them is gone."""

    def __init__(self, path: Path, purpose: str, *, note: str = "", patience_s: float = PATIENCE_S) -> None:
        """Take the lock, or raise SpoolBusy naming `purpose` and the process that holds it.

        `note`: a word about this process, for one that finds the lock held.
        """
        self._fd = open_or_make(path, mode=LOCK_MODE)
        # Earlier releases let a group read it.
        with contextlib.suppress(PermissionError):
            os.fchmod(self._fd, LOCK_MODE)
        end = time.monotonic() + patience_s
        while not self._taken():
            if time.monotonic() > end:
                os.close(self._fd)
                holder = read_holder(path) or "unknown"
                raise SpoolBusy(f"{path} is held by process {holder}: it is already {purpose}")
            time.sleep(0.01)
        # Overwritten in place: a full disk may have no block for it. Only the message above needs it, and a
        # file with another name may be any other one of ours.
        if os.fstat(self._fd).st_nlink > 1:
            return
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
    """The pid of a lock's holder, or last holder, and the note behind it; empty if it never had one.

    Empty, too, for a user who may not open it.
    """
    with contextlib.suppress(PermissionError):
        return read_bytes(path, HOLDER_BYTES)[:HOLDER_BYTES].decode("ascii", "replace").strip()
    return ""


def is_held(path: Path) -> bool | None:
    """Whether a process on this host holds the flock on a file. For a moment no other can take it.

    None: this user may not open the file, and cannot see the locks of all processes. Raises PermissionError
    for one who may not even look into its folder.
    """
    try:
        fd = open_to_read(path)
    except (FileNotFoundError, NotAFile):
        return False
    except PermissionError:
        return _is_listed(path, "FLOCK")
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def is_in_use(path: Path) -> bool:
    """Whether another process holds a POSIX lock on a file's first byte, like LMDB on its lock file.

    False, too, where this user cannot see that. Not for a process that holds one itself: the call would drop
    it.
    """
    try:
        fd = open_to_read(path)
    except (FileNotFoundError, NotAFile):
        return False
    except PermissionError:
        with contextlib.suppress(PermissionError):
            return bool(_is_listed(path, "POSIX"))
        return False
    try:
        # struct flock: type, whence, start, length, pid
        wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        held = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, wanted))
    finally:
        os.close(fd)
    return bool(held[0] != fcntl.F_UNLCK)


def _is_listed(path: Path, kind: str) -> bool | None:
    """Whether /proc/locks has a lock of this kind on the first byte of a file; None: that cannot be told."""
    fd = locate(path)
    try:
        found = (kind, _name_of(fd), "0") in _listed()
        sees_all = os.readlink("/proc/self/ns/pid") == _FIRST_PIDS
    except (OSError, ValueError, LookupError, StopIteration):
        return None
    finally:
        os.close(fd)
    return True if found else False if sees_all else None


def _listed() -> Iterator[tuple[str, str, str]]:
    """(kind, device and inode, first byte) of each lock that is held."""
    for line in _LOCKS.read_text().splitlines():
        # "1: FLOCK  ADVISORY  WRITE 4711 fe:00:5391289 0 EOF"; "1: -> FLOCK ..." waits for it.
        words = line.split()
        if len(words) == 8:  # noqa: PLR2004
            yield words[1], words[5], words[6]


def _name_of(fd: int) -> str:
    """The device and the inode of a file as /proc/locks has them.

    The device is the filesystem's: stat has another for a subvolume of btrfs. Raises OSError, ValueError,
    LookupError, StopIteration where /proc does not tell.
    """
    about = dict(line.split(":", 1) for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines())
    mount, inode = about["mnt_id"].strip(), int(about.get("ino", os.fstat(fd).st_ino))
    mounts = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    major, minor = next(words[2] for words in mounts if words[0] == mount).split(":")
    return f"{int(major):02x}:{int(minor):02x}:{inode}"
