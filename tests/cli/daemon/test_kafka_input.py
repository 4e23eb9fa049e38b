"""The Kafka input of a running daemon, with clients that were written for brokers."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka import Producer as ConfluentProducer

from cli.status.snapshot import ROLES, list_workers
from dispatch.embedded import EmbeddedKafka
from tests.daemon import RunningBruce, consume, free_port

PARTITIONS = 3
MANY = 3000


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker."""
    with EmbeddedKafka(brokers=1, topics=[("orders", PARTITIONS)]) as cluster:
        yield cluster


class DoorBruce(RunningBruce):
    """A daemon with a Kafka input."""

    def __init__(self, directory: Path, servers: str, *more: str, access: str = "", **spool: object) -> None:
        """`more`: lines of the input's table."""
        self.port = free_port()
        self._more, self._access = more, access
        super().__init__(directory, servers, segment_bytes=4 << 20, settings={"spool": spool})

    def configure(self, settings: object) -> None:
        super().configure(settings)  # type: ignore[arg-type]
        table = "\n".join(["[[input]]", f"kafka = {self.port}", *self._more])
        with self.config.open("a", encoding="utf-8") as file:
            file.write(f"{self._access}\n{table}\n")

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.port}"

    def kill(self, role: str) -> None:
        """SIGKILL one worker, if it runs now."""
        words = self.words()
        assert words is not None
        for worker in list_workers(words):
            if worker.role == role and worker.pid:
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)


class Sent:
    """Numbered records of one producer, and what it heard of them."""

    def __init__(self, address: str, **more: object) -> None:
        self.acked: dict[int, tuple[int, int]] = {}
        self.failed: list[str] = []
        self._next = 0
        settings: dict[str, object] = {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 50,
            "reconnect.backoff.max.ms": 200,
            **more,
        }
        self.producer = ConfluentProducer(settings)

    def send(self, count: int) -> None:
        """Produce so many more; their partition is chosen by the client."""
        for number in range(self._next, self._next + count):
            self.producer.produce(
                "orders",
                value=b"%d" % number,
                key=b"k%d" % (number % 7),
                headers=[("n", b"%d" % number)],
                on_delivery=self._note(number),
            )
            self.producer.poll(0)
        self._next += count

    def _note(self, number: int) -> Callable[[KafkaException | None, Message], None]:
        def note(error: KafkaException | None, message: Message) -> None:
            if error:
                self.failed.append(str(error))
            else:
                self.acked[number] = message.partition() or 0, message.offset() or 0

        return note

    def finish(self) -> None:
        """Wait for all answers; none is an error."""
        assert self.producer.flush(60) == 0
        assert not self.failed
        assert len(self.acked) == self._next


def check(kafka: EmbeddedKafka, sent: Sent) -> None:
    """Kafka has each record once, with all that it had, where the client put it, and in order."""
    found = consume(kafka.bootstrap_servers, "orders", PARTITIONS, len(sent.acked))
    numbers = defaultdict(list)
    for one in found:
        number = int(one.value() or b"")
        assert one.key() == b"k%d" % (number % 7)
        assert [(name, value) for name, value in one.headers() or [] if name != "bruce-id"] == [
            ("n", b"%d" % number)
        ]
        assert sent.acked[number][0] == one.partition()
        numbers[one.partition()].append(number)
    assert sum(map(len, numbers.values())) == len(sent.acked)
    for each in numbers.values():
        assert each == sorted(set(each))


@pytest.mark.parametrize("role", ["kafka", "ingest", "keeper", "delivery"])
def test_killed(kafka: EmbeddedKafka, tmp_path: Path, role: str) -> None:
    """A worker is killed while a client produces: nothing is lost, stored twice or reordered."""
    with DoorBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        sent = Sent(bruce.address)
        for _ in range(4):
            sent.send(MANY // 4)
            sent.producer.poll(0.05)
            bruce.kill(role)
        sent.finish()
        bruce.await_status(lambda seen: seen.backlog == 0 and seen.received == MANY)
        if role == "delivery":
            # Messages in flight go to Kafka again, as the contract has it.
            return
        check(kafka, sent)


def test_restarted(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """The daemon is killed as a whole, and ended in order: its clients go on where they were."""
    with DoorBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        sent = Sent(bruce.address)
        sent.send(MANY // 3)
        sent.producer.poll(0.05)
        bruce.kill9()
        sent.send(MANY // 3)
        bruce.start()
        sent.producer.poll(0.5)
        assert bruce.stop() == 0
        sent.send(MANY // 3)
        bruce.start()
        sent.finish()
        assert bruce.await_status(lambda seen: seen.backlog == 0).received == MANY


def test_outage(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """A topic that was used before takes messages while Kafka is away, after a restart, too."""
    with DoorBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        sent = Sent(bruce.address)
        sent.send(10)
        sent.finish()
        bruce.await_status(lambda seen: seen.backlog == 0)
        kafka.down()
        assert bruce.stop() == 0
        bruce.start()
        other = Sent(bruce.address)
        other.send(100)
        other.finish()
        assert bruce.status().backlog == 100
        kafka.up()
        bruce.await_status(lambda seen: seen.backlog == 0)


def test_first_start_in_an_outage(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """`allow_unknown` takes messages for a topic that was never seen; without it none is taken."""
    kafka.down()
    for place in ("strict", "lenient"):
        (tmp_path / place).mkdir()
    with DoorBruce(tmp_path / "strict", kafka.bootstrap_servers) as bruce:
        refused = Sent(bruce.address, **{"message.timeout.ms": 2000})
        refused.send(1)
        assert refused.producer.flush(60) == 0
        assert (refused.acked, len(refused.failed), bruce.status().received) == ({}, 1, 0)
    with DoorBruce(tmp_path / "lenient", kafka.bootstrap_servers, "allow_unknown = true") as bruce:
        sent = Sent(bruce.address)
        sent.send(MANY)
        sent.finish()
        kafka.up()
        bruce.await_status(lambda seen: (seen.received, seen.backlog) == (MANY, 0))
    found = consume(kafka.bootstrap_servers, "orders", PARTITIONS, MANY)
    assert sorted(int(one.value() or b"") for one in found) == list(range(MANY))
    assert len({one.partition() for one in found}) == PARTITIONS


def test_delivered(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """With `acknowledge = "delivered"` an answer says that Kafka has it; a timeout, that it is away."""
    with DoorBruce(tmp_path, kafka.bootstrap_servers, 'acknowledge = "delivered"') as bruce:
        first = Sent(bruce.address)
        first.send(1)
        first.finish()
        assert bruce.status().watermarks.delivered == 1
        kafka.down()
        other = Sent(bruce.address, **{"request.timeout.ms": 1000, "message.timeout.ms": 3000})
        other.send(1)
        assert other.producer.flush(60) == 0
        assert "timed out" in other.failed[0]
        kafka.up()
        assert bruce.await_status(lambda seen: seen.backlog == 0).received == 2


def test_access(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """A topic that [access] does not open to TCP is refused with the client's own error, and counted."""
    with DoorBruce(tmp_path, kafka.bootstrap_servers, access='[access]\norders = ["uid:0"]') as bruce:
        producer = Producer({"bootstrap.servers": bruce.address})
        heard: list[str] = []
        producer.produce("orders", b"x", on_delivery=lambda error, _: heard.append(str(error)))
        producer.flush(30)
        assert "TOPIC_AUTHORIZATION_FAILED" in heard[0]
        assert bruce.await_status(lambda seen: seen.discarded == {"not_permitted": 1}).received == 1


def test_shown(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Status and metrics count what came by the Kafka input."""
    with DoorBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        sent = Sent(bruce.address)
        sent.send(100)
        sent.finish()
        seen = bruce.await_status(lambda seen: seen.backlog == 0)
        assert seen.kafka is not None
        assert (seen.kafka.repeated, seen.kafka.refused) == (0, 0)
        assert 0 < seen.kafka.requests <= seen.kafka.stored <= 100
        (one,) = [one for one in seen.inputs if one.input == "kafka"]
        assert (one.stored, one.refused) == (100, 0)
        assert one.connections is not None
        assert one.connections.open >= 1
        assert ROLES.index("kafka")
