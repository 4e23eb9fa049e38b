"""One Kafka broker: a JVM on loopback, with a directory and two fixed ports.

    server.properties    its settings, written by the cluster
    data/                its log directory
    broker.log           log4j's lines, and what the JVM prints
    pid                  the process started last, and the clock tick of its start

Any process with this object may stop a broker that another one started: the object keeps no state of the JVM.
Linux only, since it finds the process in /proc.
"""

import contextlib
import os
import shutil
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tools.kafka_install import LOG4J, KafkaError, fetch_jars, find_program

HOST = "127.0.0.1"
STOP_TIMEOUT_S = 15.0

# size, api key 3, version 0, correlation id, no client id, no topics named
_METADATA_REQUEST = struct.pack(">ihhihi", 14, 3, 0, 0, -1, 0)


@dataclass(frozen=True)
class Broker:
    """A broker that may be running, frozen or dead."""

    id: int
    port: int
    controller_port: int
    directory: Path
    sasl_port: int = 0
    """The port of the listener with authentication; 0 for no such listener."""
    proxied_port: int = 0
    """The broker's port for a proxy; 0 for no such listener."""
    proxy_port: int = 0
    """The port that the broker advertises to clients of the proxy."""
    tls_ports: Mapping[str, int] = field(default_factory=dict)
    """By listener, the ports for TLS."""

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def sasl_address(self) -> str:
        return f"{HOST}:{self.sasl_port}"

    @property
    def proxy_address(self) -> str:
        return f"{HOST}:{self.proxy_port}"

    @property
    def log(self) -> Path:
        return self.directory / "broker.log"

    @property
    def settings(self) -> Path:
        return self.directory / "server.properties"

    @property
    def pid(self) -> int | None:
        """The broker's process; None when it has ended."""
        try:
            pid, started = map(int, (self.directory / "pid").read_text().split())
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            letter, start_ticks = _read_stat(pid)
        except (OSError, ValueError):
            return None
        # The kernel may reuse a pid, but not together with its start time. The command line does not serve:
        # it reads as empty for a moment after the launch.
        return pid if start_ticks == started and letter != "Z" else None

    @property
    def state(self) -> str:
        """running, frozen or dead."""
        pid = self.pid
        try:
            letter = _read_stat(pid)[0] if pid else "Z"
        except OSError:
            letter = "Z"
        return {"T": "frozen", "Z": "dead"}.get(letter, "running")

    @property
    def rss_bytes(self) -> int:
        """Resident memory; 0 when dead."""
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        except OSError:
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def lay_out(self, settings: str) -> None:
        """Make the broker's directory, with its settings and nothing else."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.settings.write_text(settings)

    def begin_format(self, cluster_id: str) -> int:
        """Start the process that writes both ids into the data directory, which KRaft demands."""
        return self._spawn("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self.settings))

    def end_format(self, tool: int) -> None:
        _, status = os.waitpid(tool, 0)
        if status:
            raise KafkaError(f"broker {self.id} could not format its storage; see {self.log}")

    def launch(self) -> None:
        """Start the process and return before it answers."""
        if self.pid is not None:
            raise KafkaError(f"broker {self.id} is already running")
        pid = self._spawn("kafka.Kafka", str(self.settings))
        (self.directory / "pid").write_text(f"{pid} {_read_stat(pid)[1]}")

    def _spawn(self, *arguments: str) -> int:
        java = find_program("java")
        log4j = [f"-Dlog4j2.configurationFile={LOG4J}", f"-Dbruce.kafka.log={self.log}"]
        # The variable of Kafka's own start scripts.
        tuned = os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", "").split()
        command = [java, "-Xmx400m", *tuned, *log4j, "-cp", f"{fetch_jars()}/*", *arguments]
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        output = [
            (os.POSIX_SPAWN_OPEN, 1, self.log, append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        # A session of its own: neither the terminal's Ctrl-C nor our end reaches the broker.
        return os.posix_spawn(java, command, os.environ, file_actions=output, setsid=True)

    def send(self, number: signal.Signals) -> None:
        """Signal the process, which must be running."""
        pid = self.pid
        if pid is None:
            raise KafkaError(f"broker {self.id} is not running")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def await_state(self, state: str) -> bool:
        """Return when the process is running, frozen or dead as wanted; False after 15 s."""
        return _wait_for(lambda: self.state == state, time.monotonic() + STOP_TIMEOUT_S)

    def await_peers(self, ids: set[int], deadline: float) -> None:
        """Return when the broker serves clients and knows all of `ids`."""
        _wait_for(lambda: self.pid is None or ids <= self.known_brokers(), deadline)
        if self.pid is None:
            raise KafkaError(f"broker {self.id} ended before it answered; see {self.log}")
        if not ids <= self.known_brokers():
            raise KafkaError(f"broker {self.id} did not answer in time; see {self.log}")

    def known_brokers(self) -> set[int]:
        """The ids in the broker's own metadata; empty while it does not answer."""
        try:
            with socket.create_connection((HOST, self.port), timeout=2) as connection:
                connection.sendall(_METADATA_REQUEST)
                with connection.makefile("rb") as answer:
                    return _read_broker_ids(answer)
        except (OSError, struct.error):
            return set()


def _read_stat(pid: int) -> tuple[str, int]:
    """A process's state letter and the clock tick of its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _read_broker_ids(answer: BinaryIO) -> set[int]:
    """Metadata v0: size:i32 correlation:i32 count:i32 (id:i32 host:(i16, bytes) port:i32)*."""
    ids = set()
    _size, _correlation, count = struct.unpack(">iii", answer.read(12))
    for _ in range(count):
        broker_id, host_bytes = struct.unpack(">ih", answer.read(6))
        answer.read(host_bytes + 4)
        ids.add(broker_id)
    return ids


def _wait_for(condition: Callable[[], bool], deadline: float) -> bool:
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
