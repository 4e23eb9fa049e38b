"""A TCP proxy before each broker of a cluster, whose connections can be left half open.

Brokers of a cluster that is `proxied` advertise it to each client that comes through it, so that all of a
client's connections do. Bytes that are held are passed on later, as by a network that only delays; what comes
for an end that is gone is read, and lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Self

from tools.kafka_broker import HOST
from tools.kafka_cluster import KafkaCluster

CHUNK_BYTES = 1 << 16
PATIENCE_S = 60.0


class Side(Enum):
    """One side of a connection."""

    CLIENT = 0
    BROKER = 1


@dataclass
class Connection:
    """A client's, and the broker's that belongs to it."""

    ends: dict[Side, asyncio.StreamWriter]
    half_open: bool = False
    """One side is gone, and the other does not get to know."""

    def close(self, side: Side) -> None:
        """End one side, with a reset: nothing is sent any more."""
        self.ends[side].transport.abort()


@dataclass
class Door:
    """The proxy's socket before one broker."""

    port: int
    """The broker's own address."""
    passing: dict[Side, asyncio.Event]
    """Whether bytes from this side go on to the other."""
    answers: bool = True
    """Whether new connections lead anywhere."""
    connections: list[Connection] = field(default_factory=list)
    ends: set[asyncio.StreamWriter] = field(default_factory=set)
    """All that are open, of silent connections too."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        async with self._ended(writer):
            if not self.answers:
                await _swallow(reader)
                return
            try:
                from_broker, to_broker = await asyncio.open_connection(HOST, self.port)
            except OSError:
                return
            connection = Connection({Side.CLIENT: writer, Side.BROKER: to_broker})
            self.connections.append(connection)
            async with self._ended(to_broker):
                await asyncio.gather(
                    self._pump(connection, reader, Side.CLIENT, Side.BROKER),
                    self._pump(connection, from_broker, Side.BROKER, Side.CLIENT),
                )
            self.connections.remove(connection)

    async def _pump(
        self, connection: Connection, reader: asyncio.StreamReader, source: Side, target: Side
    ) -> None:
        """Pass bytes on until there are no more; then the other side ends, too, if it is to know."""
        writer = connection.ends[target]
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self.passing[source].wait()
                with contextlib.suppress(OSError):
                    writer.write(data)
                    await writer.drain()
        if not connection.half_open:
            connection.close(target)

    @contextlib.asynccontextmanager
    async def _ended(self, writer: asyncio.StreamWriter) -> AsyncIterator[None]:
        """A context at whose end the connection ends."""
        self.ends.add(writer)
        try:
            yield
        finally:
            self.ends.remove(writer)
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def end(self) -> None:
        """End all connections: nothing is held any more, and each reader comes to an end."""
        for passing in self.passing.values():
            passing.set()
        for writer in self.ends:
            writer.transport.abort()


async def _swallow(reader: asyncio.StreamReader) -> None:
    """Read to the end."""
    with contextlib.suppress(OSError):
        while await reader.read(CHUNK_BYTES):
            pass


class Proxy:
    """The doors of all brokers. As a context manager it is there, in a thread of its own."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._loop = asyncio.new_event_loop()
        self._doors: dict[int, Door] = {}
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")

    def hold(self, side: Side, brokers: Iterable[int] | None = None) -> None:
        """Keep back what comes from this side; all connections stay, and new ones are made."""
        self._each(brokers, lambda door: door.passing[side].clear())

    def kill(self, side: Side, brokers: Iterable[int] | None = None) -> None:
        """End this side of all connections, and do not tell the other; new ones are as they should be."""

        def end(door: Door) -> None:
            for connection in door.connections:
                connection.half_open = True
                connection.close(side)

        self._each(brokers, end)

    def fall_silent(self, brokers: Iterable[int] | None = None) -> None:
        """From now on connections are accepted without an answer; those that were there end."""

        def fall(door: Door) -> None:
            door.answers = False
            for connection in door.connections:
                connection.close(Side.CLIENT)

        self._each(brokers, fall)

    def mend(self) -> None:
        """Pass on everything, what was held first; silent connections stay silent, new ones are not."""

        def let(door: Door) -> None:
            door.answers = True
            for passing in door.passing.values():
                passing.set()

        self._each(None, let)

    def _each(self, brokers: Iterable[int] | None, act: Callable[[Door], object]) -> None:
        """Do this to the doors of these brokers, or of all, and return when it is done."""
        chosen = [self._doors[broker] for broker in (self._doors if brokers is None else brokers)]

        async def do() -> None:
            for door in chosen:
                act(door)

        asyncio.run_coroutine_threadsafe(do(), self._loop).result(PATIENCE_S)

    async def _open(self) -> None:
        for broker in self._cluster.brokers:
            passing = {side: asyncio.Event() for side in Side}
            for event in passing.values():
                event.set()
            door = self._doors[broker.id] = Door(broker.proxied_port, passing)
            self._servers.append(await asyncio.start_server(door.serve, HOST, broker.proxy_port))

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        # Not cancelled: asyncio complains of connections that are.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for door in self._doors.values():
                door.end()
            await asyncio.wait(tasks, timeout=0.1)
        for server in self._servers:
            await server.wait_closed()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(PATIENCE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()
