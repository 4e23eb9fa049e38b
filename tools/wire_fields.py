"""The bytes of a message or batch, field by field, for the examples of bruce-wire(7)."""

from __future__ import annotations

from collections.abc import Iterator

from spool.format.wire import BY_PARTITION, BY_PARTITION_KEY, NULL, Kind

_FLAGS = {0: "nothing", BY_PARTITION_KEY: "the number is a partition key", BY_PARTITION: "it is a partition"}

Field = tuple[str, str]
"""The bytes in hexadecimal digits, and what they are."""


class _Bytes:
    """Bytes that are taken from the front."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        """The next bytes."""
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, count: int) -> tuple[int, str]:
        """The next integer, and its digits."""
        taken = self.take(count)
        return int.from_bytes(taken, "big", signed=True), taken.hex()


def list_fields(data: bytes) -> Iterator[Field]:
    """The fields of a datagram that is well-formed."""
    left = _Bytes(data)
    size, digits = left.number(4)
    yield digits, f"size: {size} bytes"
    key, digits = left.number(2)
    yield digits, f"api key {key}"
    yield left.number(2)[1], "version"
    flags, digits = left.number(2)
    yield digits, f"flags: {_FLAGS[flags]}"
    if key & 0xFF == Kind.BATCH:
        while left.at < len(data):
            yield from list_fields(left.take(int.from_bytes(data[left.at : left.at + 4], "big")))
        return
    if key & 0xFF != Kind.ANY_PARTITION:
        number, digits = left.number(4)
        yield digits, f"number: {number}"
    yield from _sized(left, 2, "topic")
    timestamp, digits = left.number(8)
    yield digits, f"timestamp: {timestamp}"
    yield from _sized(left, 4, "key")
    yield from _sized(left, 4, "value")
    while left.at < len(data):
        yield from _sized(left, 2, "header")
        yield from _sized(left, 4, "its value")


def _sized(left: _Bytes, bytes_of_size: int, name: str) -> Iterator[Field]:
    size, digits = left.number(bytes_of_size)
    if size == NULL:
        yield digits, f"{name}: null"
        return
    yield digits, f"{name}: {size} bytes"
    if size:
        text = left.take(size)
        yield text.hex(), text.decode()
