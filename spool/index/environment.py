"""The LMDB environment of the marks: opened without harm, made again when it cannot be read.

One of the two users of lmdb; `spool.index.index` is the other.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lmdb

from spool.index.soundness import are_files, has_begun, is_harmless, reserve_lock, set_modes
from spool.storage.disk import LOCK_MODE, is_regular, make_directory, sync_directory
from spool.storage.lock import is_in_use

log = logging.getLogger("bruce.spool")

MAP_BYTES = 4 << 30
"""Address space, not disk: one bit a message between the low watermark and the last one handed over."""
_TABLES = (b"floor", b"mark", b"offset", b"discard", b"sample", b"gone")
_LATER_TABLES = (b"sample", b"gone")
"""Spools of earlier releases do not have them."""
UNREADABLE = (
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.NotFoundError,
)
"""The errors of lmdb for a file that is no environment of ours, or damaged."""
LMDB_REFUSES = lmdb.Error
"""Every error of lmdb."""

_LOOKING = threading.RLock()
"""Held by a thread that looks at an environment, from before it opens it until it has closed it.

LMDB opens an environment once in a process, and refuses a second time. POSIX locks are the process's, too: a
thread that asks for a lock on the lock file, and closes that, drops the entry that another thread has in it.
"""

Opened = tuple[Any, dict[bytes, Any]]
"""The environment, and its tables by name."""


@contextmanager
def look_at(directory: Path) -> Iterator[Opened]:
    """Open it to read; nothing is changed. Raises LMDB_REFUSES, also when there is none.

    Threads of a process look one after the other, so none may keep it open for long.
    """
    with _LOOKING:
        # Without an entry in the lock file a writer would reuse pages while we read them. Without a writer
        # nothing is written.
        in_use = is_in_use(directory / "lock.mdb")
        if not in_use and not is_harmless(directory):
            raise _harmed(directory)
        placed = in_use and os.access(directory / "lock.mdb", os.W_OK)
        opened = open_tables(directory, readonly=True, lock=placed)
        try:
            yield opened
        finally:
            opened[0].close()


def open_surely(directory: Path) -> Opened:
    """Open it to write, or make it; an unreadable one is set aside first. Raises LMDB_REFUSES."""
    make_directory(directory)
    lock = directory / "lock.mdb"
    if os.path.lexists(lock) and not is_regular(lock):
        os.replace(lock, directory / "lock.mdb.damaged")
    if are_files(directory) and not has_begun(directory):
        (directory / "data.mdb").unlink(missing_ok=True)
    try:
        opened = _open_whole(directory)
    except UNREADABLE as error:
        log.error(
            "%s cannot be read, and begins empty: what was delivered is sent again: %s", directory, error
        )
        os.replace(directory / "data.mdb", directory / "data.mdb.damaged")
        lock.unlink(missing_ok=True)
        opened = open_tables(directory, readonly=False, lock=True)
    opened[0].reader_check()
    # LMDB syncs its file, but not the file's name.
    sync_directory(directory)
    return opened


def _open_whole(directory: Path) -> Opened:
    """Open it to write, and read every row: damage shows here, and not between two commits."""
    if not is_harmless(directory):
        raise _harmed(directory)
    env, tables = open_tables(directory, readonly=False, lock=True)
    try:
        with env.begin() as txn:
            for table in tables.values():
                _check_rows(txn, table)
    except UNREADABLE:
        env.close()
        raise
    return env, tables


def _check_rows(txn: Any, table: Any) -> None:
    """Raise CorruptedError unless the rows of a table are in order, and as many as the table says.

    A write that the disk lost leaves a page of an earlier commit. Such a page is sound by itself, and ends
    the process at a later commit.
    """
    last, count = b"", 0
    with txn.cursor(table) as cursor:
        for key, _ in cursor:
            if key <= last:
                raise lmdb.CorruptedError("rows are out of order")
            last, count = key, count + 1
    if count != (expected := txn.stat(table)["entries"]):
        raise lmdb.CorruptedError(f"{count} rows of {expected}")


def open_tables(directory: Path, *, readonly: bool, lock: bool) -> Opened:
    """Open it as it is. `lock`: with an entry in the lock file. Raises LMDB_REFUSES."""
    if not are_files(directory):
        raise _harmed(directory)
    if readonly and not has_begun(directory):
        raise lmdb.NotFoundError(f"{directory} has not begun")
    if not readonly:
        reserve_lock(directory)
        set_modes(directory)
    env = lmdb.open(
        os.fsencode(directory),
        map_size=MAP_BYTES,
        max_dbs=len(_TABLES),
        readonly=readonly,
        lock=lock,
        create=not readonly,
        mode=LOCK_MODE,
    )
    if not readonly:
        set_modes(directory)
    try:
        return env, _tables(env) if readonly else _make_tables(env)
    except lmdb.Error:
        env.close()
        raise


def _tables(env: Any) -> dict[bytes, Any]:
    found = {}
    for name in _TABLES:
        with suppress(*([lmdb.NotFoundError] if name in _LATER_TABLES else [])):
            found[name] = env.open_db(name, create=False)
    return found


def _make_tables(env: Any) -> dict[bytes, Any]:
    # In one transaction: half of them would be no marks.
    with env.begin(write=True) as txn:
        return {name: env.open_db(name, txn) for name in _TABLES}


def _harmed(directory: Path) -> lmdb.Error:
    return lmdb.CorruptedError(f"{directory} lacks pages, or has others in their place")
