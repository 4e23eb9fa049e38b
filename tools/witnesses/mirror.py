"""A mirror from one cluster to another, which renames topics, copies records whole, and makes faults.

It counts what it reads and what it writes: these are the contents of both tiers, whatever a witness says.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tools.fleets import kafka
from tools.fleets.kafka import Partition
from tools.waiting import wait_until
from tools.witnesses.faults import ALTERATIONS, Contents, Fault, Faults, Record

BATCH = 500
FLUSH_S = 120.0
READING = {
    "group.id": "mirror",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 50,
    "log_level": 0,
}
WRITING = {
    # A broker that is killed must neither lose nor double what the mirror writes.
    "enable.idempotence": True,
    "acks": "all",
    "message.timeout.ms": 0,
    "linger.ms": 20,
    "reconnect.backoff.max.ms": 1000,
    "log_level": 0,
}
_CREATE_TIME = 1


def make_producer(bootstrap: str) -> Producer:
    """A producer that survives brokers."""
    return Producer({"bootstrap.servers": bootstrap, **WRITING})


def write(producer: Producer, record: Record, prefix: str = "") -> None:
    """Produce a record; waits while the producer's queue is full."""
    while True:
        try:
            producer.produce(
                prefix + record.topic,
                record.value,
                record.key,
                timestamp=record.sent_ms,
                headers=list(record.headers),
                on_delivery=_demand,
            )
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def _demand(error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        raise KafkaException(error)


class Mirror:
    """Copies all partitions of some topics, in a thread of its own, until it is stopped."""

    def __init__(
        self, source: str, target: str, topics: Sequence[str], partitions: int, prefix: str, seed: int
    ) -> None:
        self._source, self._prefix = source, prefix
        self._places = [(topic, partition) for topic in topics for partition in range(partitions)]
        self._faults = Faults(f"mirror {seed}", topics)
        self._producer = make_producer(target)
        self._positions: dict[Partition, int] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._error: Exception | None = None
        self.read, self.written = Contents(), Contents()
        self.made: Counter[str] = Counter()
        """How many faults of each kind."""

    def start(self) -> None:
        self._thread.start()

    def catch_up(self, timeout_s: float) -> None:
        """Return when all is copied that the source has now. Raises TookTooLong, KafkaException."""
        admin = kafka.connect(self._source)
        ends: dict[Partition, int] = {}

        def found() -> bool:
            ends.update(kafka.ends(admin, self._places))
            return len(ends) == len(self._places)

        wait_until(found, timeout_s, "the ends of the source")
        wait_until(
            lambda: self._error or all(self._positions.get(one, 0) >= end for one, end in ends.items()),
            timeout_s,
            "the mirror to copy all",
        )
        self._check()
        if left := self._producer.flush(timeout_s):
            raise RuntimeError(f"the mirror has not written {left} records in {timeout_s:.0f} s")

    def stop(self) -> None:
        """End the thread. Raises what ended it before."""
        self._stopped.set()
        self._thread.join(FLUSH_S)
        self._check()

    def _check(self) -> None:
        if self._error:
            raise self._error

    def _run(self) -> None:
        try:
            consumer = Consumer({"bootstrap.servers": self._source, **READING})
            consumer.assign([TopicPartition(*place, 0) for place in self._places])
            while not self._stopped.is_set():
                for message in consumer.consume(BATCH, 0.2):
                    self._take(message)
                self._producer.poll(0)
            consumer.close()
        except Exception as error:  # noqa: BLE001  (the thread that waits raises it)
            self._error = error

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  (its public name)
            if error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):  # noqa: SLF001
                raise KafkaException(error)
            time.sleep(0.01)  # its broker is away
            return
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None and partition is not None and offset is not None  # noqa: PT018
        if error is None:
            self._copy(message, topic)
        self._positions[topic, partition] = offset + (error is None)

    def _copy(self, message: Message, topic: str) -> None:
        kind, sent_ms = message.timestamp()
        assert kind == _CREATE_TIME
        headers = list(message.headers() or ())
        record = Record(topic, message.key(), message.value(), headers, sent_ms)  # type: ignore[arg-type]
        copies, fault = self._faults.spread(record)
        if stamp := record.stamp:
            self.read.copies[stamp] += 1
            self.written.copies[stamp] += len(copies)
            if fault is not None and self.read.copies[stamp] == 1:
                self.made[fault.value] += 1
            if fault in ALTERATIONS:
                self.written.altered[stamp] = fault
            if fault is Fault.LOSE:
                del self.written.copies[stamp]
        for one in copies:
            write(self._producer, one, self._prefix)
