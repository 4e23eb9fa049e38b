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
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest import mock

import numpy as np
import psutil
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from cli.status.snapshot import ROLES, list_workers, take_snapshot
from spool.shared.state import WORKER_WORDS, Field, read_shared_state
from spool.storage.ownership import believed
from status.report import Snapshot
from tests.nursery import ForkedDaemon, nursery

START_S = 120.0
"""To accept messages: once on a machine the kernels are compiled."""
PATIENCE_S = 60.0
"""Longest wait for an event that takes moments, on a machine that has other work."""
_SILENCE_S = 5.0
"""From a partition whose broker is away no end comes."""
ROOT = Path(__file__).resolve().parent.parent
_SHORTEST_S, _LONGEST_S = 0.005, 0.2
"""Between two looks."""
_PROGRESS = [
    Field.WRITTEN_SEQUENCE,
    Field.SYNCED_SEQUENCE,
    Field.FULL,
    Field.SUSPECT,
    Field.LOW_WATERMARK,
    Field.DELIVERED,
    Field.DISCARDED,
    *(Field.WORKERS + WORKER_WORDS * row for row in range(len(ROLES))),
    *(Field.ACK + word for word in range(5)),
    Field.TROUBLE,
    Field.AWAITED,
    Field.QUOTAS,
]
"""The words that change with what a status shows: other changes are seen after a pause."""
_PORTS = [range(first, first + 1000) for first in range(10_000, 18_000, 1000)]
"""The ports of each test worker: below those that the kernel gives to connections."""


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
        self._process: subprocess.Popen[bytes] | ForkedDaemon | None = None
        self._tables: dict[str, dict[str, object]] = {
            "ingest": {"datagram_socket": str(self.socket)},
            "spool": {
                "directory": str(self.spool),
                "segment_bytes": segment_bytes,
                "max_bytes": 256 * segment_bytes,
                "min_free_bytes": 0,
            },
            "kafka": {"bootstrap.servers": servers},
            # No test looks at the shared state unless it asks for one, and many daemons run at a time.
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
        """The supervisor's process id."""
        assert self._process is not None
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        """Start the daemon and wait until its workers run; forked, where that makes no other daemon of it."""
        assert self._process is None
        if not self._prefix and nursery().suits(self.environ):
            self._process = nursery().start(self.environ, self.config, self.log)
        else:
            self._process = self._start_fresh()
        if wait:
            self.await_true(self._runs, START_S)

    def _start_fresh(self) -> subprocess.Popen[bytes]:
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
        words = self.words()
        workers = self.status().workers if words is None else list_workers(words)
        return {worker.role for worker in workers if worker.pid} >= {
            "supervisor",
            "ingest",
            "keeper",
            "delivery",
        }

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
        """The status that `brucectl status` shows; with the daemon dead, too."""
        with mock.patch.dict(os.environ, {"BRUCE_RUNTIME_DIRECTORY": str(self.runtime)}):
            return take_snapshot(self.spool)

    def words(self) -> np.ndarray | None:
        """A copy of the shared state, int64[WORDS]; None where there is none."""
        path = next(self.runtime.glob("*.page"), None)
        return None if path is None else read_shared_state(path, believed(self.spool))

    def await_status(self, condition: Callable[[Snapshot], bool], timeout_s: float = PATIENCE_S) -> Snapshot:
        """The first status seen for which the condition holds. Raises AssertionError after `timeout_s`.

        A snapshot costs milliseconds of CPU time, which the daemon wants, too. So this takes one when the
        shared words have changed and come to rest, and otherwise after a pause that grows.
        """
        end, pause = time.monotonic() + timeout_s, _SHORTEST_S
        while not condition(seen := self.status()):
            if time.monotonic() > end:
                log = self.log.read_text(errors="replace")
                raise AssertionError(f"waited in vain; last seen {seen}\n{log}")
            self._await_rest(pause)
            pause = min(2 * pause, _LONGEST_S)
        return seen

    def _await_rest(self, at_most_s: float) -> None:
        """Return when the shared words have changed and no longer do, or after `at_most_s`."""
        end = time.monotonic() + at_most_s
        first = last = self._progress()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _SHORTEST_S))
            before, last = last, self._progress()
            if before == last != first:
                return

    def _progress(self) -> list[int]:
        words = self.words()
        return [] if words is None else words[_PROGRESS].tolist()

    def await_true(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Ask until it is so. Raises AssertionError after `timeout_s`."""
        end, pause = time.monotonic() + timeout_s, _SHORTEST_S
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def send(self, datagrams: Iterable[bytes], timeout_s: float = PATIENCE_S) -> int:
        """Send each, waiting for room if there is none; the number of messages."""
        sent = 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(timeout_s)
            sender.connect(str(self.socket))
            for datagram in datagrams:
                sender.send(datagram)
                sent += 1
        return sent

    def await_page(self) -> str:
        """The page's address, once the status worker listens: the daemon takes messages before that."""
        port = self._tables["status"]["port"]

        def listens() -> bool:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), PATIENCE_S):
                return True
            return False

        self.await_true(listens)
        return f"http://127.0.0.1:{port}"

    def metrics(self) -> str:
        """The text of /metrics."""
        with urllib.request.urlopen(f"{self.await_page()}/metrics", timeout=PATIENCE_S) as answer:
            return str(answer.read(), "utf-8")

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
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "test",
            "log_level": 0,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    records: list[Message] = []
    # Up to the end of every partition: that shows messages beyond the expected ones.
    ended = set[int | None]()
    heard = time.monotonic()
    end = heard + timeout_s
    try:
        while len(records) < count or (len(ended) < partitions and time.monotonic() < heard + _SILENCE_S):
            for record in consumer.consume(10_000, 0.1):
                error = record.error()
                if error is None:
                    records.append(record)
                    ended.discard(record.partition())
                    heard = time.monotonic()
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended.add(record.partition())
            found = Counter(record.partition() for record in records)
            assert time.monotonic() < end, f"{len(records)} of {count} records of {topic}: {found}"
    finally:
        consumer.close()
    return sorted(records, key=lambda record: (record.partition(), record.offset()))


def _family(pid: int) -> list[psutil.Process]:
    """A process and all below it; none when it has ended and was reaped."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def free_port() -> int:
    """A port of this host that is free at the moment, and that no other worker of the tests is given.

    Two daemons with one port: the second would be without a page, and its test would look at the other's.
    Nor is it one that the kernel gives out: clients of other tests look for brokers there that have ended.
    """
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port := next(ports())))
            return port


@functools.cache
def ports() -> Iterator[int]:
    """The ports of this worker, one after the other, over and over, from a random one on."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % len(_PORTS)
    return itertools.cycle(random.sample(_PORTS[worker], len(_PORTS[worker])))


def alive(process: psutil.Process) -> bool:
    """Whether a process runs. A zombie does while it has a thread left, which may still end its write."""
    try:
        return process.is_running() and (
            process.status() != psutil.STATUS_ZOMBIE or len(_threads(process.pid)) > 1
        )
    except psutil.NoSuchProcess:
        return False


def _threads(pid: int) -> list[str]:
    with suppress(OSError):
        return os.listdir(f"/proc/{pid}/task")
    return []


def halt(pid: int) -> None:
    """SIGSTOP a process, and wait until all its threads have stopped: until then one may still receive."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + PATIENCE_S
    while not all(_is_stopped(task) for task in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def _is_stopped(task: Path) -> bool:
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
