"""Directories that are ours, and files in them that no other user can have planted.

The processes of one daemon map the files that they share (shared state, staging, connection buffers, traces)
and believe them. So these files are in a directory that belongs to us or to root, and that neither group nor
others may write to: no other user can make, rename or link a file in it. Each file is opened by a descriptor
of that directory, and judged by its own descriptor before a byte of it is used: a regular file, of ours or of
root's, with one name, which no other user may write to.

Such a file is not sealed against being cut (F_ADD_SEALS): the kernel seals memfds alone, and those end with
the last process that has them, while these files must outlive all of bruce's. Other users cannot cut
them, which would turn a read into a SIGBUS, because they may not open them to write.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from spool.errors import NotAFile, NotOurs
from spool.storage.disk import LOCK_MODE, name_file, no_file, set_mode
from spool.storage.lock import LOCK_FILES

ALONE = 0o600
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
Owners = Collection[int]
"""Users whose files are believed, beside ourselves and root."""
_JUDGED = ("identity", "lock")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def believed(directory: Path) -> frozenset[int]:
    """The users whose runtime files about the spool in `directory` are believed: us, root, its owner."""
    found = set()
    for place in (directory, directory / "segments"):
        with suppress(OSError):
            found.add(place.stat().st_uid)
    return frozenset({0, os.geteuid(), *found})


def is_own_directory(path: Path, owners: Owners = ()) -> bool:
    """Whether a directory belongs to us, to root or to `owners`, and no other user may write to it."""
    try:
        with _directory(path, owners):
            return True
    except (NotOurs, OSError):
        return False


def open_own(path: Path, *, owners: Owners = (), secret: bool = False) -> int:
    """A descriptor to read and write a file in a directory of our own, or of one of `owners`.

    `secret`: one that others may not read either. Raises NotOurs, NotAFile, OSError.
    """
    with _directory(path.parent, owners) as directory:
        fd = _judged(_open(path, os.O_RDWR, directory), path, owners)
    if secret and os.fstat(fd).st_mode & 0o077:
        os.close(fd)
        raise NotOurs(f"others may read {path}: chmod 600 {path}, or remove it")
    return fd


def open_believed(path: Path, owners: Owners = ()) -> int:
    """A descriptor to read a file of our own, of root's or of one of `owners`, in any directory.

    Even if everybody may write to the directory, no other user can make a file with these owners. Raises
    like open_own.
    """
    return _judged(_open(path, os.O_RDONLY, None), path, owners)


def read_believed(path: Path, length: int, offset: int = 0, owners: Owners = ()) -> bytes:
    """At most `length` bytes of such a file. Raises as above."""
    fd = open_believed(path, owners)
    try:
        return os.pread(fd, length, offset)
    finally:
        os.close(fd)


def append_own(path: Path) -> int:
    """A descriptor to append to a file in a directory of our own, which is made when it is not there.

    Raises like open_own.
    """
    with _directory(path.parent, ()) as directory:
        fd = _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, directory)
    return _judged(fd, path, ())


def put_own(path: Path, fill: Callable[[int], None], mode: int = ALONE, owners: Owners = ()) -> None:
    """Put a file in a directory of our own or of one of `owners`, whole or not at all: `fill` writes it.

    It replaces any file of that name. Not durable: it need not outlive the host.
    Raises NotOurs, OSError.
    """
    temporary = f"{path.name}.tmp"
    with _directory(path.parent, owners) as directory:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFELY
        fd = os.open(temporary, flags, mode & ALONE, dir_fd=directory)
        try:
            fill(fd)
            os.fchmod(fd, mode)
            os.rename(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException as error:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            name_file(error, path)
            raise
        finally:
            os.close(fd)


def claim(directory: Path, folders: Iterable[Path]) -> None:
    """Let no other user plant a file in a spool. For the process with its lock. Raises NotOurs, OSError.

    All folders, the identity and the lock belong to us or to root; if we are root, to the owner of
    `directory` or to root: in a container, root may serve a folder of another user's, but of one alone.
    The group loses the right to write to its folders and to all files; earlier releases left that to the
    umask. It loses all rights to lock files. The owner decides whether the group may write to `directory`
    itself.
    """
    owners = {0, os.geteuid()} if os.geteuid() else {0, directory.stat().st_uid}
    for place in (directory, *folders):
        _refuse_foreign(place, owners)
        if place != directory:
            _take_from_others(place, place.stat())
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    taken = ~LOCK_MODE & 0o777 if entry.name in LOCK_FILES else _OTHERS_WRITE
                    status = entry.stat(follow_symlinks=False)
                    if entry.name in _JUDGED and status.st_uid not in owners:
                        raise NotOurs(f"{entry.path} belongs to user {status.st_uid}, and is not believed")
                    _take_from_others(Path(entry.path), status, taken)


def _refuse_foreign(path: Path, owners: Owners) -> None:
    status = path.stat()
    if status.st_uid not in owners:
        raise NotOurs(
            f"{path} belongs to user {status.st_uid}: run bruce as that user, or give the spool to "
            f"user {max(owners)} (chown -R)"
        )
    if status.st_mode & stat.S_IWOTH:
        raise NotOurs(f"every user of this host may change what is in {path}: chmod o-w {path}")


def _take_from_others(path: Path, status: os.stat_result, taken: int = _OTHERS_WRITE) -> None:
    if status.st_mode & taken:
        # `brucectl doctor` reports files of another user, such as those that root has left here.
        with suppress(PermissionError, FileNotFoundError):
            set_mode(path, stat.S_IMODE(status.st_mode) & ~taken)


@contextmanager
def _directory(path: Path, owners: Owners) -> Iterator[int]:
    """A descriptor of a directory that is ours. Raises NotOurs, OSError."""
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_uid not in (0, os.geteuid(), *owners):
            raise NotOurs(f"{path} belongs to user {status.st_uid}, and nothing in it is believed")
        if status.st_mode & _OTHERS_WRITE:
            raise NotOurs(f"others may write to {path}, and nothing in it is believed: chmod go-w {path}")
        yield fd
    finally:
        os.close(fd)


def _open(path: Path, flags: int, directory: int | None) -> int:
    name = path if directory is None else path.name
    try:
        return os.open(name, flags | _SAFELY, ALONE, dir_fd=directory)
    except (FileNotFoundError, PermissionError):
        raise
    except OSError:
        # A link, a directory or a socket cannot be opened with these flags: report which it is.
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        if stat.S_ISREG(mode):
            raise
        raise no_file(path, mode) from None


def _judged(fd: int, path: Path, owners: Owners) -> int:
    """The same descriptor. Raises NotAFile, NotOurs."""
    try:
        judge(os.fstat(fd), path, owners)
    except (NotAFile, NotOurs):
        os.close(fd)
        raise
    return fd


def judge(status: os.stat_result, path: Path, owners: Owners = ()) -> None:
    """Raises NotAFile, NotOurs for a file that others may have made, or may write to."""
    if not stat.S_ISREG(status.st_mode):
        raise no_file(path, status.st_mode)
    if status.st_uid not in (0, os.geteuid(), *owners):
        raise NotOurs(f"{path} belongs to user {status.st_uid}, and is not believed: remove it")
    if status.st_mode & _OTHERS_WRITE:
        raise NotOurs(f"others may write to {path}, which is not believed: remove it")
    if status.st_nlink > 1:
        raise NotOurs(f"{path} has {status.st_nlink} names, and is not believed: remove the others")
