"""A message, or a batch, as bruce reads it from a datagram or a stream. `spool.format.wire` has the format.

This package imports nothing but Python's own library, so it has an encoder of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

ANY_PARTITION = 256
PARTITION_KEY = 257
MESSAGE = 258
BATCH = 259
MAX_DATAGRAM_BYTES = 65536
"""Bruce's limit; a longer datagram is counted as truncated."""
MAX_TOPIC_BYTES = 32767
MAX_HEADERS, MAX_NAME_BYTES = 256, 255
"""Most headers of a message, and most bytes of the name of one."""
MAX_BATCH = 256
"""Most messages in a batch."""
BATCH_HEAD_BYTES = 10
"""Of a batch, before its messages."""

Headers = Iterable[tuple[str, str | bytes | None]]
"""Name and value of each, in order."""


class Message(NamedTuple):
    """A message as a program has it; text is sent as UTF-8."""

    topic: str | bytes
    value: str | bytes | None
    key: str | bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    """The number of its partition."""
    partition_key: int | None = None
    """Messages of a topic with the same number go to the same partition."""
    timestamp_ms: int | None = None
    """Since the epoch; None: now."""


_ANY = struct.Struct(">ihhhh")
_KEYED = struct.Struct(">ihhhih")
_BATCH_HEAD = struct.Struct(">ihhh")
_BY_PARTITION_KEY, _BY_PARTITION = 4, 8
_NAME_LENGTH = struct.Struct(">h")
_NULL = -1
_TIME_AND_KEY = struct.Struct(">qi")
_LENGTH = struct.Struct(">i")


def encode(
    topic: bytes, value: bytes, *, key: bytes = b"", timestamp: int = 0, partition_key: int | None = None
) -> bytes:
    """One message. `timestamp` is in ms since the epoch; a `partition_key` makes it a PartitionKey message.

    Raises ValueError when the topic is empty or longer than 32,767 bytes, struct.error when a number does not
    fit into its field.
    """
    _check_topic(topic)
    rest = topic + _TIME_AND_KEY.pack(timestamp, len(key)) + key + _LENGTH.pack(len(value)) + value
    if partition_key is None:
        return _ANY.pack(_ANY.size + len(rest), ANY_PARTITION, 0, 0, len(topic)) + rest
    size = _KEYED.size + len(rest)
    return _KEYED.pack(size, PARTITION_KEY, 0, 0, partition_key, len(topic)) + rest


def encode_message(  # noqa: PLR0913  (the fields of a message)
    topic: bytes,
    value: bytes | None,
    *,
    key: bytes | None = None,
    timestamp: int = 0,
    partition: int | None = None,
    partition_key: int | None = None,
    headers: Headers = (),
) -> bytes:
    """One message of the kind Message: `key` and `value` may be null, and it may have headers.

    `partition`: its number, or it goes by `partition_key`, or anywhere. Raises ValueError for a topic as
    `encode` does, for a name of a header that is too long or has a zero byte, for more than 256 headers, and
    for a partition beside a partition key; struct.error when a number does not fit into its field.
    """
    _check_topic(topic)
    if partition is not None and partition_key is not None:
        raise ValueError("it has a partition, or a partition key")
    flags = _BY_PARTITION if partition is not None else _BY_PARTITION_KEY if partition_key is not None else 0
    number = partition if partition is not None else partition_key or 0
    rest = topic + struct.pack(">q", timestamp) + _sized(key) + _sized(value) + _encode_headers(headers)
    return _KEYED.pack(_KEYED.size + len(rest), MESSAGE, 0, flags, number, len(topic)) + rest


def to_bytes(message: Message, now_ms: int) -> bytes:
    """A message, encoded as the oldest kind that has all of it. Raises as the others do.

    An empty key that is not null, a null value, headers and a partition make it of the kind Message.
    """
    topic, value, key, headers, partition, partition_key, timestamp_ms = message
    topic = topic.encode() if isinstance(topic, str) else topic
    value = value.encode() if isinstance(value, str) else value
    key = key.encode() if isinstance(key, str) else key
    timestamp = now_ms if timestamp_ms is None else timestamp_ms
    if headers or value is None or partition is not None or key == b"":
        more = {"partition": partition, "partition_key": partition_key}
        return encode_message(topic, value, key=key, timestamp=timestamp, headers=headers, **more)
    return encode(topic, value, key=key or b"", timestamp=timestamp, partition_key=partition_key)


def encode_batch(messages: Iterable[bytes]) -> bytes:
    """A batch of messages, each encoded: it is taken as a whole, or refused as a whole.

    Raises ValueError for none, and for more than 256 messages.
    """
    parts = list(messages)
    if not 0 < len(parts) <= MAX_BATCH:
        raise ValueError(f"a batch has 1 to {MAX_BATCH} messages")
    rest = b"".join(parts)
    return _BATCH_HEAD.pack(BATCH_HEAD_BYTES + len(rest), BATCH, 0, 0) + rest


def in_batches(messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """(how many messages, their bytes): batches that fit into a datagram, of encoded messages in their order.

    A message that would be alone in its batch, or that no batch has room for, comes by itself.
    """
    parts: list[bytes] = []
    size = BATCH_HEAD_BYTES
    for message in messages:
        if parts and (size + len(message) > MAX_DATAGRAM_BYTES or len(parts) == MAX_BATCH):
            yield len(parts), _together(parts)
            parts, size = [], BATCH_HEAD_BYTES
        if size + len(message) > MAX_DATAGRAM_BYTES:
            yield 1, message
            continue
        parts.append(message)
        size += len(message)
    if parts:
        yield len(parts), _together(parts)


def _together(messages: list[bytes]) -> bytes:
    return messages[0] if len(messages) == 1 else encode_batch(messages)


def _check_topic(topic: bytes) -> None:
    if not 0 < len(topic) <= MAX_TOPIC_BYTES:
        raise ValueError(f"a topic has 1 to {MAX_TOPIC_BYTES} bytes")


def _sized(data: str | bytes | None) -> bytes:
    if data is None:
        return _LENGTH.pack(_NULL)
    data = data.encode() if isinstance(data, str) else data
    return _LENGTH.pack(len(data)) + data


def _encode_headers(headers: Headers) -> bytes:
    encoded = [(name.encode(), value) for name, value in headers]
    if len(encoded) > MAX_HEADERS:
        raise ValueError(f"a message has up to {MAX_HEADERS} headers")
    for name, _ in encoded:
        if len(name) > MAX_NAME_BYTES or b"\0" in name:
            raise ValueError(f"the name of a header has up to {MAX_NAME_BYTES} bytes, and no zero byte")
    return b"".join(_NAME_LENGTH.pack(len(name)) + name + _sized(value) for name, value in encoded)
