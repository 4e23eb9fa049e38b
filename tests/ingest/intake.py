"""An intake in this process: the worker's parts, each of which a test can stop between two steps."""

from __future__ import annotations

import ctypes
import errno
import socket
from collections.abc import Iterable
from pathlib import Path

from ingest.buffers.staging import FEW_SLOTS, MSG_DONTWAIT, MSG_WAITFORONE, Staging, reset, store_word
from ingest.sockets.listening import open_socket, set_timeout
from ingest.worker import burst
from ingest.worker.worker import IngestWorker
from spool.format.frame import BURST
from spool.format.wire import reason_name
from spool.shared.ledger import Ledger
from tests.spool import plain
from tests.spool.fixture import SpoolFixture

SLOTS = 8
SEGMENT_BYTES = 1 << 20
SO_SNDBUFFORCE = 32


class Intake:
    """A socket and its sender, a spool, a staging file, and the worker between them."""

    def __init__(self, directory: Path, slots: int = SLOTS, *, few: int = FEW_SLOTS, **options: int) -> None:
        """`few`: datagrams in a burst, until one has as many."""
        chosen = {"segment_bytes": SEGMENT_BYTES, "max_bytes": 64 << 20, **options}
        self.spool = SpoolFixture(directory, **chosen)
        self.slots, self._few = slots, few
        self.receiver = open_socket(directory / "socket")
        set_timeout(self.receiver)
        self.sender = connect(directory / "socket")
        self.worker = self.start()

    @property
    def staging_path(self) -> Path:
        """The path of the staging file."""
        return self.spool.directory / "staging"

    def start(self) -> IngestWorker:
        """A new worker on what is there, as after a crash; nothing is salvaged yet."""
        self.spool.reopen()
        self.worker = IngestWorker(
            self.receiver,
            Staging(self.staging_path, self.spool.identity.spool, self.slots, self._few),
            self.spool.writer,
            Ledger(self.spool.layout.ledger),
            bell=self.spool.bell,
            last_reader=False,
        )
        return self.worker

    def restart(self) -> int:
        """A successor that salvages; how many datagrams it found."""
        return self.start().salvage()

    def take(self, datagrams: Iterable[bytes]) -> None:
        """Send these and take them in, a burst at a time."""
        self.worker.job[burst.FLAGS] = MSG_WAITFORONE | MSG_DONTWAIT
        waiting = list(datagrams)
        if not self.worker.job[burst.USED]:
            self.worker.job[burst.USED] = self.worker.staging.slots
        while True:
            self.queue(waiting[: self.slots])
            del waiting[: self.slots]
            self.spool.step()
            while self.worker._round():
                continue
            if not waiting:
                return

    def queue(self, datagrams: Iterable[bytes]) -> None:
        """Send these, as far as the socket's queue takes them without waiting."""
        for data in datagrams:
            self.sender.send(data)

    def receive(self) -> int:
        """Steps 1 to 3 of the protocol: reset, arm, recvmmsg. The received messages are not stored."""
        staging, libc = self.worker.staging, ctypes.CDLL(None, use_errno=True)
        reset(staging.buffer(0), staging.slots)
        store_word(staging.armed_at, int(self.worker.writer.tail[BURST]) + 1)
        flags = MSG_WAITFORONE | MSG_DONTWAIT
        fd, headers = self.receiver.fileno(), ctypes.c_void_p(staging.buffer(0))
        got = int(libc.recvmmsg(fd, headers, self.slots, flags, None))
        return got if got >= 0 or ctypes.get_errno() == errno.EAGAIN else -ctypes.get_errno()

    def list_received(self) -> int:
        """Receive, and list it for the store loop, which does not run; how many datagrams."""
        self.receive()
        return self.worker.staging.list_messages(0, self.worker._messages)

    def stored(self) -> list[bytes]:
        """The datagrams in the log, in order."""
        return [data for _, data in self.spool.records()]

    def refused(self) -> dict[str, int]:
        """Datagrams refused at intake, by name of the reason."""
        totals: dict[str, int] = {}
        for segment in self.spool.segments():
            for reason, count in segment.refused().items():
                totals[reason_name(reason)] = totals.get(reason_name(reason), 0) + count
        return totals

    def frames(self) -> list[plain.Frame]:
        """Every frame of the log."""
        return [frame for segment in self.spool.segments() for frame in segment.frames]

    def close(self) -> None:
        """Let go of everything."""
        self.spool.crash()
        self.sender.close()
        self.receiver.close()


def connect(path: Path) -> socket.socket:
    """A sender's socket, with room for datagrams that are too large."""
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 4 << 20)
    except PermissionError:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    sender.connect(str(path))
    return sender
