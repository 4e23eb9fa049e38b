"""Every call by which the spool uses the disk, in one place; each may wait for it.

Files are opened here, too. A file of a spool is a regular file. A name that leads to anything else (a pipe,
which would wait for its other end; a device, which never ends; a directory, a socket, a symbolic link) is not
opened but reported, by one error. Each file is opened without waiting and judged by its descriptor, so that
nothing changes in between. A path that the operator names may be a symbolic link, as configuration management
makes them: `links`.

Files that we make have FILE_MODE, whatever the umask is: chmod of the spool's directory lets a group read.
Lock files have LOCK_MODE: every lock of the kernel can be taken through a descriptor that only reads.

`Mapping` is the only user of mmap. Only blocks that are reserved on disk are mapped writable (`allocate`, or
a tmpfs that holds them), and no file is cut while a writer maps it: either would turn a store into a SIGBUS.

Bytes that cannot be used go to quarantine, a folder of the spool: nothing is thrown away unseen.

Promises that the filesystem of a spool cannot make are reported at the start.
A store into a mapped file must find its block. If blocks cannot be reserved, or are written elsewhere each
time, a full disk ends the appender by SIGBUS: its burst is salvaged, and given up after three attempts. The
free-space reserve prevents that unless others take the space. So bruce reports such a filesystem, but does
not refuse to start, which it would on many hosts.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import itertools
import logging
import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spool.errors import NotAFile, ReadFailed, SpoolFull
from spool.layout import Layout
from spool.native.memory import Address, address_of
from spool.storage.failpoint import reach

log = logging.getLogger("bruce.spool")

FULL = (errno.ENOSPC, errno.EDQUOT)
UNKNOWN_BYTES = 1 << 62
"""Of a filesystem that does not tell how large it is."""
_AHEAD_BYTES = 8 << 20
PART_BYTES = 1 << 20
"""Of a file that is copied: so much of it is in memory at once."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
FILE_MODE, LOCK_MODE = 0o640, 0o600
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FAILS = (errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EREMOTEIO, errno.ETIMEDOUT, errno.ESTALE)
"""Errors of a read that are the disk's fault: a bad sector, a wrong checksum, a network's timeout."""
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
PROBE = "probe.tmp"
_STATFS_BYTES = 256
_NETWORK = (
    "it is a network filesystem: locks, syncs and mapped files promise less there",
    "use a local disk",
)
_COPIES = (
    "it writes changed blocks elsewhere, so that a full disk can end the intake although space was reserved",
    "keep [spool] min_free_bytes above 0",
)
_MEMORY = (
    "it is memory: what is not delivered is gone when the host goes down",
    "use a disk",
)
_LAYER = (
    "it is the layer of a container, and goes when the container does",
    "mount a volume there",
)
_FILESYSTEMS = {
    0x6969: ("nfs", _NETWORK),
    0x517B: ("smb", _NETWORK),
    0xFE534D42: ("smb", _NETWORK),
    0xFF534D42: ("cifs", _NETWORK),
    0x01021997: ("9p", _NETWORK),
    0x00C36400: ("ceph", _NETWORK),
    0x9123683E: ("btrfs", _COPIES),
    0x2FC12FC1: ("zfs", _COPIES),
    0xCA451A4E: ("bcachefs", _COPIES),
    0x01021994: ("tmpfs", _MEMORY),
    0x858458F6: ("ramfs", _MEMORY),
    0x794C7630: ("overlay", _LAYER),
}
"""By f_type of statfs(2): name, and the weakness to report."""


def make_directory(path: Path, mode: int = 0o750) -> None:
    """Create a directory and its parents, with this mode whatever the umask, and make the names durable."""
    if path.is_dir():
        return
    make_directory(path.parent, max(mode, 0o750))
    with suppress(FileExistsError):
        # The umask may take some rights; until chmod it is open to fewer users.
        os.mkdir(path, mode)
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
        # The next start would take the name for durable.
        path.unlink(missing_ok=True)
        raise


def write_file(path: Path, data: bytes) -> None:
    """Put `data` in a file, whole or not at all, and durable."""
    write_parts(path, [data])


def write_parts(path: Path, parts: Iterable[bytes]) -> None:
    """The same, of bytes that come one part after the other, so that memory holds one of them."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    fd = make_anew(temporary)
    try:
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.writelines(parts)
        os.fsync(fd)
        reach("file.synced")
        os.rename(temporary, path)
        reach("file.named")
    except OSError as error:
        temporary.unlink(missing_ok=True)
        name_file(error, path)
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
    """(bytes that are free for us, bytes in all) of the filesystem that holds `path`.

    (UNKNOWN_BYTES, UNKNOWN_BYTES) where it does not tell, as a tmpfs without a limit, or one of FUSE without
    statfs: allocating says when it is full.
    """
    found = os.statvfs(path)
    if not found.f_blocks:
        return UNKNOWN_BYTES, UNKNOWN_BYTES
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


def open_or_make(path: Path, *, links: bool = False, mode: int = FILE_MODE) -> int:
    """The same; the file is made, empty and with this mode, when it is not there."""
    with suppress(FileExistsError):
        return make_file(path, mode)
    return open_to_write(path, links=links)


def locate(path: str | Path) -> int:
    """A descriptor that says which file is there, and opens nothing; not through a link. Raises OSError."""
    return os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)


def make_file(path: Path, mode: int = FILE_MODE) -> int:
    """A descriptor to read and write a new file. Raises FileExistsError, OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFELY, mode)
    with suppress(PermissionError):  # of a filesystem without modes
        os.fchmod(fd, mode)
    return fd


def make_anew(path: Path) -> int:
    """The same, in place of an earlier file or link of that name. For names that no other process uses."""
    path.unlink(missing_ok=True)
    return make_file(path)


def opened(path: Path, *, links: bool = False) -> io.FileIO:
    """A regular file to read, unbuffered. Raises NotAFile, ReadFailed, OSError."""
    return io.FileIO(open_to_read(path, links=links), "rb")


def read_bytes(path: Path, most: int, *, links: bool = False) -> bytes:
    """The bytes of a regular file, at most `most` + 1: a longer file shows by the byte too many.

    Raises NotAFile, ReadFailed, OSError.
    """
    fd = open_to_read(path, links=links)
    try:
        return read_at(fd, most + 1, 0)
    finally:
        os.close(fd)


def read_text(path: Path, most: int, *, links: bool = False) -> str:
    """The same, as UTF-8; invalid bytes become replacement characters."""
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


def read_parts(fd: int, begin: int, end: int, most: int = PART_BYTES) -> Iterator[bytes]:
    """The bytes of [begin, end), `most` at a time. Raises ReadFailed, OSError."""
    for at in range(begin, end, most):
        yield read_at(fd, min(most, end - at), at)


def end_of_bytes(fd: int, begin: int, end: int, most: int = PART_BYTES) -> int:
    """The end of the bytes in [begin, end) without the zeros at their end. Raises ReadFailed, OSError."""
    while end > begin:
        at = max(begin, end - most)
        if kept := len(read_at(fd, end - at, at).rstrip(b"\0")):
            return at + kept
        end = at
    return begin


def is_regular(path: Path) -> bool:
    """Whether a path leads to a regular file, and not by a link."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def set_mode(path: Path, mode: int, group: int = -1) -> None:
    """Give the file at a path, unless it is a link, this mode, and this group unless it is -1.

    With an O_PATH descriptor: closing an ordinary one would drop the locks that LMDB has on its file.
    Raises NotAFile for a link, OSError.
    """
    fd = locate(path)
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


def name_file(error: BaseException, path: Path) -> None:
    """Give an error of the system that names no file this one: what a user reads says where."""
    if isinstance(error, OSError) and error.filename is None:
        error.filename = str(path)


def no_file(path: Path, mode: int) -> NotAFile:
    """The error for a path that leads to a file with this st_mode."""
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
    """Advise the kernel to read [offset, end) ahead in one piece, at most _AHEAD_BYTES."""
    length = min(end - offset, _AHEAD_BYTES)
    if length > 0:  # 0 would mean: up to the end of the file
        with suppress(OSError):  # of a pipe, say; reading reports any fault of the file
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)


def read_into(fd: int, buffer: memoryview, offset: int) -> tuple[int, ReadFailed | None]:
    """Fill `buffer` from `offset`: (bytes read, the error that ended it); None: the file ends there.

    Bytes before a bad sector are read. Raises OSError for errors that are not the disk's.
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


def free_place(layout: Layout, name: str) -> Path:
    """The first free path in quarantine for this name: NAME, NAME.1, NAME.2 ..."""
    names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(1)))
    return next(path for path in map(layout.quarantine.joinpath, names) if not path.exists())


def keep(layout: Layout, name: str, parts: Iterable[bytes]) -> None:
    """Put a copy of evidence in quarantine; without room for it, log that and go on.

    Raises ReadFailed, where reading a part does.
    """
    try:
        write_parts(free_place(layout, name), parts)
    except ReadFailed:
        raise
    except OSError as error:
        log.error("%s could not be kept in %s: %s", name, layout.quarantine, error.strerror)


def set_aside(layout: Layout, path: Path, reason: str) -> None:
    """Move a file that cannot be used to quarantine."""
    os.rename(path, free_place(layout, path.name))
    sync_directory(path.parent)
    sync_directory(layout.quarantine)
    log.error("%s moved to %s: %s", path.name, layout.quarantine, reason)


class Mapping:
    """A file's bytes, shared with every process that maps it.

    `bytes` uint8[length]; `address` of the first byte, for kernels.
    """

    def __init__(self, fd: int, *, length: int | None = None) -> None:
        """Map a file that is open to be read and written; the descriptor is closed. Raises OSError."""
        try:
            self.length = length or os.fstat(fd).st_size
            self._map = mmap.mmap(fd, self.length, mmap.MAP_SHARED)
        finally:
            os.close(fd)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.address = address_of(self.bytes)

    def let_go(self, begin: int, end: int) -> int:
        """Take the whole pages from `begin`, where one begins, to `end` out of this process's memory.

        The file has them. Returns the offset of the first that stays.
        """
        end &= -mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, begin, end - begin)
        return end

    def close(self) -> None:
        """Unmap. Views of `bytes` that others keep stay valid, and keep the mapping alive."""
        del self.bytes
        self.address = Address(0)
        try:
            self._map.close()
        except BufferError:
            # A view still lives; the mapping goes with the last of them.
            return


class Weakness(NamedTuple):
    """A promise that a filesystem does not make."""

    sentence: str
    remedy: str


def weaknesses(directory: Path, *, probe: bool = True) -> Iterator[Weakness]:
    """Each promise that the filesystem of this directory does not make. Raises OSError.

    `probe`: also try it, which needs the right to write there.
    """
    if kind := _FILESYSTEMS.get(_type(directory)):
        name, (sentence, remedy) = kind
        yield Weakness(f"{directory} is on {name}: {sentence}", remedy)
    if probe and not can_reserve(directory):
        yield Weakness(
            f"the filesystem of {directory} cannot reserve space: a full disk can end the intake",
            "use another, such as ext4 or xfs",
        )


def can_reserve(directory: Path) -> bool:
    """Whether space for a file can be reserved there by the filesystem itself, not by writing zeros.

    A full disk, or another error, tells nothing: the code that needs the space reports it.
    """
    path = directory / PROBE
    libc = ctypes.CDLL(None, use_errno=True)
    fd = make_anew(path)
    try:
        failed = libc.fallocate(fd, 0, ctypes.c_int64(0), ctypes.c_int64(4096)) != 0
        return not (failed and ctypes.get_errno() in (errno.EOPNOTSUPP, errno.ENOSYS))
    finally:
        os.close(fd)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _type(directory: Path) -> int:
    """f_type of the filesystem, its first word; 0 when statfs fails."""
    found = (ctypes.c_uint64 * (_STATFS_BYTES // 8))()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(directory), ctypes.byref(found)) != 0:
        return 0
    return int(found[0]) & 0xFFFFFFFF
