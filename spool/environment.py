"""The LMDB environment that the marks lie in: opened without harm, begun anew when it cannot be read.

One of the two homes of lmdb; `spool.index` is the other.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb

from spool.disk import FILE_MODE, is_regular, make_directory, sync_directory
from spool.lock import is_in_use
from spool.soundness import are_files, is_harmless, set_modes

log = logging.getLogger("bruce.spool")

MAP_BYTES = 4 << 30
"""Address space, not disk: one bit a message between the floor and the last one handed over."""
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
"""What lmdb raises when a file is no environment of ours, or damaged."""
LMDB_REFUSES = lmdb.Error
"""What lmdb raises for any reason."""

Opened = tuple[Any, dict[bytes, Any]]
"""The environment, and its tables by name."""


def look_at(directory: Path) -> Opened:
    """Open it to read; nothing is changed. Raises LMDB_REFUSES, also when there is none."""
    # Without a place in the lock file a writer would reuse pages under our eyes. Without a writer nothing is
    # written.
    in_use = is_in_use(directory / "lock.mdb")
    if not in_use and not is_harmless(directory):
        raise _harmed(directory)
    return open_tables(directory, readonly=True, lock=in_use and os.access(directory / "lock.mdb", os.W_OK))


def open_surely(directory: Path) -> Opened:
    """Open it to write, made when there is none; what cannot be read is set aside. Raises LMDB_REFUSES."""
    make_directory(directory)
    lock = directory / "lock.mdb"
    if os.path.lexists(lock) and not is_regular(lock):
        os.replace(lock, directory / "lock.mdb.damaged")
    try:
        opened = _open_whole(directory)
    except UNREADABLE as error:
        log.error(
            "%s cannot be read, and is begun anew: what was delivered is sent again: %s", directory, error
        )
        os.replace(directory / "data.mdb", directory / "data.mdb.damaged")
        lock.unlink(missing_ok=True)
        opened = open_tables(directory, readonly=False, lock=True)
    opened[0].reader_check()
    # LMDB syncs its file, and not the name of it.
    sync_directory(directory)
    return opened


def _open_whole(directory: Path) -> Opened:
    """Touch every row: damage to the file's structure shows here, and not between two commits."""
    if not is_harmless(directory):
        raise _harmed(directory)
    env, tables = open_tables(directory, readonly=False, lock=True)
    try:
        with env.begin() as txn:
            for table in tables.values():
                with txn.cursor(table) as cursor:
                    for _ in cursor:
                        pass
    except UNREADABLE:
        env.close()
        raise
    return env, tables


def open_tables(directory: Path, *, readonly: bool, lock: bool) -> Opened:
    """Open it as it is. `lock`: with a place in the lock file. Raises LMDB_REFUSES."""
    if not are_files(directory):
        raise _harmed(directory)
    env = lmdb.open(
        os.fsencode(directory),
        map_size=MAP_BYTES,
        max_dbs=len(_TABLES),
        readonly=readonly,
        lock=lock,
        create=not readonly,
        mode=FILE_MODE,
    )
    if not readonly:
        set_modes(directory)
    try:
        tables = {}
        for name in _TABLES:
            with suppress(*([lmdb.NotFoundError] if name in _LATER_TABLES else [])):
                tables[name] = env.open_db(name, create=not readonly)
    except lmdb.Error:
        env.close()
        raise
    return env, tables


def _harmed(directory: Path) -> lmdb.Error:
    return lmdb.CorruptedError(f"{directory} lacks pages, or has others in their place")
