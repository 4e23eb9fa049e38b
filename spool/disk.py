"""What the spool asks of the disk, in one place; every call here may wait for it."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from spool.crash_point import reach
from spool.errors import ReadFailed, SpoolFull

FULL = (errno.ENOSPC, errno.EDQUOT)
_FAILS = (errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EREMOTEIO, errno.ETIMEDOUT, errno.ESTALE)
"""Of reading, when it is the disk that does not give: a bad sector, a wrong checksum, a network's timeout."""
_AHEAD_BYTES = 8 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def make_directory(path: Path, mode: int = 0o750) -> None:
    """Create a directory and its parents, and make their names durable."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make names created, renamed and removed in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def reserve(fd: int, offset: int, length: int) -> None:
    """Reserve blocks for a range of a file, growing it as needed. Raises SpoolFull when there are none."""
    try:
        os.posix_fallocate(fd, offset, length)
    except OSError as error:
        if error.errno in FULL:
            raise SpoolFull(f"no room for {length} bytes: {error.strerror}") from error
        raise


def allocate(path: Path, head: bytes, size: int) -> None:
    """Create a file of `size` zero bytes beginning with `head`, its blocks reserved, all of it durable.

    Reserved, because a store into a mapped hole on a full disk is a SIGBUS, which Python cannot catch.
    Raises SpoolFull when the disk has no room; nothing is left behind then.
    """
    temporary = path.with_suffix(path.suffix + ".tmp")
    try:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o660)
        try:
            os.posix_fallocate(fd, 0, size)
            write_at(fd, head, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        reach("allocate.synced")
        os.rename(temporary, path)
        reach("allocate.named")
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno in FULL:
            raise SpoolFull(f"no room for {size} bytes at {path}: {error.strerror}") from error
        raise
    try:
        sync_directory(path.parent)
    except OSError:
        # Found again, the name would be taken for durable.
        path.unlink(missing_ok=True)
        raise


def write_file(path: Path, data: bytes) -> None:
    """Put `data` in a file, whole or not at all, and durable."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o660)
    try:
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(data)
        os.fsync(fd)
        reach("file.synced")
        os.rename(temporary, path)
        reach("file.named")
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    sync_directory(path.parent)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data` at `offset`."""
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


def free_bytes(path: Path) -> tuple[int, int]:
    """(bytes that are free for us, bytes in all) of the filesystem that holds `path`."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def allocated_bytes(path: Path) -> int:
    """Bytes of disk that a file takes; 0 when it is gone."""
    try:
        return os.stat(path).st_blocks * 512
    except FileNotFoundError:
        return 0


def open_to_read(path: Path) -> int:
    """A descriptor to read a file. Raises ReadFailed, OSError."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _told(error, path) from error


def read_at(fd: int, length: int, offset: int) -> bytes:
    """`length` bytes from `offset`, fewer only at the end of the file. Raises ReadFailed, OSError."""
    parts = []
    try:
        while length > 0 and (part := os.pread(fd, length, offset)):
            parts.append(part)
            offset += len(part)
            length -= len(part)
    except OSError as error:
        raise _told(error, fd) from error
    return b"".join(parts)


def read_ahead(fd: int, offset: int, end: int) -> None:
    """Have the kernel read [offset, end) at once, as one; of more, _AHEAD_BYTES. Only advice."""
    length = min(end - offset, _AHEAD_BYTES)
    if length > 0:  # 0 would mean: up to the end of the file
        with contextlib.suppress(OSError):  # of a pipe, say; what is wrong with the file, reading it tells
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)


def read_into(fd: int, buffer: memoryview, offset: int) -> tuple[int, ReadFailed | None]:
    """Fill `buffer` from `offset`: (bytes, why there are no more of them); None: the file ends there.

    What lies before a bad sector is given. Raises OSError for what has nothing to do with the disk.
    """
    got = 0
    try:
        while got < len(buffer) and (more := os.preadv(fd, [buffer[got:]], offset + got)):
            got += more
    except OSError as error:
        failed = _told(error, fd)
        if not isinstance(failed, ReadFailed):
            raise
        return got, failed
    return got, None


def _told(error: OSError, file: Path | int) -> OSError:
    """The same error, as a ReadFailed if the disk is to blame."""
    if error.errno not in _FAILS:
        return error
    path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else str(file)
    return ReadFailed(error.errno, error.strerror, path)
