"""The index: where to enter the log. One of the two users of lmdb. Beside it: `spool.index.committed`.

Derived from the segments, written by the keeper alone and without syncing: after a power loss such a file
can read silently wrong. So the process that opens the spool removes it, and the keeper builds it again from
the few segments that have no footer. It may be deleted, rotten or behind at any time, and a full disk may
keep it so: the log goes on, and opening the spool gives the same result.

    meta      "boot", "spool" -> 16 bytes each
    entry     first sequence:u64be -> segment number, offset, digest before it, burst before it    a frame
              every 64 KiB or more, of the segments that have no footer yet
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import lmdb

from spool.format.frame import Tail
from spool.index.committed import CommittedFile
from spool.index.soundness import are_files, is_harmless, reserve_lock, set_modes
from spool.storage.disk import LOCK_MODE, make_directory
from spool.storage.failpoint import reach
from spool.storage.lock import is_in_use

log = logging.getLogger("bruce.keeper")

Entry = tuple[int, int, int, int, int]
"""A frame to enter the log at: its first sequence, segment number, offset, digest and burst before it."""

MAP_BYTES = 256 << 20
"""Address space, not disk: an entry takes 60 bytes, and sealed segments have none."""
_ENTRY = struct.Struct("<QQQQ")
_KEY = struct.Struct(">Q")
_LOOKING = threading.RLock()
"""Held by a thread that reads the index: LMDB refuses to open an environment twice in a process."""


class Index:
    """The index as its one writer has it."""

    def __init__(self, directory: Path, spool: bytes, boot: bytes) -> None:
        """Open the index of this spool and boot, 16 bytes each; one of others, or damaged, is replaced."""
        self._env, self._meta, self._entries = _open(directory)
        self._behind = False
        own = {b"boot": boot, b"spool": spool}
        with self._env.begin() as txn:
            known = {key: txn.get(key, db=self._meta) for key in own}
        if known != own:
            self._env.close()
            shutil.rmtree(directory)
            self._env, self._meta, self._entries = _open(directory)
            with self._writing() as txn:
                for key, value in own.items():
                    txn.put(key, value, db=self._meta)
        self.committed = CommittedFile(directory, spool)

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        """A write transaction; one that fails leaves the index behind, and the log goes on."""
        try:
            with self._env.begin(write=True) as txn:
                yield txn
            self._behind = False
        except lmdb.Error as error:
            if not self._behind:
                log.warning("the index falls behind: %s", error)
            self._behind = True

    def commit(self, number: int, tail: Tail, entries: list[Entry]) -> None:
        """The log is synced up to `tail` in segment `number`; `entries` are those found on the way."""
        # In this order: a reader that looks for entries first finds none behind the end that it finds then.
        self.committed.write(number, tail)
        reach("index.written")
        self.enter(entries)

    def enter(self, entries: list[Entry]) -> None:
        """Add entries of what is committed."""
        if entries:
            with self._writing() as txn:
                for sequence, *entry in entries:
                    txn.put(_KEY.pack(sequence), _ENTRY.pack(*entry), db=self._entries)

    def forget(self, below: int) -> None:
        """Drop the entries below a sequence number: its segments have footers now."""
        with self._writing() as txn, txn.cursor(self._entries) as cursor:
            while cursor.first() and _KEY.unpack(cursor.key())[0] < below:
                cursor.delete()
            reach("index.forgotten")

    def close(self) -> None:
        """Close the files."""
        self.committed.close()
        self._env.close()


class IndexReader:
    """The index for all other processes. Nothing is written, the lock file included."""

    def __init__(self, directory: Path) -> None:
        """Open it. Raises lmdb.Error when there is none, or it cannot be opened without harm."""
        in_use = is_in_use(directory / "lock.mdb")
        if not (are_files(directory) if in_use else is_harmless(directory)):
            raise lmdb.CorruptedError(f"{directory} lacks pages, or has others in their place")
        self._env = lmdb.open(os.fsencode(directory), readonly=True, lock=False, max_dbs=2, create=False)
        self._entries = self._env.open_db(b"entry", create=False)

    def entry(self, sequence: int) -> Entry | None:
        """The last entry at or before a sequence number."""
        with self._env.begin() as txn, txn.cursor(self._entries) as cursor:
            if not cursor.set_range(_KEY.pack(sequence)):
                found = cursor.last()
            else:
                found = cursor.key() == _KEY.pack(sequence) or cursor.prev()
            if not found:
                return None
            first: int = _KEY.unpack(cursor.key())[0]
            number, offset, before, burst = _ENTRY.unpack(cursor.value())
            return first, number, offset, before, burst

    def entries(self) -> list[Entry]:
        """All entries, in order."""
        with self._env.begin() as txn, txn.cursor(self._entries) as cursor:
            rows = [row for row in cursor if len(row[0]) == _KEY.size and len(row[1]) == _ENTRY.size]
        return [(*_KEY.unpack(key), *_ENTRY.unpack(value)) for key, value in rows]

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def read_entries(directory: Path) -> list[Entry] | None:
    """The entries of an index, in order; None when it cannot be read.

    Those that are found before `read_committed` is asked are not behind its end.
    """
    try:
        with _LOOKING, closing(IndexReader(directory)) as reader:
            return reader.entries()
    except lmdb.Error:
        return None


def _open(directory: Path) -> tuple[Any, Any, Any]:
    make_directory(directory)
    try:
        if is_harmless(directory):
            return _environment(directory)
    except lmdb.Error:
        pass
    shutil.rmtree(directory)
    make_directory(directory)
    return _environment(directory)


def _environment(directory: Path) -> tuple[Any, Any, Any]:
    reserve_lock(directory)
    set_modes(directory)
    env = lmdb.open(
        os.fsencode(directory), map_size=MAP_BYTES, max_dbs=2, sync=False, metasync=False, mode=LOCK_MODE
    )
    set_modes(directory)
    with env.begin(write=True) as txn:
        return env, env.open_db(b"meta", txn), env.open_db(b"entry", txn)
