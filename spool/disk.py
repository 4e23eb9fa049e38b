"""What the spool asks of the disk, in one place; every call here may wait for it.

The one home of `open`, too. A file of a spool is a regular file. A name that leads to anything else (a pipe,
which would wait for its other end; a device, which never ends; a directory, a socket, a symbolic link) is not
opened but reported, by one error. Each file is opened without waiting and judged by its descriptor, so that
nothing changes in between. A path that the operator names may be a symbolic link, as configuration management
makes them: `links`.

Files that we make have FILE_MODE, whatever the umask is: chmod of the spool's directory lets a group read.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from contextlib import suppress
from pathlib import Path

from spool.crash_point import reach
from spool.errors import NotAFile, ReadFailed, SpoolFull

FULL = (errno.ENOSPC, errno.EDQUOT)
_AHEAD_BYTES = 8 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
FILE_MODE = 0o640
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FAILS = (errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EREMOTEIO, errno.ETIMEDOUT, errno.ESTALE)
"""Of reading, when it is the disk that does not give: a bad sector, a wrong checksum, a network's timeout."""
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def make_directory(path: Path, mode: int = 0o750) -> None:
    """Create a directory and its parents, with this mode whatever the umask, and make the names durable."""
    if path.is_dir():
        return
    make_directory(path.parent, max(mode, 0o750))
    with suppress(FileExistsError):
        # Until it has its mode it is open to fewer.
        os.mkdir(path, mode & 0o700)
        path.chmod(mode)
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
        fd = make_anew(temporary)
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
    fd = make_anew(temporary)
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


def open_to_read(path: Path, *, links: bool = False) -> int:
    """A descriptor to read a regular file. Raises NotAFile, ReadFailed, OSError."""
    return _open(path, os.O_RDONLY, links=links)


def open_to_write(path: Path, *, links: bool = False) -> int:
    """A descriptor to read and write a regular file that exists. Raises NotAFile, ReadFailed, OSError."""
    return _open(path, os.O_RDWR, links=links)


def open_or_make(path: Path, *, links: bool = False) -> int:
    """The same; the file is made, empty, when it is not there."""
    with suppress(FileExistsError):
        return make_file(path)
    return open_to_write(path, links=links)


def make_file(path: Path) -> int:
    """A descriptor to read and write a new file. Raises FileExistsError, OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFELY, FILE_MODE)
    with suppress(PermissionError):  # of a filesystem without modes
        os.fchmod(fd, FILE_MODE)
    return fd


def make_anew(path: Path) -> int:
    """The same; an earlier file of that name, or a link, goes. For what nobody else has by that name."""
    path.unlink(missing_ok=True)
    return make_file(path)


def opened(path: Path, *, links: bool = False) -> io.FileIO:
    """A regular file to read, unbuffered. Raises NotAFile, ReadFailed, OSError."""
    return io.FileIO(open_to_read(path, links=links), "rb")


def read_bytes(path: Path, most: int, *, links: bool = False) -> bytes:
    """What a regular file holds, of a longer one one byte more than `most`: no reader takes that for whole.

    Raises NotAFile, ReadFailed, OSError.
    """
    fd = open_to_read(path, links=links)
    try:
        return read_at(fd, most + 1, 0)
    finally:
        os.close(fd)


def read_text(path: Path, most: int, *, links: bool = False) -> str:
    """The same, as UTF-8; what is none becomes a replacement character."""
    return read_bytes(path, most, links=links).decode("utf-8", "replace")


def read_at(fd: int, length: int, offset: int) -> bytes:
    """`length` bytes from `offset`, fewer only at the end of the file. Raises ReadFailed, OSError."""
    parts = []
    try:
        while length > 0 and (part := os.pread(fd, length, offset)):
            parts.append(part)
            offset += len(part)
            length -= len(part)
    except OSError as error:
        raise told(error, fd) from error
    return b"".join(parts)


def is_regular(path: Path) -> bool:
    """Whether a path leads to a regular file, and not by a link."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def set_mode(path: Path, mode: int, group: int = -1) -> None:
    """Give what stands at a path, and is no link, this mode, and this group unless it is -1.

    By a descriptor that opens nothing: closing another one would drop the locks that LMDB has on its file.
    Raises OSError.
    """
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            raise NotAFile(errno.ELOOP, _KINDS[stat.S_IFLNK], str(path))
        itself = f"/proc/self/fd/{fd}"
        if group != -1:
            os.chown(itself, -1, group)
        os.chmod(itself, mode)
    finally:
        os.close(fd)


def told(error: OSError, file: Path | int) -> OSError:
    """The same error, as a ReadFailed if the disk is to blame."""
    if error.errno not in _FAILS:
        return error
    path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else str(file)
    return ReadFailed(error.errno, error.strerror, path)


def no_file(path: Path, mode: int) -> NotAFile:
    """The error for a path that leads to what has this st_mode."""
    return NotAFile(errno.EINVAL, _KINDS.get(stat.S_IFMT(mode), "something else"), str(path))


def _open(path: Path, flags: int, *, links: bool) -> int:
    wanted = flags | _SAFELY
    try:
        fd = os.open(path, wanted & ~os.O_NOFOLLOW if links else wanted)
    except OSError as error:
        # A link (ELOOP), a directory to be written, a socket, a device without a driver.
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV):
            raise no_file(path, (path.stat() if links else path.lstat()).st_mode) from None
        raise told(error, path) from error
    if not stat.S_ISREG(mode := os.fstat(fd).st_mode):
        os.close(fd)
        raise no_file(path, mode)
    return fd


def read_ahead(fd: int, offset: int, end: int) -> None:
    """Have the kernel read [offset, end) at once, as one; of more, _AHEAD_BYTES. Only advice."""
    length = min(end - offset, _AHEAD_BYTES)
    if length > 0:  # 0 would mean: up to the end of the file
        with suppress(OSError):  # of a pipe, say; what is wrong with the file, reading it tells
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
        failed = told(error, fd)
        if not isinstance(failed, ReadFailed):
            raise
        return got, failed
    return got, None
