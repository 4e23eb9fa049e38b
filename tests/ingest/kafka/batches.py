"""Record batches of a library that is not ours, and a plain reader of what the Kafka worker makes of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from kafka.record.default_records import DefaultRecordBatchBuilder

Headers = Sequence[tuple[str, bytes | None]]


class Record(NamedTuple):
    """A record as a producer is given it."""

    value: bytes | None = b"v"
    key: bytes | None = None
    timestamp: int = 1_700_000_000_000
    headers: Headers = ()


class Found(NamedTuple):
    """A Message, read without the project's code."""

    topic: bytes
    flags: int
    number: int
    record: Record


def record_batch(
    records: Sequence[Record],
    *,
    codec: int = 0,
    producer: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """A batch as kafka-python writes it."""
    builder = DefaultRecordBatchBuilder(2, codec, transactional, producer, epoch, sequence, 1 << 30)
    for offset, one in enumerate(records):
        builder.append(offset, one.timestamp, one.key, one.value, list(one.headers))
    return bytes(builder.build())


def read_batches(data: bytes) -> list[list[Found]]:
    """The messages of Batches, one behind the other."""
    found, at = [], 0
    while at < len(data):
        size, kind, version, flags = struct.unpack_from(">ihhh", data, at)
        assert (kind, version, flags) == (259, 0, 0)
        found.append(list(_messages(data[at + 10 : at + size])))
        at += size
    assert at == len(data)
    return found


def _messages(data: bytes) -> list[Found]:
    found, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        found.append(_message(data[at : at + size]))
        at += size
    assert at == len(data)
    return found


def _message(data: bytes) -> Found:
    _, kind, version, flags, number, length = struct.unpack_from(">ihhhih", data)
    assert (kind, version) == (258, 0)
    topic, at = data[16 : 16 + length], 16 + length
    (timestamp,) = struct.unpack_from(">q", data, at)
    key, at = _sized(data, at + 8)
    value, at = _sized(data, at)
    headers = []
    while at < len(data):
        (length,) = struct.unpack_from(">h", data, at)
        name = data[at + 2 : at + 2 + length].decode()
        content, at = _sized(data, at + 2 + length)
        headers.append((name, content))
    return Found(topic, flags, number, Record(value, key, timestamp, tuple(headers)))


def _sized(data: bytes, at: int) -> tuple[bytes | None, int]:
    (size,) = struct.unpack_from(">i", data, at)
    return (None, at + 4) if size == -1 else (data[at + 4 : at + 4 + size], at + 4 + size)
