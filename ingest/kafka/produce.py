"""Produce requests and their answers, versions 3 to 12, as Kafka's protocol guide has them.

    request  := transactional_id:nullable_string acks:i16 timeout_ms:i32 topic[]
    topic    := name:string partition[]
    partition:= index:i32 records:nullable_bytes
    answer   := answer_topic[] throttle_ms:i32
    answer_topic     := name:string answer_partition[]
    answer_partition := index:i32 error:i16 base_offset:i64 append_time:i64
                        start_offset:i64 (from version 5 on)
                        record_errors[] error_message:nullable_string (from version 8 on)

Until version 8 the length of an array is an i32, that of a string an i16, of bytes an i32, -1 for null. From
version 9 on each is a varint without a sign, one more than the length, 0 for null; and each structure ends
with tagged fields: a varint, how many, then each as its tag, its size and its bytes. All that brokers add
in later versions is tagged, and left out here.

A library that does this for all requests is used for all others (`ingest.kafka.protocol`). These come from
programs by the thousand a second, and it takes four times as long to write an answer; and a request of 16 MiB
with two million partitions takes it a quarter of a minute to read: here it is refused by MOST_PARTS.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ingest.kafka.errors import BadRequest

OLDEST, NEWEST = 3, 12
FLEXIBLE, _WITH_START, _WITH_MESSAGE = 9, 5, 8
"""The first versions with varints, a start offset, a message about an error."""
MOST_NAME_BYTES = 249
MOST_PARTS = 4096
"""Topics and partitions in one request."""
MOST_TAGGED = 16
"""Tagged fields of a structure: Kafka's own have none."""
_I16, _I32 = struct.Struct(">h"), struct.Struct(">i")
_ACKS = struct.Struct(">hi")
_PARTITION = struct.Struct(">ihqq")
_MOST_VARINT_BYTES = 5
NOTHING = memoryview(b"")


@dataclass(slots=True)
class Part:
    """The records for one partition."""

    topic: bytes
    partition: int
    records: memoryview
    """NOTHING, once they are stored: an answer may wait for longer."""


@dataclass(slots=True)
class Answer:
    """The outcome of a part."""

    error: int = 0
    """Kafka's code."""
    message: str = ""
    """About the error, for clients that show it."""
    offset: int = -1
    """Of the first record."""


class ProduceRequest(NamedTuple):
    """A request."""

    is_transactional: bool
    acks: int
    timeout_s: float
    parts: list[Part]


class Cursor:
    """Reads the fields of a request. All raise BadRequest when they run past its end."""

    __slots__ = ("_end", "_flexible", "at", "data")

    def __init__(self, data: memoryview, at: int, *, flexible: bool) -> None:
        self.data, self.at, self._end, self._flexible = data, at, len(data), flexible

    def take(self, size: int) -> memoryview:
        """So many bytes."""
        begin = self.at
        if not 0 <= size <= self._end - begin:
            raise BadRequest("it ends inside a field")
        self.at += size
        return self.data[begin : self.at]

    def number(self, kind: struct.Struct) -> int:
        """An integer."""
        return int(kind.unpack(self.take(kind.size))[0])

    def varint(self) -> int:
        """A varint without a sign."""
        value = 0
        for place in range(_MOST_VARINT_BYTES):
            if self.at == self._end:
                raise BadRequest("it ends inside a field")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << 7 * place
            if byte < 128:  # noqa: PLR2004  (the bit that says that more follow)
                return value
        raise BadRequest("a length has too many bytes")

    def size(self, kind: struct.Struct) -> int:
        """The length of a string or bytes, or of an array; -1: null."""
        return self.varint() - 1 if self._flexible else self.number(kind)

    def sized(self, kind: struct.Struct) -> memoryview | None:
        """A string or bytes; None: null."""
        size = self.size(kind)
        return None if size == -1 else self.take(size)

    def end_structure(self) -> None:
        """Pass over tagged fields."""
        if not self._flexible:
            return
        count = self.varint()
        if count > MOST_TAGGED:
            raise BadRequest(f"a structure has more than {MOST_TAGGED} tagged fields")
        for _ in range(count):
            self.varint()
            self.take(self.varint())


def read_request(version: int, data: memoryview, at: int) -> ProduceRequest:
    """The request whose body begins at an offset. Raises BadRequest."""
    cursor = Cursor(data, at, flexible=version >= FLEXIBLE)
    transactional = cursor.sized(_I16)
    acks, timeout_ms = _ACKS.unpack(cursor.take(_ACKS.size))
    parts: list[Part] = []
    for _ in range(_bounded(cursor.size(_I32))):
        name = cursor.sized(_I16)
        if name is None:
            raise BadRequest("a topic has no name")
        if len(name) > MOST_NAME_BYTES:
            # Each of its partitions, and the answer, would have a copy.
            raise BadRequest(f"a topic's name of {len(name)} bytes: Kafka's have {MOST_NAME_BYTES} at most")
        for _ in range(_bounded(cursor.size(_I32))):
            partition = cursor.number(_I32)
            parts.append(Part(bytes(name), partition, cursor.sized(_I32) or NOTHING))
            cursor.end_structure()
        cursor.end_structure()
        _bounded(len(parts))
    cursor.end_structure()
    return ProduceRequest(transactional is not None, acks, max(0, timeout_ms) / 1000, parts)


def _bounded(count: int) -> int:
    if count < 0:
        raise BadRequest("an array of it has no length")
    if count > MOST_PARTS:
        raise BadRequest(f"it has more than {MOST_PARTS} topics and partitions")
    return count


@dataclass(slots=True)
class _Writer:
    """The fields of an answer."""

    flexible: bool
    parts: list[bytes] = field(default_factory=list)

    def size(self, kind: struct.Struct, size: int) -> None:
        """The length of a string or an array; -1: null."""
        self.parts.append(varint(size + 1) if self.flexible else kind.pack(size))

    def string(self, value: bytes | None) -> None:
        """A string, or null."""
        self.size(_I16, -1 if value is None else len(value))
        self.parts.append(value or b"")

    def end_structure(self) -> None:
        """No tagged fields."""
        if self.flexible:
            self.parts.append(b"\x00")


def write_answer(version: int, answers: Iterable[tuple[Part, Answer]]) -> bytes:
    """The body of an answer, behind the header. `answers`: in the order of the request."""
    writer = _Writer(version >= FLEXIBLE)
    topics: dict[bytes, list[tuple[int, Answer]]] = {}
    for part, answer in answers:
        topics.setdefault(part.topic, []).append((part.partition, answer))
    if writer.flexible:
        # Of the header.
        writer.end_structure()
    writer.size(_I32, len(topics))
    for name, partitions in topics.items():
        writer.string(name)
        writer.size(_I32, len(partitions))
        for partition, answer in partitions:
            _write_partition(version, writer, partition, answer)
        writer.end_structure()
    writer.parts.append(_I32.pack(0))
    writer.end_structure()
    return b"".join(writer.parts)


def _write_partition(version: int, writer: _Writer, partition: int, answer: Answer) -> None:
    # The append time of a topic whose time is that of creation.
    writer.parts.append(_PARTITION.pack(partition, answer.error, answer.offset, -1))
    if version >= _WITH_START:
        writer.parts.append(b"\x00" * 8)
    if version >= _WITH_MESSAGE:
        writer.size(_I32, 0)
        writer.string(answer.message.encode() or None)
    writer.end_structure()


def varint(value: int) -> bytes:
    """A varint without a sign."""
    found = bytearray()
    while value > 127:  # noqa: PLR2004  (seven bits)
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
