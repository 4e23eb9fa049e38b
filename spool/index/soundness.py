"""Whether an LMDB file can be opened without harm, found out by pread before LMDB maps it.

LMDB believes its file. A page behind the end of a file cut short is a SIGBUS, one that a lost write left as
zeros ends the process in an assertion; neither is an exception that could be caught. So the trees of the
newest commit are walked first, each page being looked at, but not its rows, which have checks of their own.
A file that is shorter than its last page says may still be sound: a page that was given out
and taken back in one transaction is never written.

Not for a file that a living process writes: it was found sound when that process opened it, and its pages
change during a walk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spool.errors import NotAFile, SpoolFull
from spool.storage.disk import (
    FILE_MODE,
    LOCK_MODE,
    allocated_bytes,
    is_regular,
    open_or_make,
    open_to_read,
    read_at,
    reserve,
    set_mode,
)

_DB = np.dtype(
    [("page_bytes", "<u4"), ("flags", "<u2"), ("depth", "<u2"), ("counts", "<u8", 4), ("root", "<u8")]
)
_META = np.dtype(
    [
        ("head", "V16"),
        ("magic", "<u4"),
        ("rest", "V20"),
        ("trees", _DB, 2),
        ("last_page", "<u8"),
        ("txn", "<u8"),
    ]
)
"""The first bytes of the two pages with which a file begins; the trees are those of free pages and tables."""
_MAGIC = 0xBEEFC0DE
_PAGE = np.dtype([("number", "<u8"), ("pad", "<u2"), ("flags", "<u2"), ("lower", "<u2"), ("upper", "<u2")])
_NODE = np.dtype([("low", "<u2"), ("high", "<u2"), ("flags", "<u2"), ("key_bytes", "<u2")])
MDB_FILES = "data.mdb", "lock.mdb"
_LOCK_BYTES = 8192
"""For 126 readers, the number that LMDB has by itself."""
_HEADS_BYTES = 1 << 17
"""Two of the largest pages."""
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_BIG, _TABLE = 1, 2
"""Flags of a node: its value is in pages of its own; its value is the root of a table."""
_EMPTY = (1 << 64) - 1

Bytes = npt.NDArray[np.uint8]


class _Unsound(Exception):
    """A page is not what the reference to it says."""


def is_sound(path: Path) -> bool:
    """Whether every page that the newest commit in an LMDB file needs is there, and of its kind."""
    fd = open_to_read(path)
    try:
        _File(fd).check()
    except _Unsound:
        return False
    finally:
        os.close(fd)
    return True


class _File:
    """One file: `page_bytes`, and `txn`, the number of the newest commit."""

    def __init__(self, fd: int) -> None:
        self._fd, self._size, self._seen = fd, os.fstat(fd).st_size, set[int]()
        self.page_bytes = int(self._meta(0)["trees"][0]["page_bytes"])
        if self.page_bytes not in (1 << n for n in range(9, 17)):
            raise _Unsound
        self._newest = max(self._meta(0), self._meta(self.page_bytes), key=lambda meta: int(meta["txn"]))
        self.txn = int(self._newest["txn"])

    def _meta(self, offset: int) -> np.void:
        data = read_at(self._fd, _META.itemsize, offset)
        if len(data) < _META.itemsize:
            raise _Unsound
        meta: np.void = np.frombuffer(data, _META)[0]
        if meta["magic"] != _MAGIC:
            raise _Unsound
        return meta

    def check(self) -> None:
        """Walk all trees. Raises _Unsound."""
        for tree in self._newest["trees"]:
            for table in self._walk(tree):
                if list(self._walk(table)):
                    raise _Unsound

    def _page(self, number: int, kind: int) -> Bytes:
        """A page of this kind, which nothing else refers to."""
        data = read_at(self._fd, self.page_bytes, number * self.page_bytes) if number < 1 << 40 else b""
        if len(data) < self.page_bytes or number in self._seen or number > self._newest["last_page"]:
            raise _Unsound
        self._seen.add(number)
        head = np.frombuffer(data, _PAGE, 1)[0]
        if head["number"] != number or not head["flags"] & kind:
            raise _Unsound
        return np.frombuffer(data, np.uint8)

    def _walk(self, tree: np.void) -> Iterator[np.void]:
        """Look at all pages of a tree; yields the roots of tables in it."""
        if tree["root"] == _EMPTY:
            return
        open_pages = [(int(tree["root"]), int(tree["depth"]))]
        while open_pages:
            number, depth = open_pages.pop()
            page = self._page(number, _LEAF if depth == 1 else _BRANCH)
            nodes, ends = self._nodes(page)
            if depth > 1:
                children = nodes["low"].astype(np.int64) | nodes["high"].astype(np.int64) << 16
                children |= nodes["flags"].astype(np.int64) << 32
                open_pages += [(child, depth - 1) for child in children.tolist()]
                continue
            for row in np.flatnonzero(nodes["flags"]).tolist():
                yield from self._value(page, nodes[row], int(ends[row]))

    def _nodes(self, page: Bytes) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64]]:
        """The nodes of a page, and the offsets of their values."""
        head = page[: _PAGE.itemsize].view(_PAGE)[0]
        lower, upper = int(head["lower"]), int(head["upper"])
        if not _PAGE.itemsize < lower <= upper <= self.page_bytes or lower % 2:
            raise _Unsound
        at = page[_PAGE.itemsize : lower].view("<u2").astype(np.int64)
        if at.min() < upper or at.max() + _NODE.itemsize > self.page_bytes:
            raise _Unsound
        nodes = page[at[:, None] + np.arange(_NODE.itemsize)].view(_NODE)[:, 0]
        values = at + _NODE.itemsize + nodes["key_bytes"]
        if values.max() > self.page_bytes:
            raise _Unsound
        return nodes, values

    def _value(self, page: Bytes, node: np.void, at: int) -> Iterator[np.void]:
        """Look at the pages that a node with flags refers to."""
        size = int(node["low"]) | int(node["high"]) << 16
        if node["flags"] == _TABLE and size == _DB.itemsize and at + size <= self.page_bytes:
            yield page[at : at + size].view(_DB)[0]
        elif node["flags"] == _BIG and at + 8 <= self.page_bytes:
            number = int(page[at : at + 8].view("<u8")[0])
            count = int(self._page(number, _OVERFLOW)[12:16].view("<u4")[0])
            behind = (number + count) * self.page_bytes
            if count * self.page_bytes < size + _PAGE.itemsize or behind > self._size:
                raise _Unsound
        else:
            raise _Unsound


def is_harmless(directory: Path) -> bool:
    """Whether LMDB may open an environment that no process writes: sound, or not begun yet."""
    path = directory / "data.mdb"
    try:
        return are_files(directory) and (path.stat().st_size == 0 or is_sound(path))
    except FileNotFoundError:
        return True


def has_begun(directory: Path) -> bool:
    """Whether anything was ever committed to an environment.

    A process that is killed early leaves an empty file, or its first two pages; a power loss, zeros.
    """
    try:
        fd = open_to_read(directory / "data.mdb")
    except (FileNotFoundError, NotADirectoryError):
        return False
    except NotAFile:
        return True
    try:
        return _File(fd).txn > 0
    except _Unsound:
        return any(read_at(fd, _HEADS_BYTES, 0))
    finally:
        os.close(fd)


def are_files(directory: Path) -> bool:
    """Whether both paths that LMDB would open are files, or free: it opens anything with their names."""
    return all(is_regular(path) or not os.path.lexists(path) for path in map(directory.joinpath, MDB_FILES))


def reserve_lock(directory: Path) -> None:
    """Reserve the blocks of LMDB's lock file, which LMDB changes through a mapping (see `allocate`).

    Not while this process has the environment open: that would drop its locks. Raises SpoolFull, OSError.
    """
    path = directory / "lock.mdb"
    if allocated_bytes(path) >= _LOCK_BYTES:
        return
    fd = open_or_make(path, mode=LOCK_MODE)
    try:
        reserve(fd, 0, _LOCK_BYTES)
    except SpoolFull as error:
        raise SpoolFull(f"{path}: {error}") from error
    finally:
        os.close(fd)


def set_modes(directory: Path) -> None:
    """Give the files of an environment, as far as they are there, the modes of ours.

    LMDB's mode lacks the bits that the umask takes, and is one for both. Its lock file is one of ours: a lock
    on all its bytes, which whoever reads it can take, would keep LMDB from opening.
    """
    for name, mode in zip(MDB_FILES, (FILE_MODE, LOCK_MODE), strict=True):
        with suppress(PermissionError, FileNotFoundError):  # of a filesystem without modes
            set_mode(directory / name, mode)
