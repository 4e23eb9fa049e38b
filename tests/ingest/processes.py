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

from cli.daemon.compiling import load_loops
from ingest.buffers.connection_buffers import ConnectionBuffers, make_bells
from ingest.buffers.staging import Staging
from ingest.sockets.holding import FdStore
from ingest.sockets.listening import listen_tcp, listen_unix, open_socket, set_timeout
from ingest.streams.stream_worker import StreamWorker
from ingest.worker.worker import IngestWorker
from spool.format.segment_format import body_room
from spool.format.wire import Reason, encode, reason_name
from spool.log.keeper import Keeper
from spool.log.recovery import open_spool
from spool.log.writer import Writer
from spool.options import SpoolOptions
from spool.shared.histogram import SIZE_WORDS, read_sizes
from spool.shared.ledger import Ledger, read_ledger
from spool.shared.state import Field, SharedState
from tests.daemon import free_port
from tests.ingest.intake import connect
from tests.spool import plain

PATIENCE_S = 120
"""For what should take milliseconds, on a machine that has other work."""

CHILDREN: set[int] = set()
"""The children of `fork` that no test has waited for."""


def fork(run: Callable[[], object]) -> int:
    """Run this in a child that ends with it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    pid = os.fork()
    if pid:
        CHILDREN.add(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        return pid
    try:
        # As the supervisor does: a process that has no signal handler yet gets the signal again.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        run()
        os._exit(0)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        os._exit(1)


def await_end(pid: int, *, asking: bool = False) -> int:
    """The exit code of a child, stopped meanwhile if `asking`; it is killed when it takes too long."""
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
    """Kill the children that are left when a test has failed, and wait for them."""
    for pid in list(CHILDREN):
        os.kill(pid, signal.SIGKILL)
        await_end(pid)


class Processes:
    """The processes of one intake, by role."""

    def __init__(self, directory: Path, slots: int = 16, *, stream_limit: int = 0, **options: Any) -> None:
        """`stream_limit`: with a stream worker, too, for messages of up to this many bytes."""
        self.options = SpoolOptions(directory=directory / "spool", **{"min_free_bytes": 0, **options})
        self.directory, self.slots = directory, slots
        self.path = directory / "socket"
        self.spool = open_spool(self.options)
        self.layout = self.spool.layout
        self.shared = SharedState(directory / "page")
        self.open_socket()
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        self.stream_limit, self.stream_path = stream_limit, directory / "stream"
        self.bells, self.store = make_bells(), FdStore()
        self.listeners = [listen_unix(self.stream_path), listen_tcp(free_port())] if stream_limit else []
        Ledger(self.layout.ledger)
        load_loops()
        self.pids: dict[str, int] = {}
        # As the daemon does: two workers that make it at once would each map their own.
        if buffers := self._buffers():
            buffers.close()
        for role in ("keeper", "ingest", "stream")[: 3 if stream_limit else 2]:
            self.start(role)

    def open_socket(self) -> None:
        """A socket, as every start makes one of its own."""
        if hasattr(self, "receiver"):
            self.receiver.close()
            # The keeper has a copy of it.
            self.path.unlink()
        self.receiver = open_socket(self.path)
        set_timeout(self.receiver)

    def start(self, role: str) -> None:
        """Fork a role."""
        # The supervisor does this beside waiting.
        self.store.attend()
        self.pids[role] = fork({"ingest": self._ingest, "keeper": self._keep, "stream": self._stream}[role])

    @property
    def tcp(self) -> tuple[str, int]:
        """The address of the TCP input."""
        host, port = self.listeners[1].getsockname()
        return host, port

    def _buffers(self) -> ConnectionBuffers | None:
        if not self.stream_limit:
            return None
        path, room = self.directory / "lines", body_room(self.options.segment_bytes)
        return ConnectionBuffers(path, self.spool.identity.spool, self.stream_limit, self.bells, room=room)

    def _stream(self) -> None:
        buffers = self._buffers()
        assert buffers
        worker = StreamWorker(self.listeners, buffers, self.store, self.shared)
        signal.signal(signal.SIGTERM, lambda *_: setattr(worker, "stopping", True))
        worker.run()

    def _ingest(self) -> None:
        self.store.forget()
        worker = IngestWorker(
            self.receiver,
            Staging(self.directory / "staging", self.spool.identity.spool, self.slots),
            Writer(self.layout, self.spool.identity, self.shared),
            Ledger(self.layout.ledger),
            bell=self.bell,
            last_reader=True,
        )
        if buffers := self._buffers():
            worker.serve(buffers)
        signal.signal(signal.SIGTERM, lambda *_: setattr(worker, "stopping", True))
        worker.run()

    def _keep(self) -> None:
        self.store.forget()
        keeper = Keeper(self.layout, self.spool.identity, self.options, self.shared, bell=self.bell)
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
        """Whether the shared state counts each stored message's size, once."""
        stored = [len(data) for segment in self.segments() for _, data in segment.messages()]
        found = read_sizes(self.shared.words[Field.SIZES :][:SIZE_WORDS])
        at = np.searchsorted(found.bounds, stored)
        counts = tuple(np.bincount(at, minlength=len(found.counts)).tolist())
        return (found.counts, found.total) == (counts, sum(stored))

    def ledger_by_topic(self) -> Counter[bytes]:
        """Messages discarded without room, by topic."""
        rows = read_ledger(self.layout.ledger)
        return Counter({row.topic: row.count for row in rows if row.reason == Reason.SPOOL_FULL})


def message(who: int, number: int, size: int) -> bytes:
    """A message with its sender, its number and its length."""
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
