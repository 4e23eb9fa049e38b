"""An intake as real processes: worker and keeper forked, killed and forked again; senders that count."""

from __future__ import annotations

import os
import random
import signal
import struct
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ingest.datagram import open_socket, set_timeout
from ingest.fd_store import FdStore
from ingest.kernels import compile_kernels
from ingest.lines import Lines, make_bells
from ingest.listener import listen_tcp, listen_unix
from ingest.staging import Staging
from ingest.stream_worker import StreamWorker
from ingest.worker import IngestWorker
from spool.format import body_room
from spool.histogram import SIZE_WORDS, read_sizes
from spool.keeper import Keeper
from spool.ledger import Ledger, read_ledger
from spool.options import SpoolOptions
from spool.page import Field, Page
from spool.recovery import open_spool
from spool.wire import Reason, encode, reason_name
from spool.writer import Writer
from tests.ingest.intake import connect
from tests.spool import plain

PATIENCE_S = 120
"""For what should take milliseconds, on a machine that has other work."""

CHILDREN: set[int] = set()
"""Those of `fork` that nobody has waited for."""


def fork(run: Callable[[], object]) -> int:
    """Run this in a child that ends with it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    pid = os.fork()
    if pid:
        CHILDREN.add(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        return pid
    try:
        # As the supervisor does: who has not yet said how it ends in order will be told again.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        run()
        os._exit(0)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        os._exit(1)


def await_end(pid: int, *, asking: bool = False) -> int:
    """The exit code of a child, told to stop meanwhile if `asking`; it is killed when it takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        if asking:
            os.kill(pid, signal.SIGTERM)
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            CHILDREN.discard(pid)
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


def end_children() -> None:
    """Kill who is left when a test has failed, and wait for it."""
    for pid in list(CHILDREN):
        os.kill(pid, signal.SIGKILL)
        await_end(pid)


class Processes:
    """The processes of one intake, by role."""

    def __init__(self, directory: Path, slots: int = 16, *, stream_limit: int = 0, **options: Any) -> None:
        """`stream_limit`: with a stream worker, too, for messages of so many bytes."""
        self.options = SpoolOptions(directory=directory / "spool", **{"min_free_bytes": 0, **options})
        self.directory, self.slots = directory, slots
        self.path = directory / "socket"
        self.spool = open_spool(self.options)
        self.layout = self.spool.layout
        self.page = Page(directory / "page")
        self.open_socket()
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        self.stream_limit, self.stream_path = stream_limit, directory / "stream"
        self.bells, self.store = make_bells(), FdStore()
        self.listeners = [listen_unix(self.stream_path), listen_tcp(0)] if stream_limit else []
        Ledger(self.layout.ledger)
        compile_kernels()
        self.pids: dict[str, int] = {}
        # As the daemon does: two workers that make it at once would each map their own.
        if lines := self._lines():
            lines.close()
        for role in ("keeper", "ingest", "stream")[: 3 if stream_limit else 2]:
            self.start(role)

    def open_socket(self) -> None:
        """A socket, as every start makes one of its own."""
        if hasattr(self, "receiver"):
            self.receiver.close()
        self.receiver = open_socket(self.path)
        set_timeout(self.receiver)

    def start(self, role: str) -> None:
        """Fork a role."""
        # What the supervisor does beside waiting.
        self.store.attend()
        self.pids[role] = fork({"ingest": self._ingest, "keeper": self._keep, "stream": self._stream}[role])

    @property
    def tcp(self) -> tuple[str, int]:
        """Where the TCP input listens."""
        host, port = self.listeners[1].getsockname()
        return host, port

    def _lines(self) -> Lines | None:
        if not self.stream_limit:
            return None
        path, room = self.directory / "lines", body_room(self.options.segment_bytes)
        return Lines(path, self.spool.identity.spool, self.stream_limit, self.bells, room=room)

    def _stream(self) -> None:
        lines = self._lines()
        assert lines
        worker = StreamWorker(self.listeners, lines, self.store, self.page)
        signal.signal(signal.SIGTERM, lambda *_: setattr(worker, "stopping", True))
        worker.run()

    def _ingest(self) -> None:
        self.store.forget()
        worker = IngestWorker(
            self.receiver,
            Staging(self.directory / "staging", self.spool.identity.spool, self.slots),
            Writer(self.layout, self.spool.identity, self.page),
            Ledger(self.layout.ledger),
            bell=self.bell,
            last_reader=True,
        )
        if lines := self._lines():
            worker.serve(lines)
        signal.signal(signal.SIGTERM, lambda *_: setattr(worker, "stopping", True))
        worker.run()

    def _keep(self) -> None:
        self.store.forget()
        keeper = Keeper(
            self.layout, self.spool.identity, self.options, self.page, bell=self.bell, announce=lambda: None
        )
        signal.signal(signal.SIGTERM, lambda *_: setattr(keeper, "stopping", True))
        keeper.run()

    def kill(self, role: str) -> int:
        """SIGKILL a role, and start its successor; how the old one had ended."""
        pid = self.pids[role]
        os.kill(pid, signal.SIGKILL)
        code = await_end(pid)
        self.start(role)
        return code

    def stop(self) -> list[int]:
        """A clean end of all, the intake before the keeper; their exit codes."""
        roles = ("stream", "ingest", "keeper")
        return [await_end(self.pids.pop(role), asking=True) for role in roles if role in self.pids]

    def close(self) -> None:
        """Leave no process and no descriptor."""
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)
            await_end(pid)
        self.receiver.close()
        self.store.close()
        for listener in self.listeners:
            listener.close()
        for bell in (self.bells.offered, self.bells.taken):
            os.close(bell)
        self.spool.lock.release()
        os.close(self.bell)

    def segments(self) -> list[plain.Segment]:
        """Every named segment, in order."""
        paths = [self.layout.segment(*pair) for pair in self.layout.list_segments()]
        return [plain.read_segment(path.read_bytes()) for path in paths]

    def discarded(self) -> Counter[str]:
        """Datagrams not stored, in frames and in the ledger, by reason."""
        found: Counter[str] = Counter()
        for segment in self.segments():
            for reason, count in segment.refused().items():
                found[reason_name(reason)] += count
        for row in read_ledger(self.layout.ledger):
            found[reason_name(row.reason)] += row.count
        return found

    def has_exact_sizes(self) -> bool:
        """Whether the page counts each stored message's size, once."""
        stored = [len(data) for segment in self.segments() for _, data in segment.messages()]
        found = read_sizes(self.page.words[Field.SIZES :][:SIZE_WORDS])
        at = np.searchsorted(found.bounds, stored)
        counts = tuple(np.bincount(at, minlength=len(found.counts)).tolist())
        return (found.counts, found.total) == (counts, sum(stored))

    def ledger_by_topic(self) -> Counter[bytes]:
        """Messages discarded without room, by topic."""
        rows = read_ledger(self.layout.ledger)
        return Counter({row.topic: row.count for row in rows if row.reason == Reason.SPOOL_FULL})


def message(who: int, number: int, size: int) -> bytes:
    """A message that says who sent it, which it is, and how long it is."""
    fill = struct.pack(">IQI", who, number, size) * (size // 16)
    return encode(b"from-%d" % who, fill, timestamp=number)


def send(path: Path, who: int, out: Path, enough: Callable[[int], bool]) -> None:
    """Send datagrams of every kind until there are `enough`; write to `out` how many of each were sent."""
    chance, sender, kinds = random.Random(who), connect(path), Counter[str]()
    number = 0
    while not enough(kinds.total()):
        kind = chance.choices(
            ("right", "large", "empty", "size", "api_key", "truncated"), (80, 6, 4, 4, 4, 2)
        )[0]
        if kind in ("right", "large"):
            size = chance.randrange(16, 400) if kind == "right" else chance.randrange(2048, 65450)
            sender.send(message(who, number, size))
            number += 1
            kinds["right"] += 1
            continue
        data = message(who, 0, 32)
        if kind == "empty":
            sender.send(b"")
        elif kind == "size":
            sender.send(data[:-1])
        elif kind == "api_key":
            sender.send(data[:4] + b"\x01\x07" + data[6:])
        else:
            sender.send(bytes(chance.randrange(65537, 120000)))
        kinds["short" if kind == "empty" else kind] += 1
    out.write_text(repr(dict(kinds)))
    sender.close()
