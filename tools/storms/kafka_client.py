"""A Kafka client as a sender of the storm: a program of its own, which counts what bruce acknowledges.

    python -m tools.storms.kafka_client '{"servers": ..., "topics": [...], ...}'     a Client's fields

It sends values of tools/payload in its own numbers to partitions that it chooses, with headers, idempotent,
acks=all, until SIGTERM; then it waits for all acknowledgements, prints {"sender": , "sent": }, and exits 0.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np
from confluent_kafka import KafkaError, Message, Producer

from tools.load_process import RunningModule
from tools.payload import (
    HEAD,
    LEAST_BYTES,
    PATTERN,
    PLACED,
    PLACES,
    TAIL_BYTES,
    WITH_HEADERS,
    Headers,
    headers_of,
)

CODECS = ("lz4", "none", "zstd", "snappy", "gzip")
ROUND_S = 0.1
"""The due messages go out ten times a second."""
STOP_S = 120.0
"""For what is on its way at the end."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client."""

    servers: str
    topics: list[str]
    partitions: int
    sender: int
    rate: int
    """Messages a second."""
    sizes: tuple[int, int]
    """Bytes of a value, least and most."""
    seed: int
    compression: str


class Sending:
    """The messages of one client."""

    def __init__(self, client: Client) -> None:
        self._client, self._random = client, random.Random(client.seed)  # noqa: S311  (not a secret)
        self.sent = self.acknowledged = 0
        self.failed: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": client.servers,
                "enable.idempotence": True,
                "acks": "all",
                "compression.type": client.compression,
                "message.timeout.ms": 0,
                "reconnect.backoff.max.ms": 500,
                "socket.timeout.ms": 10_000,
                "log_level": 2,
            }
        )

    def send(self, messages: int) -> None:
        """Send so many more."""
        client = self._client
        for _ in range(messages):
            partition, topic = self._random.randrange(client.partitions), self._random.choice(client.topics)
            value, sent_ms = self._value(partition), time.time_ns() // 1_000_000
            value["sent_ns"] = sent_ms * 1_000_000
            size = self._random.randint(*client.sizes)
            tail = self.sent.to_bytes(TAIL_BYTES, "little")
            data = value.tobytes() + PATTERN[: size - LEAST_BYTES] + tail
            self._produce(topic, data, partition, sent_ms, headers_of(WITH_HEADERS, tail, data))
            self.sent += 1
        self._producer.poll(0)

    def _produce(self, topic: str, value: bytes, partition: int, sent_ms: int, headers: Headers) -> None:
        while True:
            try:
                self._producer.produce(
                    topic,
                    value,
                    partition=partition,
                    timestamp=sent_ms,
                    headers=[*headers],
                    on_delivery=self._note,
                )
            except BufferError:
                self._producer.poll(ROUND_S)
            else:
                return

    def _value(self, partition: int) -> np.void:
        head = np.zeros(1, HEAD)[0]
        head["sender"], head["traits"] = self._client.sender, WITH_HEADERS | PLACED
        head["key"], head["id"] = PLACES + partition, self.sent
        return head

    def finish(self) -> bool:
        """Wait for all answers; whether all are acknowledgements."""
        left = self._producer.flush(STOP_S)
        return not (left or self.failed) and self.acknowledged == self.sent

    def _note(self, error: KafkaError | None, _message: Message) -> None:
        if error:
            self.failed.append(str(error))
        else:
            self.acknowledged += 1


class RunningClient(RunningModule):
    """One of them in its process."""

    stop_s = 2 * STOP_S

    def __init__(self, client: Client) -> None:
        super().__init__("tools.storms.kafka_client", json.dumps(asdict(client)))


def main() -> int:
    """Send until SIGTERM."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    client = Client(**json.loads(sys.argv[1]))
    sending, begun = Sending(client), time.monotonic()
    while not stopping:
        due = int(client.rate * (time.monotonic() - begun)) - sending.sent
        # A client that waits for bruce does not pile up what it could not send meanwhile.
        sending.send(min(due, client.rate))
        time.sleep(ROUND_S)
    whole = sending.finish()
    if whole:
        print(json.dumps({"sender": client.sender, "sent": sending.sent}))
    else:
        print(f"{sending.acknowledged} of {sending.sent}, and {sending.failed[:3]}")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
