"""Clients of the Kafka input that mean harm: an honest client beside them hears its answers all the same."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import cramjam
from confluent_kafka import KafkaError, Message, Producer
from crc32c import crc32c

from cli.status.snapshot import ROLES
from spool.shared.state import WORKER_WORDS, Field
from tests.ingest.kafka.batches import Record, record_batch
from tests.ingest.kafka.door import request_of
from tools.adversaries.attack import Attack, Settings
from tools.adversaries.villain import DONE, REFUSED, STOP, Villain, Words

if TYPE_CHECKING:
    from tools.adversaries.arena import Arena

TOPIC = "flood"
_SETTINGS: Settings = {"spool": {"segment_bytes": 8 << 20}}
_PAUSE_S = 0.05
SLOWEST_S = 5.0
"""For an honest client's answer, beside any attack."""
MEMORY_MIB = 300
"""PSS of the Kafka worker: itself, its pool for requests, a batch, and lanes."""
_BOMB_BYTES = 15 << 20
_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
_MOST_BYTES = 16 << 20
_UNFINISHED = struct.pack(">ihhi", _MOST_BYTES, 0, 9, 1)
_METADATA = struct.pack(">ihhihi", 14, 3, 1, 1, -1, -1)
_LATE_S = 40.0
"""Of a phase in which requests become too slow."""


class Honest:
    """A client that does nothing wrong."""

    def __init__(self, port: int) -> None:
        self._producer = Producer(
            {"bootstrap.servers": f"127.0.0.1:{port}", "enable.idempotence": True, "linger.ms": 0}
        )
        self._stopping = threading.Event()
        self.faults: list[str] = []
        self.slowest_s = 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            self._producer.produce(TOPIC, b"honest %d" % number, on_delivery=self._note(time.monotonic()))
            self._producer.poll(_PAUSE_S)
            number += 1
        if left := self._producer.flush(60):
            self.faults.append(f"{left} records were never answered")

    def _note(self, sent: float) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, _message: Message) -> None:
            self.slowest_s = max(self.slowest_s, time.monotonic() - sent)
            if error and len(self.faults) < 3:  # noqa: PLR2004  (enough to understand)
                self.faults.append(f"a record failed: {error}")

        return note

    def stop(self) -> None:
        """Send no more, and wait for the last answers."""
        self._stopping.set()
        self._thread.join()


class KafkaAttack(Attack):
    """An attack by the Kafka input, with an honest client beside it."""

    settings: ClassVar[Settings] = _SETTINGS
    kafka: ClassVar[bool] = True
    villains: ClassVar[int] = 1
    honest: Honest
    peak_mib = 0.0

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        self.honest = Honest(arena.kafka_port)
        stack.callback(self.honest.stop)
        for _ in range(self.villains):
            arena.villains.append(stack.enter_context(Villain(self.run_at(arena.kafka_port))))

    def run_at(self, port: int) -> Callable[[Words], None]:
        """The attacker's function."""
        raise NotImplementedError

    def step(self, arena: Arena) -> None:
        shared = arena.bruce.shared()
        pid = 0 if shared is None else int(shared[Field.WORKERS + WORKER_WORDS * ROLES.index("kafka")])
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            self.peak_mib = max(self.peak_mib, int(text.split("\nPss:")[1].split()[0]) / 1024)

    def judge(self, arena: Arena) -> None:
        if not 0 < self.peak_mib <= MEMORY_MIB:
            arena.report(f"the Kafka worker had {self.peak_mib:.0f} MiB, bound {MEMORY_MIB}")
        for fault in self.honest.faults:
            arena.report(f"an honest Kafka client: {fault}")
        if self.honest.slowest_s > SLOWEST_S:
            arena.report(f"an honest Kafka client waited {self.honest.slowest_s:.1f} s for an answer")
        done = sum(int(one.words[DONE]) for one in arena.villains)
        if not done:
            arena.report("the attackers did nothing")
        print(f"{self.name}: {done} times; {self.peak_mib:.0f} MiB, slowest {self.honest.slowest_s:.2f} s")


def _sending(frames: Sequence[bytes]) -> Callable[[int], Callable[[Words], None]]:
    """A client that sends these by turns, reads what comes, and connects again when it is closed."""

    def run_at(port: int) -> Callable[[Words], None]:
        def run(words: Words) -> None:
            number = 0
            while not words[STOP]:
                with contextlib.suppress(OSError), _connect(port, words) as sock:
                    while not words[STOP]:
                        sock.sendall(frames[number % len(frames)])
                        number += 1
                        words[DONE] += 1
                        if not _read(sock):
                            break

        return run

    return run_at


@contextlib.contextmanager
def _connect(port: int, words: Words) -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.settimeout(1.0)
        try:
            # No look-up of names: a villain may not read Python's modules.
            sock.connect(("127.0.0.1", port))
        except OSError:
            words[REFUSED] += 1
            time.sleep(0.01)
            raise
        yield sock


def _read(sock: socket.socket) -> bool:
    """Read an answer, for a second; whether the connection is open."""
    try:
        return bool(sock.recv(1 << 16))
    except TimeoutError:
        return True


def _frame(batch: bytes) -> bytes:
    request = request_of([(TOPIC, 0, batch)])
    request.with_header(1, "villain")
    return bytes(request.encode(header=True, framed=True))


def _bomb(codec: int, compress: Callable[[bytes], object]) -> bytes:
    """A batch whose records are zeros, a thousand times as many bytes as it has."""
    head = bytearray(record_batch([Record()])[:61])
    data = bytes(compress(bytes(_BOMB_BYTES)))  # type: ignore[call-overload]
    struct.pack_into(">h", head, 21, codec)
    batch = bytes(head) + data
    batch = batch[:8] + struct.pack(">i", len(batch) - 12) + batch[12:]
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


class KafkaBombs(KafkaAttack):
    """Compressed batches of 15 MiB of zeros, by each codec: no memory goes, and no client waits long."""

    name = "kafka-bombs"

    def run_at(self, port: int) -> Callable[[Words], None]:
        codecs = (
            (_GZIP, cramjam.gzip.compress),
            (_SNAPPY, cramjam.snappy.compress_raw),
            (_LZ4, cramjam.lz4.compress),
            (_ZSTD, cramjam.zstd.compress),
        )
        return _sending([_frame(_bomb(codec, compress)) for codec, compress in codecs])(port)


class KafkaRubbish(KafkaAttack):
    """Requests that are none: TLS, HTTP, lengths, versions, counts and batches that cannot be."""

    name = "kafka-rubbish"
    villains = 2

    def run_at(self, port: int) -> Callable[[Words], None]:
        good = _frame(record_batch([Record()] * 10))
        frames = [
            b"\x16\x03\x01\x02\x00" + bytes(100),
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            struct.pack(">i", -5),
            struct.pack(">i", 1 << 30),
            struct.pack(">ihhih", 10, 99, 0, 1, -1),
            struct.pack(">ihhihi", 14, 3, 1, 1, -1, 1 << 30),
            good[:-1] + b"\xff",
            good[:40] + b"\xff\xff\xff\xff\x07" + good[45:],
            _frame(record_batch([Record(headers=[("n", b"")] * 300)])),
            _frame(bytes(61)),
        ]
        return _sending(frames)(port)


class KafkaUnfinished(KafkaAttack):
    """500 requests of 16 MiB that come a byte a second: no memory for others goes, and all are closed."""

    name = "kafka-unfinished"
    least_s = _LATE_S

    def run_at(self, port: int) -> Callable[[Words], None]:
        return _holding(port, 500, _UNFINISHED, b"x")


class KafkaConnections(KafkaAttack):
    """10,000 connections that ask once for all topics and never read: an honest client is let in."""

    name = "kafka-connections"

    def run_at(self, port: int) -> Callable[[Words], None]:
        return _holding(port, 10_000, _METADATA * 50, b"")


class KafkaProducers(KafkaAttack):
    """A hundred thousand producers of one user: an honest producer's last batches are not forgotten."""

    name = "kafka-producers"

    def run_at(self, port: int) -> Callable[[Words], None]:
        # The library compiles what it needs the first time.
        _frame(record_batch([Record()], producer=1, epoch=0, sequence=0))

        def run(words: Words) -> None:
            producer = 1
            while not words[STOP]:
                with contextlib.suppress(OSError), _connect(port, words) as sock:
                    while not words[STOP]:
                        producer += 1
                        sock.sendall(_frame(record_batch([Record()], producer=producer, epoch=0, sequence=0)))
                        words[DONE] += 1
                        if not _read(sock):
                            break

        return run


def _holding(port: int, most: int, first: bytes, again: bytes) -> Callable[[Words], None]:
    """Hold so many connections, each of which sends `first`, and once a second `again`."""

    def run(words: Words) -> None:
        held: list[socket.socket] = []
        due = time.monotonic() + 1
        while not words[STOP]:
            if len(held) < most:
                sock = socket.socket()
                sock.settimeout(1.0)
                held.append(sock)
                with contextlib.suppress(OSError):
                    sock.connect(("127.0.0.1", port))
                    sock.setblocking(False)
                    words[DONE] += 1
                    sock.send(first)
            else:
                time.sleep(_PAUSE_S)
            if again and time.monotonic() >= due:
                due += 1
                for sock in held:
                    with contextlib.suppress(OSError):
                        sock.send(again)

    return run
