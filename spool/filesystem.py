"""What the filesystem of a spool cannot promise, told at the start.

A store into a mapped file must find its block. Where blocks cannot be reserved, or are written elsewhere each
time, a full disk ends the appender by SIGBUS: its burst is salvaged, and given up after three attempts. The
free-space reserve keeps that away as long as nobody else takes the space; so such a filesystem is no reason
to refuse the start, as it would be on many hosts, and a reason to say so.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from spool.disk import make_anew

PROBE = "probe.tmp"
_STATFS_BYTES = 256


class Weakness(NamedTuple):
    """A promise that a filesystem does not make."""

    sentence: str
    remedy: str


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
_KINDS = {
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
"""By f_type of statfs(2): name, and what is to be said."""


def weaknesses(directory: Path, *, probe: bool = True) -> Iterator[Weakness]:
    """Each promise that the filesystem of this directory does not make. Raises OSError.

    `probe`: also by trying, which takes the right to write there.
    """
    if kind := _KINDS.get(_type(directory)):
        name, (sentence, remedy) = kind
        yield Weakness(f"{directory} lies on {name}: {sentence}", remedy)
    if probe and not can_reserve(directory):
        yield Weakness(
            f"the filesystem of {directory} cannot reserve space: a full disk can end the intake",
            "use another, such as ext4 or xfs",
        )


def can_reserve(directory: Path) -> bool:
    """Whether space for a file can be reserved there by the filesystem itself, not by writing zeros.

    A full disk, or another error, tells nothing, and is left to whoever needs the space.
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
    """f_type of the filesystem, its first word; 0 when it cannot be told."""
    found = (ctypes.c_uint64 * (_STATFS_BYTES // 8))()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(directory), ctypes.byref(found)) != 0:
        return 0
    return int(found[0]) & 0xFFFFFFFF
