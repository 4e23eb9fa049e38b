"""Planted files, crowds at the other doors, clocks, and the death of everything."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ingest.buffers.staging import SUFFIX
from spool.format.wire import MAX_BATCH, encode, encode_batch
from spool.shared.runtime import shared_state_path
from spool.shared.state import Field
from tools.adversaries import planting
from tools.adversaries.attack import Attack, Settings
from tools.adversaries.honest import with_replies
from tools.adversaries.villain import DONE, NOBODY, REFUSED, STOP, Villain, Words, flood

if TYPE_CHECKING:
    from tools.adversaries.arena import Arena

COMMAND_S = 15.0
_LIE = 1 << 40


class PlantedPage(Attack):
    """Another user plants the shared state before the start, in a directory that all may write to.

    While the daemon runs the user truncates its files: the daemon may not believe, follow or map any of them.
    """

    name = "planted-page"
    timed = False

    def before(self, arena: Arena) -> None:
        """Learn the names that the daemon uses by letting it run once, and plant each of them."""
        arena.bruce.runtime.chmod(0o1777)
        arena.bruce.start()
        words = arena.bruce.shared()
        names = [path.name for path in arena.bruce.runtime.rglob("bruce-*.*") if path.is_file()]
        arena.bruce.stop()
        for path in list(arena.bruce.runtime.iterdir()):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        shared = shared_state_path(arena.bruce.runtime, *arena.identity())
        data = bytearray(b"" if words is None else words.tobytes())
        for field in (Field.LOW_WATERMARK, Field.READ_POSITION) if data else ():
            data[8 * field : 8 * field + 8] = _LIE.to_bytes(8, "little")
        self._own, self._spool = arena.bruce.runtime / f"bruce-{os.geteuid()}", arena.identity()[0]
        self._victim = arena.directory / "victim"
        self._victim.write_text("of root\n")
        with Villain(lambda _words: self.plant(shared, names, bytes(data))):
            time.sleep(0.5)

    def plant(self, shared: Path, names: list[str], data: bytes) -> None:
        """Write a shared state with a lie in it: all is delivered."""
        del names
        shared.write_bytes(data)
        shared.chmod(0o666)

    def step(self, arena: Arena) -> None:
        """Truncate all runtime files that belong to the attacker."""
        with Villain(lambda _words: cut(arena.bruce.runtime)):
            time.sleep(1.0)
        if self._victim.read_bytes() != b"of root\n":
            arena.report("a link that another user planted was followed, and a file of root's changed")


class PlantedLink(PlantedPage):
    """Links to a file of root's have the names of the daemon's files: it may follow none of them."""

    name = "planted-link"

    def plant(self, shared: Path, names: list[str], data: bytes) -> None:
        del data, names
        os.symlink(self._victim, shared.with_name(f"{shared.name}.tmp"))


class PlantedStaging(PlantedPage):
    """A regular file by the name of the staging that an earlier release would have left, with messages in it.

    They have root's uid and a topic that [access] forbids: none may be stored.
    """

    name = "planted-staging"

    def plant(self, shared: Path, names: list[str], data: bytes) -> None:
        del data, names
        plant_staging(shared.with_suffix(SUFFIX), self._spool)


class SquattedDirectory(PlantedPage):
    """Another user has the name of the daemon's directory, with a shared state and staging in it.

    The daemon starts with a directory of its own, and believes neither.
    """

    name = "squatted-directory"

    def plant(self, shared: Path, names: list[str], data: bytes) -> None:
        self._own.mkdir()
        self._own.chmod(0o777)
        super().plant(self._own / shared.name, names, data)
        plant_staging((self._own / shared.name).with_suffix(SUFFIX), self._spool)


def plant_staging(path: Path, spool: bytes) -> None:
    """Write forged staging."""
    data, size = planting.staging(spool)
    path.write_bytes(data)
    os.truncate(path, size)
    path.chmod(0o600)


class PlantedPipe(PlantedPage):
    """FIFOs under the names of all runtime files: the start neither hangs nor fails."""

    name = "planted-pipe"

    def plant(self, shared: Path, names: list[str], data: bytes) -> None:
        del data
        for name in {shared.name, *names}:
            os.mkfifo(shared.with_name(name), 0o666)


def cut(directory: Path) -> None:
    """Truncate every file of a directory that we may write to."""
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            os.truncate(path, 0)


class PlantedFifo(Attack):
    """FIFOs, directories and links named like segments in the spool, while `brucectl` reads it.

    Every command must end, and the daemon go on.
    """

    name = "planted-fifo"
    timed = False

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        del stack
        segments = arena.bruce.spool / "segments"
        os.mkfifo(segments / f"{7_777:020d}.spare")
        os.mkfifo(segments / f"{7_777_777:020d}.seg")
        (segments / f"{8_888:020d}.spare").mkdir()
        (segments / f"{9_999:020d}.spare").symlink_to("/dev/zero")

    def step(self, arena: Arena) -> None:
        """Run the commands, each with its deadline."""
        for arguments in (["status"], ["inspect", "segments"], ["inspect", "verify"]):
            if not brucectl_ends(arena, *arguments):
                arena.report(f"brucectl {' '.join(arguments)} did not end within {COMMAND_S:.0f} s")


def brucectl_ends(arena: Arena, *arguments: str) -> bool:
    """Whether a command ends."""
    command = [sys.executable, "-c", "from cli.app import brucectl; brucectl()", *arguments]
    environ = {**arena.bruce.environ, "BRUCE_CONFIG": str(arena.bruce.config)}
    environ.pop("LD_PRELOAD", None)
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        subprocess.run(command, env=environ, timeout=COMMAND_S, check=False, **quiet)
    except subprocess.TimeoutExpired:
        return False
    return True


class AckFlood(Attack):
    """Clients of ack_socket that ask for replies, also for batches, and never read them.

    The control has as many good messages, without replies.
    """

    name = "ack-flood"
    settings: ClassVar[Settings] = {"ingest": {"ack_socket": "ACK"}}
    _RATE = 2_000
    _KINDS = encode_batch([encode(b"flood", b"")] * MAX_BATCH), *[encode(b"flood", b"v" * 100)] * 19

    def control(self, arena: Arena, stack: ExitStack) -> None:
        run = flood(arena.socket, lambda _words, _number: self._KINDS, self._RATE)
        arena.villains.append(stack.enter_context(Villain(run)))

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        folder = arena.sockets / "clients"
        folder.mkdir()
        folder.chmod(0o777)

        def run(words: Words) -> None:
            clients = []
            for number in range(200):
                client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                client.bind(str(folder / f"{number}"))
                (folder / f"{number}").chmod(0o666)
                client.settimeout(0.2)
                clients.append(client)
            kinds = [with_replies(one) for one in self._KINDS]
            while not words[STOP]:
                for data, client in zip(itertools.cycle(kinds), clients, strict=False):
                    try:
                        client.sendto(data, str(arena.ack))
                    except OSError:
                        words[REFUSED] += 1
                    else:
                        words[DONE] += 1
                time.sleep(0.1)

        arena.villains.append(stack.enter_context(Villain(run)))


class StatusCrowd(Attack):
    """2,500 connections to the status page that ask for nothing, and as many that ask for the stream."""

    name = "status-crowd"
    settings: ClassVar[Settings] = {"status": {"port": 0}}

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        port = arena.status_port

        def run(words: Words) -> None:
            held: list[socket.socket] = []
            while not words[STOP]:
                if len(held) >= 5_000:  # noqa: PLR2004
                    time.sleep(0.1)
                    continue
                client = socket.socket()
                try:
                    client.settimeout(0.5)
                    client.connect(("127.0.0.1", port))
                    if len(held) % 2:
                        client.send(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
                except OSError:
                    words[REFUSED] += 1
                    client.close()
                    time.sleep(0.05)
                    continue
                words[DONE] += 1
                held.append(client)

        arena.villains.append(stack.enter_context(Villain(run, NOBODY)))

    def step(self, arena: Arena) -> None:
        """/healthz still answers a monitor of the service."""
        time.sleep(0.5)
        try:
            with socket.create_connection(("127.0.0.1", arena.status_port), 5.0) as client:
                client.settimeout(5.0)
                client.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                answered = client.recv(64).startswith(b"HTTP/1.1")
        except OSError:
            answered = False
        if not answered:
            arena.report("/healthz did not answer within 5 s")


class ClockJumps(Attack):
    """The monotonic clock jumps ahead by minutes, hours and years, again and again, while Kafka is away."""

    name = "clock-jumps"
    timed = False
    clock = True
    _JUMPS = (60, 3_600, 86_400, 10 * 365 * 86_400)

    def __init__(self) -> None:
        self._number = 0

    def step(self, arena: Arena) -> None:
        """One more jump, with messages in flight."""
        time.sleep(1.0)
        arena.target.stop_all()
        time.sleep(0.5)
        arena.clock_words[0] += self._JUMPS[self._number % len(self._JUMPS)]
        self._number += 1
        time.sleep(0.5)
        arena.target.start_all()


class KillAll(Attack):
    """Every process dies at once, repeatedly, while another process holds the socket: nothing is lost."""

    name = "kill-all"
    timed = False

    def control(self, arena: Arena, stack: ExitStack) -> None:
        arena.flood_good(stack, rate=5_000)

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        arena.flood_good(stack, rate=5_000)

    def step(self, arena: Arena) -> None:
        time.sleep(float(np.random.default_rng(arena.next_number()).uniform(0.2, 1.5)))
        arena.kill_all()
        arena.bruce.start()
