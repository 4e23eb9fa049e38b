"""A disk that cannot read some bytes: pread and preadv fail as in the kernel, other calls do not.

For tests in this process. tests/forgetful has a filesystem for which the kernel itself fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

FOR_EVER = 1 << 62


@contextlib.contextmanager
def unreadable(path: Path, first: int = 0, end: int = FOR_EVER) -> Iterator[None]:
    """Bytes [first, end) of a file cannot be read: bytes before them are returned, then there is EIO."""
    pread, preadv = os.pread, os.preadv

    def room(fd: int, length: int, offset: int) -> int:
        """The number of readable bytes from an offset."""
        if offset + length <= first or offset >= end or _name(fd) != str(path):
            return length
        if offset >= first:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return first - offset

    def read(fd: int, length: int, offset: int) -> bytes:
        return pread(fd, room(fd, length, offset), offset)

    def read_into(fd: int, buffers: list[memoryview], offset: int) -> int:
        (buffer,) = buffers
        return preadv(fd, [buffer[: room(fd, len(buffer), offset)]], offset) if len(buffer) else 0

    with mock.patch.object(os, "pread", read), mock.patch.object(os, "preadv", read_into):
        yield


def _name(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")
