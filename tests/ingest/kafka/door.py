"""A Kafka worker, the ingest worker and the keeper in this process, and clients that send by hand."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from ingest.buffers.connection_buffers import LANE_SLACK_BYTES, ConnectionBuffers, make_bells
from ingest.kafka.clients import Options
from ingest.kafka.kafka_worker import KafkaWorker
from ingest.kafka.producers import Producers
from ingest.kafka.topics import Topics
from ingest.sockets.listening import listen_tcp
from spool.format.segment_format import body_room
from spool.shared.topics import write_partitions
from tests.daemon import free_port
from tests.ingest.intake import SEGMENT_BYTES, Intake
from tests.ingest.kafka.batches import Found, Record, _message, record_batch

LIMIT = 64 << 10
VERSION = 9
PARTITIONS = 3


class Door:
    """All of it; a worker that was killed has a successor."""

    def __init__(
        self, directory: Path, *, options: Options | None = None, limit: int = LIMIT, **more: int
    ) -> None:
        """`limit`: bytes of a message. `more`: options of the spool."""
        self._limit = limit
        self.intake = Intake(directory, **more)
        self.options = options or Options()
        self.layout, self.shared = self.intake.spool.layout, self.intake.spool.shared
        write_partitions(self.layout, {b"orders": PARTITIONS, b"other": 1})
        self._lanes, self._producers = directory / "lanes", directory / "producers"
        self._bells, self._bell = make_bells(), os.eventfd(0, os.EFD_NONBLOCK)
        self._callers: list[Caller] = []
        self._room = body_room(more.get("segment_bytes", SEGMENT_BYTES))
        self.listener = listen_tcp(free_port())
        self.lanes = self._map()
        self.intake.worker.serve(self.lanes)
        self.worker = self.start()

    def _map(self) -> ConnectionBuffers:
        spool = self.intake.spool.identity.spool
        return ConnectionBuffers(
            self._lanes, spool, self._limit + LANE_SLACK_BYTES, self._bells, room=self._room
        )

    def start(self) -> KafkaWorker:
        """A Kafka worker on what is there."""
        spool = self.intake.spool
        self.producers = Producers(self._producers, spool.identity.spool)
        self.topics = Topics(self.layout, spool.shared, spool.directory / "state", bell=self._bell)
        self.worker = KafkaWorker(
            {self.listener: self.options},
            self._map(),
            self.producers,
            self.layout,
            spool.shared,
            self.topics,
            bell=self._bell,
            keeper_bell=spool.bell,
            cluster="c",
        )
        return self.worker

    def restart(self) -> None:
        """The Kafka worker was killed, with its connections; the next one takes over."""
        self._let_go()
        self.start()
        self.store()
        self.worker._take_over()

    def restart_ingest(self) -> None:
        """The ingest worker was killed."""
        worker = self.intake.start()
        worker.serve(self.lanes)
        worker.salvage()

    def store(self) -> None:
        """Have the ingest worker store what is offered."""
        while self.intake.worker._round_of_runs(self.lanes):
            continue

    def settle(self, rounds: int = 4) -> None:
        """Let all of them do what they can."""
        for _ in range(rounds):
            self.worker.step(0)
            self.store()
            self.intake.spool.step()
            os.eventfd_write(self._bell, 1)
        self.worker.step(0)

    def connect(self) -> Caller:
        """A client."""
        self._callers.append(Caller(self))
        return self._callers[-1]

    def stored(self) -> list[Found]:
        """The messages in the log, in order."""
        return [_message(data) for data in self.intake.stored()]

    def values(self) -> list[bytes | None]:
        """Their values."""
        return [one.record.value for one in self.stored()]

    def _let_go(self) -> None:
        for client in list(self.worker._clients.values()):
            client.sock.close()
        self.worker._poll.close()

    def close(self) -> None:
        """Let go of everything."""
        self._let_go()
        for caller in self._callers:
            caller.sock.close()
        for fd in (self._bells.offered, self._bells.taken, self._bell):
            os.close(fd)
        self.listener.close()
        self.intake.close()


class Caller:
    """A client's connection."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self.sock = socket.create_connection(door.listener.getsockname())
        self.sock.settimeout(10)
        self._inbox = b""
        self.correlation = 0

    def send(
        self, batches: Sequence[tuple[str, int, bytes]], *, acks: int = -1, timeout_ms: int = 1000
    ) -> None:
        """A ProduceRequest with a batch each for (topic, partition)."""
        self.correlation += 1
        request = request_of(batches, acks=acks, timeout_ms=timeout_ms)
        request.with_header(self.correlation, "tests")
        self.sock.sendall(bytes(request.encode(header=True, framed=True)))

    def receive(self) -> Any:
        """The next answer: ProduceResponse; None when the connection has ended."""
        while len(self._inbox) < 4 or len(self._inbox) < 4 + struct.unpack(">i", self._inbox[:4])[0]:
            if not (data := self.sock.recv(1 << 16)):
                return None
            self._inbox += data
        (size,) = struct.unpack(">i", self._inbox[:4])
        frame, self._inbox = self._inbox[: 4 + size], self._inbox[4 + size :]
        return ProduceResponse.decode(frame, version=VERSION, header=True, framed=True)

    def has_answer(self) -> bool:
        """Whether there is anything to receive."""
        self.sock.setblocking(False)
        try:
            self._inbox += self.sock.recv(1 << 16)
        except BlockingIOError:
            pass
        finally:
            self.sock.settimeout(10)
        return bool(self._inbox)

    def produce(
        self, batch: bytes, *, topic: str = "orders", partition: int = 0, timeout_ms: int = 1000
    ) -> tuple[int, int]:
        """Send a batch, and have it stored: (error, base offset)."""
        self.send([(topic, partition, batch)], timeout_ms=timeout_ms)
        self._door.settle()
        return outcome_of(self.receive())[0]


def request_of(
    batches: Sequence[tuple[str, int, bytes]], *, acks: int = -1, timeout_ms: int = 1000
) -> ProduceRequest:
    """A ProduceRequest."""
    topic, part = ProduceRequest.TopicProduceData, ProduceRequest.TopicProduceData.PartitionProduceData
    names = list(dict.fromkeys(name for name, _, _ in batches))
    return ProduceRequest(
        version=VERSION,
        transactional_id=None,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            topic(
                name=name,
                partition_data=[part(index=at, records=data) for other, at, data in batches if other == name],
            )
            for name in names
        ],
    )


def outcome_of(answer: Any) -> list[tuple[int, int]]:
    """(error, base offset) of each partition."""
    return [
        (one.error_code, one.base_offset) for topic in answer.responses for one in topic.partition_responses
    ]


def numbered(
    first: int, count: int, *, producer: int = -1, epoch: int = 0, sequence: int | None = None
) -> bytes:
    """A batch of records whose values are numbers; of a producer with these as sequences."""
    records = [Record(b"%d" % number) for number in range(first, first + count)]
    if producer < 0:
        return record_batch(records)
    return record_batch(
        records, producer=producer, epoch=epoch, sequence=first if sequence is None else sequence
    )


def values(first: int, count: int) -> list[bytes]:
    """The values of such a batch."""
    return [b"%d" % number for number in range(first, first + count)]
