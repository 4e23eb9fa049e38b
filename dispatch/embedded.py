"""A Kafka for tests and demonstrations: librdkafka's mock cluster, in a process of its own.

    python -m dispatch.embedded --brokers 3 --topic logs:8

The first line of its output is the bootstrap servers. After that each line of input is a JSON list, and
is answered by one line: null, a result, or {"error": "..."}.

    ["down", id]  ["up", id]               broker ids count from 1; -1 is all of them
    ["rtt", id, ms]                        delay each response
    ["topic", name, partitions, replication]
    ["leader", topic, partition, id]
    ["errors", api_key, [code, ...]]       the next requests of this kind fail, one code each
    ["clear", api_key]                     forget errors not yet used
    ["requests"]                           {"api key": requests since the first such command}
    ["quit"]

It ends when its input closes, or with the thread that started it. Its limits: it keeps 5 MiB
or 100,000 message sets a partition and drops the oldest, does not remove the duplicates of an idempotent
producer, and shows aborted data.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dispatch.errors import EmbeddedFailed
from dispatch.librdkafka import PRODUCER, load, set_properties

_PR_SET_PDEATHSIG = 1
_DEFAULT_TOPIC_REPLICATION = 1


class MockCluster:
    """The cluster itself, in this process; every method is a command of the protocol."""

    def __init__(self, brokers: int) -> None:
        """Start it with so many brokers. Raises EmbeddedFailed."""
        self._library = load()
        conf = self._library.conf_new()
        # Its log goes to standard error, which belongs to the process that started this one.
        set_properties(self._library.conf_set, conf, {"log_level": "0"})
        said = ctypes.create_string_buffer(512)
        self._handle = self._library.new(PRODUCER, conf, said, len(said))
        self._cluster = self._library.mock_cluster_new(self._handle, brokers) if self._handle else None
        if not self._cluster:
            raise EmbeddedFailed(
                f"librdkafka gives no mock cluster of {brokers} brokers: {said.value.decode()}"
            )
        self._requests: collections.Counter[int] | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Its brokers, as host:port,..."""
        servers: bytes = self._library.mock_cluster_bootstraps(self._cluster)
        return servers.decode()

    def close(self) -> None:
        """End all brokers."""
        self._library.mock_cluster_destroy(self._cluster)

    def down(self, broker: int) -> None:
        """Close the connections of a broker and refuse new ones. Raises EmbeddedFailed."""
        self._check(self._library.mock_broker_set_down(self._cluster, broker))

    def up(self, broker: int) -> None:
        """Undo `down`. Raises EmbeddedFailed."""
        self._check(self._library.mock_broker_set_up(self._cluster, broker))

    def rtt(self, broker: int, ms: int) -> None:
        """Delay each response of a broker. Raises EmbeddedFailed."""
        self._check(self._library.mock_broker_set_rtt(self._cluster, broker, ms))

    def topic(self, name: str, partitions: int, replication: int = _DEFAULT_TOPIC_REPLICATION) -> None:
        """Create a topic. Raises EmbeddedFailed."""
        self._check(self._library.mock_topic_create(self._cluster, name.encode(), partitions, replication))

    def leader(self, topic: str, partition: int, broker: int) -> None:
        """Move the leadership of a partition. Raises EmbeddedFailed."""
        self._check(self._library.mock_partition_set_leader(self._cluster, topic.encode(), partition, broker))

    def errors(self, api_key: int, codes: Sequence[int]) -> None:
        """Let the next requests of this kind (0: Produce, 3: Metadata) fail, one code each."""
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.mock_push_request_errors_array(self._cluster, api_key, len(codes), array)

    def clear(self, api_key: int) -> None:
        """Forget errors that were not used yet."""
        self._library.mock_clear_request_errors(self._cluster, api_key)

    def requests(self) -> dict[int, int]:
        """Requests by api key since the first call, which starts the count.

        librdkafka keeps every tracked request until it is cleared, so each call empties its list.
        """
        if self._requests is None:
            self._requests = collections.Counter()
            self._library.mock_start_request_tracking(self._cluster)
        count = ctypes.c_size_t()
        tracked = self._library.mock_get_requests(self._cluster, ctypes.byref(count))
        self._requests.update(self._library.mock_request_api_key(tracked[i]) for i in range(count.value))
        self._library.mock_request_destroy_array(tracked, count.value)
        self._library.mock_clear_requests(self._cluster)
        return dict(self._requests)

    def _check(self, code: int) -> None:
        if code:
            raise EmbeddedFailed(f"{self._library.error_name(code)}: {self._library.error_text(code)}")


_COMMANDS = ("down", "up", "rtt", "topic", "leader", "errors", "clear", "requests")


class EmbeddedKafka:
    """Starts the process and commands it.

    Use as a context manager. A refused command, and a process that is gone, raise EmbeddedFailed.
    The process dies with the thread that made this object (PR_SET_PDEATHSIG), so make it in one that stays.
    """

    def __init__(self, *, brokers: int = 3, topics: Sequence[tuple[str, int]] = ()) -> None:
        arguments = [argument for name, count in topics for argument in ("--topic", f"{name}:{count}")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dispatch.embedded", "--brokers", str(brokers), *arguments],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.bootstrap_servers = self._read().strip()
        """Comma-separated host:port, as librdkafka's `bootstrap.servers` takes it."""

    def down(self, broker: int = -1) -> None:
        """Close the connections of a broker (-1: of all) and refuse new ones."""
        self._command("down", broker)

    def up(self, broker: int = -1) -> None:
        """Undo `down`."""
        self._command("up", broker)

    def rtt(self, broker: int, ms: int) -> None:
        """Delay each response of a broker."""
        self._command("rtt", broker, ms)

    def topic(self, name: str, partitions: int, replication: int = _DEFAULT_TOPIC_REPLICATION) -> None:
        """Create a topic."""
        self._command("topic", name, partitions, replication)

    def leader(self, topic: str, partition: int, broker: int) -> None:
        """Move the leadership of a partition."""
        self._command("leader", topic, partition, broker)

    def errors(self, api_key: int, codes: Sequence[int]) -> None:
        """Let the next requests of this kind (0: Produce, 3: Metadata) fail, one code each."""
        self._command("errors", api_key, list(codes))

    def clear(self, api_key: int) -> None:
        """Forget errors that were not used yet."""
        self._command("clear", api_key)

    def requests(self) -> dict[int, int]:
        """Requests by api key since the first call, which starts the count."""
        return {int(key): int(count) for key, count in self._command("requests").items()}

    def close(self) -> None:
        """End the process and wait for it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # A command that met a dead process is still in the pipe's buffer.
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _command(self, *command: Any) -> Any:
        assert self._process.stdin is not None
        try:
            print(json.dumps(command), file=self._process.stdin, flush=True)
        except (BrokenPipeError, ValueError):
            raise EmbeddedFailed(f"the embedded Kafka (pid {self._process.pid}) is gone") from None
        answer = json.loads(self._read())
        if isinstance(answer, dict) and "error" in answer:
            raise EmbeddedFailed(f"the embedded Kafka refused {json.dumps(command)}: {answer['error']}")
        return answer

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EmbeddedFailed(f"the embedded Kafka (pid {self._process.pid}) has ended")
        return line


def _answer(cluster: MockCluster, line: str) -> Any:
    """The reply to one line of input."""
    try:
        name, *arguments = json.loads(line)
        if name not in _COMMANDS:
            return {"error": f"no command {name!r}"}
        command: Callable[..., Any] = getattr(cluster, name)
        return command(*arguments)
    except (EmbeddedFailed, ValueError, TypeError, ctypes.ArgumentError) as error:
        return {"error": str(error)}


def _parse_topic(text: str) -> tuple[str, int]:
    name, _, partitions = text.rpartition(":")
    if not name:
        raise argparse.ArgumentTypeError("expected NAME:PARTITIONS")
    return name, int(partitions)


def main() -> None:
    """Host a cluster until the input ends."""
    parser = argparse.ArgumentParser(
        prog="dispatch.embedded", description="An in-memory Kafka for tests and demos."
    )
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--topic", type=_parse_topic, action="append", default=[], metavar="NAME:PARTITIONS")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Ctrl-C in a terminal reaches the whole group; the process that started this one decides when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cluster = MockCluster(options.brokers)
    for name, partitions in options.topic:
        cluster.topic(name, partitions)
    print(cluster.bootstrap_servers, flush=True)
    for line in sys.stdin:
        if line.strip() == '["quit"]':
            break
        print(json.dumps(_answer(cluster, line)), flush=True)
    cluster.close()
    sys.stdout.flush()
    # The hidden client behind the cluster has threads that need not be waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
