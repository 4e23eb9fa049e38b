"""A `bruce run` in a process of its own, for tests that look at it from outside, kill it, and start it again.

Give it a Kafka that outlives it: `EmbeddedKafka` in the test's process, its `bootstrap_servers` as `servers`.
Every wait has a deadline.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest import mock

import psutil
from confluent_kafka import Consumer, Message, TopicPartition

from cli.snapshot import take_snapshot
from status.snapshot import Snapshot
from tests.nursery import Born, nursery

START_S = 120.0
"""To accept messages: once on a machine the kernels are compiled."""
PATIENCE_S = 60.0
"""For what takes moments, on a machine that has other work: nobody waits longer than it takes."""
ROOT = Path(__file__).resolve().parent.parent
_PORTS = [range(first, first + 1000) for first in range(10_000, 18_000, 1000)]
"""Those of each worker of the tests: below the ones that the kernel gives to connections."""


class RunningBruce:
    """One spool and its daemon. As a context manager it starts, and at the end leaves no process behind."""

    def __init__(
        self,
        directory: Path,
        servers: str,
        *,
        segment_bytes: int = 256 << 10,
        settings: Mapping[str, Mapping[str, object]] | None = None,
        prefix: Sequence[str] = (),
        passed: Sequence[int] = (),
    ) -> None:
        """`directory`: for spool, configuration and log. `settings`: more of bruce.toml, by table and key.

        `prefix`: what the daemon is started by, such as unshare; it must become the daemon.
        `passed`: descriptors that it inherits.
        """
        self._prefix, self._passed = prefix, tuple(passed)
        self.spool = directory / "spool"
        self.config = directory / "bruce.toml"
        self.log = directory / "bruce.log"
        # Short, as a socket's path must be, and on tmpfs, as staging must be.
        self.runtime = Path(tempfile.mkdtemp(prefix="bruce-test-", dir="/dev/shm"))
        self.socket = self.runtime / "bruce.sock"
        self.environ = {
            **_without_bruce(os.environ),
            "BRUCE_RUNTIME_DIRECTORY": str(self.runtime),
            "BRUCE_CONFIG": str(self.config),
        }
        self._process: subprocess.Popen[bytes] | Born | None = None
        self._tables: dict[str, dict[str, object]] = {
            "ingest": {"datagram_socket": str(self.socket)},
            "spool": {
                "directory": str(self.spool),
                "segment_bytes": segment_bytes,
                "max_bytes": 256 * segment_bytes,
                "min_free_bytes": 0,
            },
            "kafka": {"bootstrap.servers": servers},
            # Nobody looks, and many run at a time.
            "status": {"port": 0},
        }
        self.configure(settings or {})

    def configure(self, settings: Mapping[str, Mapping[str, object]]) -> None:
        """Write bruce.toml, with more than was there before; it is read at the next start or reload."""
        for name, keys in settings.items():
            self._tables.setdefault(name, {}).update(keys)
        self.config.write_text(_toml(self._tables), encoding="utf-8")

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        assert self._process is not None
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        """Start the daemon and wait until its workers run; forked, where that makes no other daemon of it."""
        assert self._process is None
        if not self._prefix and nursery().suits(self.environ):
            self._process = nursery().start(self.environ, self.config, self.log)
        else:
            self._process = self._start_anew()
        if wait:
            self.await_true(self._runs, START_S)

    def _start_anew(self) -> subprocess.Popen[bytes]:
        bruce = [sys.executable, "-c", "from cli.app import bruce; bruce()"]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*self._prefix, *bruce, "run", "--config", self.config],
                cwd=ROOT,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=self._passed,
            )

    def _runs(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "the daemon ended:\n" + self.log.read_text(errors="replace")
        if not self.socket.exists() or not (self.spool / "identity").exists():
            return False
        running = {worker.role for worker in self.status().workers if worker.pid}
        return running >= {"supervisor", "ingest", "keeper", "delivery"}

    def kill9(self) -> None:
        """SIGKILL every process of the daemon at once, and wait until all are gone."""
        process, self._process = self._process, None
        assert process is not None
        family = _family(process.pid)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
        self.await_true(lambda: not any(map(alive, family)))

    def tell(self, number: signal.Signals) -> None:
        """Send the supervisor a signal."""
        os.kill(self.pid, number)

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """SIGTERM; the exit code."""
        self.tell(signal.SIGTERM)
        return self.await_end(timeout_s)

    def await_end(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait until it has ended by itself; the exit code."""
        process, self._process = self._process, None
        assert process is not None
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_S)
            raise

    def logged(self, words: str) -> int:
        """How many lines of the log have these words."""
        return sum(words in line for line in self.log.read_text(errors="replace").splitlines())

    def status(self) -> Snapshot:
        """What `brucectl status` shows; with the daemon dead, too."""
        with mock.patch.dict(os.environ, {"BRUCE_RUNTIME_DIRECTORY": str(self.runtime)}):
            return take_snapshot(self.spool)

    def await_status(self, condition: Callable[[Snapshot], bool], timeout_s: float = PATIENCE_S) -> Snapshot:
        """The first status that is so; fails when it takes too long."""
        seen: list[Snapshot] = []

        def look() -> bool:
            seen[:] = [self.status()]
            return condition(seen[0])

        try:
            self.await_true(look, timeout_s)
        except AssertionError:
            log = self.log.read_text(errors="replace")
            raise AssertionError(f"waited in vain; last seen {seen}\n{log}") from None
        return seen[0]

    def await_true(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Ask until it is so; fail when it takes too long."""
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.02)

    def send(self, datagrams: Iterable[bytes], timeout_s: float = PATIENCE_S) -> int:
        """Send each, waiting for room where there is none; how many that were."""
        sent = 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(timeout_s)
            sender.connect(str(self.socket))
            for datagram in datagrams:
                sender.send(datagram)
                sent += 1
        return sent

    def brucectl(
        self, *arguments: object, timeout_s: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[bytes]:
        """Run brucectl to its end, in the daemon's environment."""
        return subprocess.run(
            [sys.executable, "-c", "from cli.app import brucectl; brucectl()", *map(str, arguments)],
            cwd=ROOT,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=timeout_s,
        )

    def close(self) -> None:
        """End what still runs, and give the memory back."""
        if self._process is not None:
            self.kill9()
        shutil.rmtree(self.runtime, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def consume(
    servers: str, topic: str, partitions: int, count: int, timeout_s: float = PATIENCE_S
) -> list[Message]:
    """All records of a topic, by partition and offset, once there are at least `count`; fails without."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test", "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    records: list[Message] = []
    end = time.monotonic() + timeout_s
    try:
        # One more round once all are there: what comes too much is seen as well.
        while len(records) < count or (more := consumer.consume(10_000, 0.5)):
            more = consumer.consume(10_000, 0.1) if len(records) < count else more
            assert all(record.error() is None for record in more), [record.error() for record in more]
            records += more
            assert time.monotonic() < end, f"{len(records)} of {count} records of {topic}"
    finally:
        consumer.close()
    return sorted(records, key=lambda record: (record.partition(), record.offset()))


def _family(pid: int) -> list[psutil.Process]:
    """A process and all below it; nobody, when it has ended and was reaped."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def free_port() -> int:
    """A port of this host that nobody has at the moment, and that no worker beside this one is given.

    Two daemons with one port: the second would be without a page, and its test would look at the other's.
    """
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port := next(ports())))
            return port


@functools.cache
def ports() -> Iterator[int]:
    """Those of this worker, one after the other, over and over, from one by chance on."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % len(_PORTS)
    return itertools.cycle(random.sample(_PORTS[worker], len(_PORTS[worker])))


def alive(process: psutil.Process) -> bool:
    """Whether a process runs; a zombie that nobody has reaped holds nothing any more."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def halt(pid: int) -> None:
    """SIGSTOP a process, and wait until its threads stand: until then who waits for something may get it."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + PATIENCE_S
    while not all(_stands(task) for task in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def _stands(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(") ")[2][0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _without_bruce(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith("BRUCE_")}


def _toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """A table a head, JSON's strings and numbers being TOML's; `topics.NAME` heads a topic's table."""
    lines = []
    for name, keys in tables.items():
        lines.append(f"[{name}]")
        lines += [f'"{key}" = {json.dumps(value)}' for key, value in keys.items()]
    return "\n".join(lines) + "\n"
