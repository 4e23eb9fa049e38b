"""When messages arrive at a consumer: the other end of the latency and the day bench.

    python -m tools.benches.arrivals BOOTSTRAP TOPIC COUNT SKIP_S FETCH_WAIT_MS load|pace

The last word says which program sends: tools/load, or baselines/pace.c, whose values begin with their time.
Prints "ready" when it reads at the end of every partition, and after COUNT messages one JSON line with
percentiles in ms, from the time at which a message was due to the return of the call that brought it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np
from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from tools.load import PERCENTILES
from tools.payload import HEAD, HEAD_BYTES

BATCH = 10_000
DIGITS = 19
QUIET_S = 30.0
Stamps = Callable[[bytes], np.ndarray]
SENDERS: dict[str, tuple[int, Stamps]] = {
    "load": (HEAD_BYTES, lambda heads: np.frombuffer(heads, HEAD)["sent_ns"]),
    "pace": (DIGITS, lambda heads: np.frombuffer(heads, f"S{DIGITS}").astype(np.int64)),
}
"""By program: bytes at the beginning of a value, and the times in many of these, in ns since the epoch."""


def collect(consumer: Consumer, count: int, sender: str) -> tuple[np.ndarray, np.ndarray]:
    """(sent, arrived) of each message, in ns since the epoch."""
    head_bytes, stamps = SENDERS[sender]
    sent: list[np.ndarray] = []
    arrived: list[np.ndarray] = []
    heard = time.monotonic()
    while sum(len(part) for part in sent) < count and time.monotonic() < heard + QUIET_S:
        first = consumer.poll(0.1)
        if first is None:
            continue
        messages = [first, *consumer.consume(BATCH, 0)]
        now, heard = time.time_ns(), time.monotonic()
        for message in messages:
            if message.error():
                raise KafkaException(message.error())
        heads = b"".join([(m.value() or b"").ljust(head_bytes, b"\0")[:head_bytes] for m in messages])
        sent.append(stamps(heads))
        arrived.append(np.full(len(messages), now))
    return np.concatenate(sent), np.concatenate(arrived)


def main() -> None:
    """Measure the topic of the command line."""
    bootstrap, topic, count, skip_s, wait_ms, sender = sys.argv[1:]
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "arrivals",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": int(wait_ms),
            "fetch.min.bytes": 1,
        }
    )
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_END) for number in partitions])
    # The first fetches find the ends.
    consumer.poll(2.0)
    print("ready", flush=True)
    sent, arrived = collect(consumer, int(count), sender)
    consumer.close()
    late = (arrived - sent)[sent >= sent.min() + int(float(skip_s) * 1e9)] / 1e6
    found = {name: round(float(np.quantile(late, share)), 3) for name, share in PERCENTILES.items()}
    print(json.dumps({"messages": len(sent), **found, "max": round(float(late.max()), 3)}))


if __name__ == "__main__":
    main()
