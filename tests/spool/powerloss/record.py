"""A recording disk: the changes of a life to a spool's files, and the data that each sync made durable.

The model is the weakest that POSIX allows. Stored data may reach the disk at any time, sector by
sector, in any order; a file's sync makes its content and its size durable, and says nothing of its name; a
directory's sync makes the names in it durable. A rename happens whole or not at all. After a sync that
failed the stores before it count as clean: no later sync writes them.

Stores through a mapping are no calls. So nothing is intercepted but the calls that write, change names or
sync, and at each of these, and whenever the life says so, all files are compared with what they held before.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

SECTOR = 512
NEVER = 1 << 62
PASSED_OVER = frozenset(("index", "lock", "lock.mdb", "owner"))
"""Derived files, and files that mean nothing to another boot."""


@dataclass(slots=True)
class Event:
    """A change of the inode `inode`. `durable`: the number of events after which it is certain."""

    inode: int
    durable: int = NEVER
    lost: bool = False
    """A sync of it failed: no later one covers it."""


@dataclass(slots=True)
class Stored(Event):
    """Sectors of a file were changed: {number of the sector: its bytes}."""

    sectors: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class Sized(Event):
    """A file was made shorter or longer."""

    size: int = 0


@dataclass(slots=True)
class Named(Event):
    """Names in a directory were changed, all at once: {name: inode, None for a name that is gone}.

    `elsewhere`: the same of a second directory, for a rename from one to another.
    """

    names: dict[str, int | None] = field(default_factory=dict)
    elsewhere: tuple[int, dict[str, int | None]] | None = None


@dataclass(slots=True)
class Synced(Event):
    """A sync has finished."""


class Recorder:
    """Everything that happens below `root`."""

    def __init__(self, root: Path, *, note: Callable[[], None] = lambda: None) -> None:
        """`note` is called before each event is added."""
        self.root, self.note = root, note
        self.events: list[Event] = []
        self.directories: set[int] = set()
        self._names: dict[int, dict[str, int]] = {}
        self._content: dict[int, bytes] = {}
        self._pending: dict[int, list[Event]] = {}
        self.failing: Callable[[str], bool] = lambda _: False
        """Whether the sync of this path must fail now."""
        self.top = root.stat().st_ino
        self.observe()

    def observe(self) -> None:
        """Record the changes since the last look."""
        names: dict[int, dict[str, int]] = {}
        content: dict[int, bytes] = {}
        self._look(self.root, names, content)
        for inode, data in content.items():
            self._compare(inode, self._content.get(inode, b""), data)
        # A file that has lost its last name is not compared any more: no process can open it.
        self._content = content
        changed = [(d, _changes(self._names.get(d, {}), now)) for d, now in names.items()]
        self._rename([(d, c) for d, c in changed if c])
        self._names = names
        self.directories |= names.keys()

    def _look(self, path: Path, names: dict[int, dict[str, int]], content: dict[int, bytes]) -> None:
        here = names.setdefault(path.stat().st_ino, {})
        for entry in sorted(os.scandir(path), key=lambda e: e.name):
            if entry.name in PASSED_OVER:
                continue
            here[entry.name] = entry.inode()
            if entry.is_dir():
                self._look(Path(entry.path), names, content)
            elif entry.inode() not in content:
                content[entry.inode()] = Path(entry.path).read_bytes()

    def _compare(self, inode: int, before: bytes, now: bytes) -> None:
        if before == now:
            return
        if len(before) != len(now):
            self._add(Sized(inode, size=len(now)))
        sectors = -(-max(len(before), len(now)) // SECTOR)
        old, new = (np.frombuffer(d.ljust(sectors * SECTOR, b"\0"), "V512") for d in (before, now))
        changed = np.flatnonzero(old != new).tolist()
        if changed and len(before) <= len(now):
            self._add(Stored(inode, sectors={n: new[n].tobytes() for n in changed}))
        elif changed:
            # Made shorter: bytes behind its end are no store.
            kept = {n: new[n].tobytes() for n in changed if n * SECTOR < len(now)}
            self._add(Stored(inode, sectors=kept))

    def _rename(self, changed: list[tuple[int, dict[str, int | None]]]) -> None:
        for directory, names in changed[:1]:
            self._add(Named(directory, names=names, elsewhere=changed[1] if len(changed) > 1 else None))
        for directory, names in changed[2:]:
            self._add(Named(directory, names=names))

    def _add(self, event: Event) -> None:
        self.note()
        self.events.append(event)
        self._pending.setdefault(event.inode, []).append(event)
        if isinstance(event, Named) and event.elsewhere:
            self._pending.setdefault(event.elsewhere[0], []).append(event)

    def sync(self, inode: int) -> None:
        """All earlier changes of it are durable."""
        self.note()
        self.events.append(Synced(inode))
        for event in self._pending.pop(inode, []):
            if not event.lost:
                event.durable = min(event.durable, len(self.events))

    def fail(self, inode: int) -> None:
        """Its sync failed: its earlier changes may be on the disk or not, for good."""
        for event in self._pending.pop(inode, []):
            event.lost = event.durable == NEVER

    def committed(self, path: Path, before: bytes) -> None:
        """LMDB has committed: pages, sync, the page that says which are valid, sync. `before`: the file."""
        inode, now = path.stat().st_ino, path.read_bytes()
        metas = 2 * os.sysconf("SC_PAGE_SIZE")
        self._content[inode] = before
        between = before[:metas] + now[metas:]
        self._compare(inode, before, between)
        self.sync(inode)
        self._compare(inode, between, now)
        self.sync(inode)
        self._content[inode] = now

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Record the changes inside the block."""
        wrapped: dict[str, Callable[[Any], Any]] = {
            **dict.fromkeys(("fsync", "fdatasync"), self._syncing),
            "pwrite": self._writing,
            **dict.fromkeys(("rename", "replace", "unlink", "link", "mkdir", "open"), self._naming),
        }
        with contextlib.ExitStack() as stack:
            for name, wrap in wrapped.items():
                stack.enter_context(mock.patch.object(os, name, wrap(getattr(os, name))))
            yield
            self.observe()

    def _syncing(self, _real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            self.observe()
            path = os.readlink(f"/proc/self/fd/{fd}")
            if self.failing(path):
                self.fail(os.fstat(fd).st_ino)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self.sync(os.fstat(fd).st_ino)

        return sync

    def _writing(self, real: Callable[..., int]) -> Callable[..., int]:
        def pwrite(fd: int, data: bytes, offset: int) -> int:
            done = real(fd, data, offset)
            self.observe()
            content = self._content.get(os.fstat(fd).st_ino)
            if content is not None:
                # Identical bytes that are overwritten are dirty, too.
                covered = range(offset // SECTOR, -(-(offset + done) // SECTOR))
                sectors = {n: content[n * SECTOR : (n + 1) * SECTOR].ljust(SECTOR, b"\0") for n in covered}
                self._add(Stored(os.fstat(fd).st_ino, sectors=sectors))
            return done

        return pwrite

    def _naming(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            creates = real.__name__ != "open" or arguments[1] & os.O_CREAT
            if creates:
                self.observe()
            try:
                return real(*arguments, **named)
            finally:
                if creates:
                    self.observe()

        return call


def _changes(before: dict[str, int], now: dict[str, int]) -> dict[str, int | None]:
    gone: dict[str, int | None] = dict.fromkeys(before.keys() - now.keys())
    return gone | {name: inode for name, inode in now.items() if before.get(name) != inode}
