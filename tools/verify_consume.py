"""Reading partitions from beginning to end, as columns: one process of the verifier.

    python -m tools.verify_consume BOOTSTRAP OUTPUT.npy '[["topic", number of the topic, partition], ...]'

Writes one row of RECORD a message, in the order of each partition, and prints what Kafka no longer had:
{"dropped": messages below the first offset that is kept}.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tools.payload import (
    HEAD,
    HEAD_BYTES,
    LEAST_BYTES,
    NO_KEY,
    NOTHING,
    PATTERN,
    PLACED,
    PLACES,
    TAIL_BYTES,
    TOMBSTONE,
    VALUE,
    Headers,
    headers_of,
)

RECORD = np.dtype(
    [
        ("sender", "<u4"),
        ("key", "<i4"),
        ("id", "<i8"),
        ("sequence", "<i8"),
        ("offset", "<i8"),
        ("topic", "<u2"),
        ("partition", "<u2"),
        ("corrupt", "u1"),
        ("batch", "u1"),
    ]
)
Rows = npt.NDArray[np.void]
NO_SEQUENCE = -1
BATCH = 20_000
QUIET_S = 60.0
"""Longest time without a message before the verifier gives up."""
HEADER = "bruce-id"
_ID_BYTES = 24
"""A uuid and a sequence."""
_BROKEN = bytes(LEAST_BYTES)


class Stalled(Exception):
    """Kafka says that there is more, and does not hand it over."""


def consume(
    bootstrap: str, partitions: list[TopicPartition], numbers: dict[str, int]
) -> tuple[list[Rows], int]:
    """(arrays of RECORD, messages dropped by Kafka). Raises Stalled, KafkaException."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "verify",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            "queued.min.messages": 200_000,
            "enable.partition.eof": True,
        }
    )
    try:
        ends, dropped = {}, 0
        for partition in partitions:
            low, high = consumer.get_watermark_offsets(partition, timeout=30)
            partition.offset = low
            dropped += low
            if low < high:
                ends[partition.topic, partition.partition] = high
        consumer.assign([p for p in partitions if (p.topic, p.partition) in ends])
        return _read_to(consumer, ends, numbers), dropped
    finally:
        consumer.close()


def _read_to(consumer: Consumer, ends: dict[tuple[str, int], int], numbers: dict[str, int]) -> list[Rows]:
    """Read every partition to its end."""
    parts, heard = [], time.monotonic()
    while ends:
        consumed = consumer.consume(BATCH, timeout=0.5)
        messages = [message for message in consumed if not _is_end(message)]
        if messages:
            parts.append(columns(messages, numbers))
            heard = time.monotonic()
        # The last offset of a partition can be the end of a transaction, which no consumer is given.
        for message in consumed:
            place, offset = _place(message)
            if _is_end(message) and offset >= ends.get(place, 1 << 62):
                del ends[place]
        if time.monotonic() - heard > QUIET_S:
            raise Stalled(f"no message for {QUIET_S:.0f} s, and {len(ends)} partitions have more: {ends}")
    return parts


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001  (its public name)


def _place(message: Message) -> tuple[tuple[str, int], int]:
    """((topic, partition), offset) of a message that was consumed."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None and partition is not None and offset is not None  # noqa: PT018
    return (topic, partition), offset


def columns(messages: list[Message], numbers: dict[str, int]) -> Rows:
    """Messages as RECORD rows. Raises KafkaException for one that is an error."""
    for message in messages:
        if message.error():
            raise KafkaException(message.error())
    headers = [_headers(message) for message in messages]
    values = [_whole(message.value(), own) for message, (_, own) in zip(messages, headers, strict=True)]
    heads = np.frombuffer(b"".join([v[:HEAD_BYTES] for v in values]), HEAD)
    tails = np.frombuffer(b"".join([v[-TAIL_BYTES:] for v in values]), "<u8")
    keys = [message.key() for message in messages]
    stamps = np.array([message.timestamp()[1] for message in messages], np.int64)
    rows = np.zeros(len(messages), RECORD)
    rows["sender"], rows["key"], rows["id"] = heads["sender"], heads["key"], heads["id"]
    rows["sequence"] = [sequence for sequence, _ in headers]
    rows["batch"] = heads["batch"]
    rows["offset"] = [message.offset() for message in messages]
    rows["topic"] = [numbers[_place(message)[0][0]] for message in messages]
    rows["partition"] = [message.partition() for message in messages]
    rows["corrupt"] = (
        (tails != heads["id"])
        | (stamps != heads["sent_ns"] // 1_000_000)
        | ~np.array([v[HEAD_BYTES:-TAIL_BYTES] == PATTERN[: len(v) - LEAST_BYTES] for v in values], bool)
        | ~_keys_match(keys, heads)
        | ~_headers_match(headers, heads["traits"], values)
        | (((heads["traits"] & PLACED) != 0) & (heads["key"] - PLACES != rows["partition"]))
        | (((heads["traits"] & TOMBSTONE) != 0) != np.array([m.value() is None for m in messages], bool))
    )
    return rows


def _headers(message: Message) -> tuple[int, Headers]:
    """The sequence of its header `bruce-id`, the first; NO_SEQUENCE without one. And the others."""
    headers: Headers = list(message.headers() or ())  # type: ignore[arg-type]
    if not headers or headers[0][0] != HEADER:
        return NO_SEQUENCE, headers
    identity = headers[0][1] or b""
    return int.from_bytes(identity[16:], "big") if len(identity) == _ID_BYTES else NO_SEQUENCE, headers[1:]


def _whole(value: bytes | None, headers: Headers) -> bytes:
    """A value long enough to be looked at; one that is not does not carry its id twice either."""
    if value is None and len(headers) > 1 and headers[-1] == NOTHING and headers[-2][0] == VALUE:
        value = headers[-2][1]
    return value if value is not None and len(value) >= LEAST_BYTES else _BROKEN[:-1] + b"\xff"


def _headers_match(
    found: list[tuple[int, Headers]], traits: npt.NDArray[np.uint8], values: list[bytes]
) -> npt.NDArray[np.bool_]:
    """Whether each message has the headers that were sent with it."""
    rows = zip(found, traits.tolist(), values, strict=True)
    return np.array([own == headers_of(kind, v[-TAIL_BYTES:], v) for (_, own), kind, v in rows], bool)


def _keys_match(keys: list[bytes | None], heads: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Whether each message's own key is what was sent: its partition key or id, or none at all."""
    wanted = np.where(heads["key"] == NO_KEY, heads["id"].astype(np.int64), heads["key"].astype(np.int64))
    numbers = [None if key is None else int.from_bytes(key, "little", signed=True) for key in keys]
    return np.array([n is None or n == w for n, w in zip(numbers, wanted.tolist(), strict=True)], bool)


def main() -> None:
    """Consume what the command line says."""
    bootstrap, output, listed = sys.argv[1:]
    places = json.loads(listed)
    numbers = {topic: number for topic, number, _ in places}
    partitions = [TopicPartition(topic, partition) for topic, _, partition in places]
    parts, dropped = consume(bootstrap, partitions, numbers)
    np.save(Path(output), np.concatenate([np.zeros(0, RECORD), *parts]))
    print(json.dumps({"dropped": dropped}))


if __name__ == "__main__":
    main()
