"""Replies and flags: bytes that clients in other languages rely on."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest import reply
from ingest.reply import (
    Reply,
    Status,
    clear_flags,
    decode,
    encode,
    list_messages,
    read_flags,
    read_timestamp,
    tag,
)
from spool.format.wire import encode as message
from spool.format.wire import encode_batch
from tests.ack_client import with_flags
from tests.spool import plain
from tests.spool.strategies import datagrams

REQUEST = "0000001d 0100 0000 0001 0001 74 0000000000000001 00000000 00000000"
ANSWER = "6241636b 01 00 0000 0000000000000000 0000000000000001 0000001d 16df63fd"


def test_the_example() -> None:
    """The bytes in the specification are those that are sent and understood."""
    assert REQUEST in str(reply.__doc__)
    assert ANSWER in str(reply.__doc__)
    request = with_flags(message(b"t", b"", timestamp=1), 1)
    assert request == bytes.fromhex(REQUEST)
    view = memoryview(request)
    marked = tag(read_timestamp(view), len(request), zlib.crc32(request))
    assert encode(Status.SYNCED, marked, sequence=0) == bytes.fromhex(ANSWER)
    assert decode(bytes.fromhex(ANSWER)) == Reply(0, 0, 0, 1, 29, 0x16DF63FD)


@given(
    st.integers(0, 3),
    st.integers(0, 31),
    st.integers(-1, 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 65537),
    st.integers(0, 2**32 - 1),
)
def test_round_trip(status: int, reason: int, sequence: int, timestamp: int, size: int, crc32: int) -> None:
    """A reply decodes to the values that were encoded, in 32 bytes."""
    data = encode(status, tag(timestamp, size, crc32), sequence=sequence, reason=reason)
    assert len(data) == reply.REPLY_BYTES
    assert decode(data) == Reply(status, reason, sequence, timestamp, size, crc32)


@given(st.binary(max_size=40))
def test_what_is_no_reply(data: bytes) -> None:
    """Anything else is refused."""
    with pytest.raises(ValueError, match="reply"):
        decode(data)


@given(
    st.binary(min_size=1, max_size=300),
    st.binary(max_size=50),
    st.integers(-(2**63), 2**63 - 1),
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**15), 2**15 - 1),
)
def test_flags(topic: bytes, value: bytes, timestamp: int, key: int | None, flags: int) -> None:
    """Flags of this socket are taken away, others stay; the timestamp is found in both kinds of message."""
    one = message(topic, value, timestamp=timestamp, partition_key=key)
    asking = bytearray(with_flags(one, flags))
    view = memoryview(asking)
    assert read_flags(view) == flags & 0xFFFF
    assert read_timestamp(view) == timestamp
    clear_flags(view)
    assert bytes(asking) == with_flags(one, flags & ~3)


@given(st.lists(datagrams, min_size=1, max_size=5))
def test_the_messages_of_a_batch(parts: list[bytes]) -> None:
    """A batch, whatever its flags, has the messages that it was made of; a message has itself."""
    batch = bytearray(with_flags(encode_batch(parts), reply.WHEN_DELIVERED))
    assert list(map(bytes, list_messages(memoryview(batch)))) == parts
    assert list(map(bytes, list_messages(memoryview(parts[0])))) == parts[:1]
    assert read_timestamp(memoryview(parts[0])) == plain.parse_datagram(parts[0]).timestamp  # type: ignore[union-attr]


@given(st.binary(max_size=9))
def test_too_short_for_flags(data: bytes) -> None:
    """It is left as it is, and its sender wants to know."""
    changed = bytearray(data)
    clear_flags(memoryview(changed))
    assert bytes(changed) == data
    assert read_flags(memoryview(changed)) == reply.WHEN_SYNCED
