"""A program that takes messages for Kafka: started, killed, stopped, and asked for its counters."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from tools.leagues.sender import Channel
from tools.waiting import wait_until

CONFIGURATIONS = Path(__file__).resolve().parent / "configurations"
START_S, STOP_S = 60.0, 90.0
SILENT = (OSError, ValueError, subprocess.SubprocessError)
"""The errors of a peer that does not tell its counters."""
_ACTIVATE = 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'


@dataclass(frozen=True, slots=True)
class Setting:
    """The surroundings of a peer in one case."""

    place: Path
    """An empty directory for configuration and logs."""
    disk: Path
    """An empty directory for queues; it may be a filesystem of its own."""
    bootstrap: str
    topic: str
    other: str
    """A second topic; Kafka does not have it."""
    small: bool = False
    """The disk is small."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Messages, as the peer itself counts them."""

    waiting: int = 0
    discarded: int = 0


class Peer(ABC):
    """One program with one configuration. A context manager, which leaves no process behind."""

    name: ClassVar[str]
    remark: ClassVar[str] = ""
    """One line for the page: how it is configured."""
    cases: ClassVar[tuple[str, ...]] = ()
    """The cases that it takes part in; none given: all."""
    held: ClassVar[bool] = False
    """Its socket is opened beforehand and handed over, as systemd does, so that a kill does not close it."""

    def __init__(self, setting: Setting) -> None:
        """Raises Skipped when it is not installed, or refuses its configuration."""
        self.setting = setting
        # A socket's path must be short.
        self.runtime = Path(tempfile.mkdtemp(prefix="league-", dir="/dev/shm"))
        self.socket = self.runtime / "sock"
        self.listener: socket.socket | None = None
        if self.held:
            self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self.listener.bind(str(self.socket))
        try:
            self.prepare()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def prepare(self) -> None:
        """Find the program and write its configuration. Raises Skipped."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """Its first process; 0 while it does not run."""

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def configuration(self) -> Path:
        """The file with its settings."""

    @abstractmethod
    def start(self) -> None:
        """Return when it takes messages. Raises TookTooLong, RuntimeError."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL all its processes."""

    @abstractmethod
    def stop(self) -> None:
        """SIGTERM, and wait until it has ended."""

    @abstractmethod
    def connect(self) -> Channel:
        """A new connection of a sender. Raises OSError."""

    @abstractmethod
    def counted(self) -> Counted:
        """Of all its lives."""

    def close(self) -> None:
        """Kill it, and remove its sockets."""
        self.kill()
        if self.listener:
            self.listener.close()
        shutil.rmtree(self.runtime, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Daemon(Peer):
    """A peer that is one command, whose counters begin with 0 at each start."""

    template: ClassVar[str]
    """Its file in configurations/."""

    def __init__(self, setting: Setting) -> None:
        self._pid, self._earlier = 0, 0
        self.command: list[str] = []
        self.environ: Mapping[str, str] = os.environ
        super().__init__(setting)

    @property
    def pid(self) -> int:
        return self._pid

    def _ended(self) -> bool:
        """Whether it does not run any more."""
        if self._pid and os.waitpid(self._pid, os.WNOHANG)[0]:
            self._pid = 0
        return not self._pid

    @abstractmethod
    def ready(self) -> bool:
        """Whether it takes messages."""

    @abstractmethod
    def counters(self) -> Counted:
        """Of this life. Raises one of SILENT when it does not say."""

    def before_start(self) -> None:
        """Prepare the files of a new life."""

    def configuration(self) -> Path:
        return self.setting.place / self.template

    def write(self, **values: object) -> None:
        """Fill in the template: each @NAME@."""
        text = (CONFIGURATIONS / self.template).read_text()
        brokers = ", ".join(f'"{broker}"' for broker in self.setting.bootstrap.split(","))
        known = {
            "PLACE": self.setting.place,
            "DISK": self.setting.disk,
            "SOCKET": self.socket,
            "BOOTSTRAP": self.setting.bootstrap,
            "BROKERS": brokers,
            "TOPIC": self.setting.topic,
            "OTHER": self.setting.other,
        }
        for name, value in {**known, **values}.items():
            text = text.replace(f"@{name}@", str(value))
        self.configuration().write_text(text)

    def start(self) -> None:
        self.before_start()
        command = ["setpriv", "--pdeathsig", "KILL", *self.command]
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.setting.place / "log"), append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        if self.listener:
            command = ["sh", "-c", _ACTIVATE, "sh", *command]
            actions.append((os.POSIX_SPAWN_DUP2, self.listener.fileno(), 3))
        self._pid = os.posix_spawnp(command[0], command, self.environ, file_actions=actions, setsid=True)
        wait_until(lambda: self._ended() or self.ready(), START_S, f"{self.name} to start")
        if not self.pid:
            raise RuntimeError(f"{self.name} ended by itself; see {self.setting.place}/log")

    def _keep(self) -> None:
        """Add up what this life has discarded, before it ends."""
        with contextlib.suppress(*SILENT):
            self._earlier += self.counters().discarded

    def kill(self) -> None:
        if not self.pid:
            return
        self._keep()
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._pid = 0

    def stop(self) -> None:
        if not self.pid:
            return
        self._keep()
        os.kill(self._pid, signal.SIGTERM)
        wait_until(self._ended, STOP_S, f"{self.name} to end")

    def counted(self) -> Counted:
        try:
            now = self.counters()
        except SILENT:
            now = Counted()
        return Counted(now.waiting, self._earlier + now.discarded)
