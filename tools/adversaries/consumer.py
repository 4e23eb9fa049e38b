"""All records of some topics, as they come, and their times of arrival: a process of its own.

    python -m tools.adversaries.consumer BOOTSTRAP OUTPUT.npy COUNTS '["topic", ...]'

Prints "ready". COUNTS is a file of int64: distinct messages seen, by the number of their sender. When its
input closes it reads on to the end of every partition, and writes SEEN rows.
"""

from __future__ import annotations

import json
import select
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Consumer, Message, TopicPartition

from tools.payload import HEAD, HEAD_BYTES
from tools.verify_consume import RECORD, columns

SENDERS = 256
SEEN = np.dtype(
    [*[(name, RECORD[name].str) for name in RECORD.names or ()], ("sent_ns", "<i8"), ("at_ns", "<i8")]
)
END_S = 30.0


def rows_of(messages: list[Message], numbers: dict[str, int], at_ns: int) -> np.ndarray:
    """SEEN rows of messages that came together."""
    rows = np.zeros(len(messages), SEEN)
    found = columns(messages, numbers)
    for name in RECORD.names or ():
        rows[name] = found[name]
    heads = b"".join([(m.value() or b"")[:HEAD_BYTES].ljust(HEAD_BYTES, b"\0") for m in messages])
    rows["sent_ns"], rows["at_ns"] = np.frombuffer(heads, HEAD)["sent_ns"], at_ns
    return rows


def main() -> None:
    """Consume the topics of the command line."""
    bootstrap, output, counts_path, listed = sys.argv[1:]
    numbers = {topic: number for number, topic in enumerate(json.loads(listed))}
    counts = np.memmap(counts_path, np.int64, "r+", shape=(SENDERS,))
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "adversary",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 2,
            "log_level": 0,
        }
    )
    known = consumer.list_topics(timeout=30).topics
    places = [TopicPartition(topic, number, 0) for topic in numbers for number in known[topic].partitions]
    consumer.assign(places)
    parts, reached = [np.zeros(0, SEEN)], dict[tuple[Any, Any], int]()
    arrived = set[tuple[int, int]]()
    ends: dict[tuple[Any, Any], int] | None = None
    deadline = float("inf")
    print("ready", flush=True)
    while time.monotonic() < deadline:
        first = consumer.poll(0.05)
        if first is not None:
            messages = [m for m in (first, *consumer.consume(10_000, 0)) if not m.error()]
            parts.append(rows_of(messages, numbers, time.time_ns()))
            for message in messages:
                reached[message.topic(), message.partition()] = (message.offset() or 0) + 1
            # A message that comes twice has arrived once.
            new = {*zip(parts[-1]["sender"].tolist(), parts[-1]["id"].tolist(), strict=True)} - arrived
            arrived |= new
            for sender, _ in new:
                if sender < SENDERS:
                    counts[sender] += 1
        elif ends is None and select.select([sys.stdin], [], [], 0)[0]:
            ends = {(p.topic, p.partition): consumer.get_watermark_offsets(p, timeout=30)[1] for p in places}
            deadline = time.monotonic() + END_S
        if ends is not None and all(reached.get(place, 0) >= end for place, end in ends.items()):
            break
    consumer.close()
    np.save(Path(output), np.concatenate(parts))


if __name__ == "__main__":
    main()
