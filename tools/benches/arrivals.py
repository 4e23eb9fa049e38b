"""When messages of tools/load arrive at a consumer: the other end of the latency bench.

    python -m tools.benches.arrivals BOOTSTRAP TOPIC COUNT SKIP_S FETCH_WAIT_MS

Prints "ready" when it reads at the end of every partition, and after COUNT messages one JSON line with
percentiles in ms, from the time at which a message was due to the return of the call that brought it.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from tools.load import PERCENTILES
from tools.payload import HEAD, HEAD_BYTES

BATCH = 10_000
QUIET_S = 30.0


def collect(consumer: Consumer, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(sent, arrived) of each message, in ns since the epoch."""
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
        heads = b"".join([(m.value() or bytes(HEAD_BYTES))[:HEAD_BYTES] for m in messages])
        sent.append(np.frombuffer(heads, HEAD)["sent_ns"])
        arrived.append(np.full(len(messages), now))
    return np.concatenate(sent), np.concatenate(arrived)


def main() -> None:
    """Measure what the command line says."""
    bootstrap, topic, count, skip_s, wait_ms = sys.argv[1:]
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
    sent, arrived = collect(consumer, int(count))
    consumer.close()
    late = (arrived - sent)[sent >= sent.min() + int(float(skip_s) * 1e9)] / 1e6
    found = {name: round(float(np.quantile(late, share)), 3) for name, share in PERCENTILES.items()}
    print(json.dumps({"messages": len(sent), **found, "max": round(float(late.max()), 3)}))


if __name__ == "__main__":
    main()
