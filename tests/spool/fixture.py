"""A spool in a temporary directory, small enough for every event, and a disk that can lose power."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import random
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from spool.format.segment import UNBOUND
from spool.format.wire import encode
from spool.index.index import IndexReader
from spool.layout import Layout
from spool.log import recovery
from spool.log.keeper import PAUSES, Keeper, Pauses
from spool.log.writer import Writer
from spool.options import SpoolOptions
from spool.shared.state import Field, SharedState
from tests.spool import plain

SEGMENT_BYTES = 8192
SECTOR = 512


class SpoolFixture:
    """One spool, its appender and its keeper, in this process. Processes die by `crash`."""

    def __init__(
        self,
        directory: Path,
        runtime: Path | None = None,
        *,
        boot: int = 1,
        pauses: Pauses = PAUSES,
        **options: Any,
    ) -> None:
        """`runtime`: the folder of the shared state, if not in `directory`. `boot`: number of the boot."""
        chosen = {
            "segment_bytes": SEGMENT_BYTES,
            "max_bytes": 1 << 20,
            "sync_interval_ms": 0,
            "min_free_bytes": 0,
        }
        chosen.update(options)
        self.directory, self.runtime = directory, runtime or directory
        self.options = SpoolOptions(directory=directory / "spool", **chosen)
        self.layout = Layout(self.options.directory)
        self.boot, self.pauses = boot, pauses
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self.bell)
        self.images: dict[int, bytes] = {}
        """By inode, the bytes that are certainly on the disk: those of the last sync."""
        self._spool: recovery.OpenSpool | None = None
        self.forgets = 0
        """Starts that found messages gone which were written before in the same boot."""
        self.open()

    def _forget(self) -> None:
        self.forgets += 1

    def open(self) -> None:
        """Open the spool like a daemon that starts."""
        with mock.patch.object(recovery, "boot_id", return_value=self.boot.to_bytes(16, "big")), self._disk():
            self._spool = recovery.open_spool(self.options)
            self.identity = self._spool.identity
            self.shared = SharedState(self.runtime / f"page-{self.boot}-{self.identity.spool.hex()}")
            recovery.go_behind_written(self._spool, self.shared, self._forget)
            self.keeper = Keeper(
                self.layout,
                self.identity,
                self.options,
                self.shared,
                bell=self.bell,
                pauses=self.pauses,
            )
            self.writer = Writer(self.layout, self.identity, self.shared)
            self.keeper.step()

    def crash(self) -> None:
        """Every process dies; their stored bytes stay."""
        if self._spool:
            self.writer.close()
            self.keeper._index.close()
            self.keeper._senders.close()
            if self.keeper._ledger:
                self.keeper._ledger.close()
                self.keeper._ledger = None
        self._spool = None
        # The kernel closes these for a dead process; a Python mapping closes its own descriptor.
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{name}")
                reading = fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
                if path == str(self.layout.lock) or (path.startswith(str(self.layout.segments)) and reading):
                    os.close(int(name))

    def stop(self) -> None:
        """A clean end."""
        self.writer.close()
        self.keeper.stopping = True
        with self._disk():
            self.keeper.run()
        assert self._spool
        self._spool.lock.release()
        self._spool = None

    def reopen(self) -> None:
        """Crash, and start again in the same boot."""
        self.crash()
        self.open()

    def lose_power(self, chance: random.Random) -> None:
        """Crash, lose any of the unsynced sectors, and forget the boot."""
        self.crash()
        for path in self.layout.segments.iterdir():
            data = path.read_bytes()
            synced = self.images.get(path.stat().st_ino, bytes(len(data)))
            if synced == data or len(synced) != len(data):
                continue
            kept = bytearray(data)
            for at in range(0, len(data), SECTOR):
                if chance.random() < 0.5:
                    kept[at : at + SECTOR] = synced[at : at + SECTOR]
            with path.open("r+b") as file:
                file.write(kept)
        self.boot += 1

    def step(self) -> None:
        """One step of the keeper."""
        with self._disk():
            self.keeper.step()

    def append(self, datagrams: Sequence[bytes], **more: object) -> int:
        """Append one frame; the keeper makes room when needed."""
        if self.writer.tail[0] + 64 + sum(map(len, datagrams)) + 600 > self.writer.capacity:
            self.step()
        return self.writer.append(datagrams, **more)  # type: ignore[arg-type]

    def fill(self, frames: int, *, messages: int = 3, value: bytes = b"v" * 50) -> list[bytes]:
        """Append frames of distinct messages; returns the datagrams."""
        first = int(self.writer.tail[4])
        sent = []
        for f in range(frames):
            burst = [
                encode(b"t%d" % (i % 2), b"%d:" % (first + f * messages + i) + value) for i in range(messages)
            ]
            self.append(burst)
            sent += burst
        return sent

    @property
    def synced(self) -> int:
        """The next sequence number that is not synced."""
        return int(self.shared.words[Field.SYNCED_SEQUENCE])

    def segments(self) -> list[plain.Segment]:
        """Every segment in use, in order, as the second reader sees it."""
        paths = [self.layout.segment(*pair) for pair in self.layout.list_segments()]
        spares = [self.layout.segment(n, ".spare") for n in self.layout.list_spares()]
        read = [plain.read_segment(path.read_bytes()) for path in paths + spares]
        return [s for s in read if s.header["first_sequence"] != UNBOUND]

    def records(self) -> list[tuple[int, bytes]]:
        """(sequence, datagram) of every message that can be read."""
        return [record for segment in self.segments() for record in segment.messages()]

    def last_path(self) -> Path:
        """The file of the last segment."""
        spares = [self.layout.segment(n, ".spare") for n in self.layout.list_spares()]
        bound = [p for p in spares if plain.read_segment(p.read_bytes()).header["first_sequence"] != UNBOUND]
        return bound[-1] if bound else self.layout.segment(*self.layout.list_segments()[-1])

    def index(self) -> IndexReader:
        """A reader of a copy of the index: LMDB opens no environment twice in a process."""
        copy = Path(tempfile.mkdtemp(dir=self.directory)) / "index"
        shutil.copytree(self.layout.index, copy)
        return IndexReader(copy)

    def _disk(self) -> mock._patch:
        """Keep the bytes that each sync makes durable."""
        return _Recorder(self.images)

    def replace(self, **options: Any) -> None:
        """Use other options from the next start on."""
        self.options = dataclasses.replace(self.options, **options)


class _Recorder:
    def __init__(self, images: dict[int, bytes]) -> None:
        self._patches = [mock.patch.object(os, n, self._wrap(getattr(os, n))) for n in ("fsync", "fdatasync")]
        self._images = images

    def _wrap(self, real: object) -> object:
        def sync(fd: int) -> None:
            real(fd)  # type: ignore[operator]
            status = os.fstat(fd)
            if status.st_size < 1 << 20 and os.path.isfile(f"/proc/self/fd/{fd}"):
                with open(f"/proc/self/fd/{fd}", "rb") as file:
                    self._images[status.st_ino] = file.read()

        return sync

    def __enter__(self) -> None:
        for patch in self._patches:
            patch.start()

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()
