"""A daemon's sockets, and what came through them."""

from __future__ import annotations

import errno
import socket

from confluent_kafka import Message

from tests.daemon import RunningBruce, consume, free_port, halt


class Doors:
    """A daemon with a datagram socket, a stream socket, and a TCP port."""

    def __init__(self, bruce: RunningBruce, servers: str) -> None:
        self.bruce, self.servers = bruce, servers
        self.datagrams, self.stream, self.port = bruce.socket, bruce.runtime / "stream.sock", free_port()
        bruce.configure({"ingest": {"stream_socket": str(self.stream), "tcp_port": self.port}})

    def await_streams(self) -> None:
        """Return when connections are accepted."""
        self.bruce.await_true(lambda: any(w.role == "stream" and w.pid for w in self.bruce.status().workers))

    def halt_intake(self) -> None:
        """From here on no process reads the datagram socket."""
        (pid,) = [w.pid for w in self.bruce.status().workers if w.role == "ingest"]
        halt(pid)

    def kill(self) -> None:
        """SIGKILL every process, and wait until none has the socket; a last thread may have it longer."""
        self.bruce.kill9()
        self.bruce.await_true(self._nobody_listens)

    def _nobody_listens(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            return probe.connect_ex(str(self.datagrams)) == errno.ECONNREFUSED

    def restart_dead(self) -> None:
        """Another daemon, after `kill`."""
        self.bruce.start()
        self.await_streams()

    def records(self, count: int) -> list[Message]:
        """Everything that is in the topic, once it is that many."""
        return consume(self.servers, "orders", 1, count)

    def values(self, count: int) -> list[bytes]:
        """Their values."""
        return [record.value() or b"" for record in self.records(count)]
