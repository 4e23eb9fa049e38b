"""Datagrams of programs: each right one is accepted, each wrong one refused under its own reason."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.format import wire
from spool.format.wire import (
    Reason,
    check,
    count_messages,
    encode,
    encode_batch,
    encode_message,
    load_be16,
    load_be32,
    load_be64,
    reason_name,
    split_topic,
    with_topic,
)
from spool.native.memory import address_of
from tests.spool import plain
from tests.spool.strategies import anything, batches, datagrams, i16, i32, i64, long_messages, messages

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/golden_datagrams.json").read_text())
RIGHT = encode(b"topic", b"value", key=b"key", timestamp=-5)
KEYED = encode(b"topic", b"value", key=b"key", partition_key=7)
LONG = encode_message(b"topic", b"value", key=b"key", timestamp=-5, headers=[("name", b"text"), ("n", None)])
BATCH = encode_batch([RIGHT, KEYED, LONG])


def verdict(data: bytes) -> str:
    """The name of the result of `check`, with bytes behind the datagram that must not matter."""
    memory = np.frombuffer(data + b"\xff" * 16, np.uint8).copy()
    return reason_name(check(address_of(memory), len(data)))


def put(data: bytes, at: int, code: str, value: int, *, size: bool = True) -> bytes:
    """The datagram with one field overwritten, and its size field corrected if asked."""
    changed = bytearray(data)
    struct.pack_into(code, changed, at, value)
    if size:
        struct.pack_into(">i", changed, 0, len(changed))
    return bytes(changed)


def resized(data: bytes) -> bytes:
    """The datagram with a size field that fits."""
    return put(data, 0, ">i", len(data))


@given(messages)
def test_encoded_messages_are_accepted_and_read_back(fields: dict[str, object]) -> None:
    """encode writes messages that check accepts and an independent parser reads back, field by field."""
    data = encode(**fields)  # type: ignore[arg-type]
    defaults = {"timestamp": 0}
    assert verdict(data) == "accepted"
    expected = {**defaults, **fields, "key": fields.get("key") or None}
    assert plain.parse_datagram(data) == plain.Message(**expected)  # type: ignore[arg-type]


@given(long_messages)
def test_messages_with_headers_and_nulls_are_read_back(fields: dict[str, object]) -> None:
    """encode_message writes what check accepts, and an independent parser reads back what was given."""
    data = encode_message(**fields)  # type: ignore[arg-type]
    defaults = {"key": None, "timestamp": 0}
    expected = {**defaults, **fields, "headers": tuple(fields.get("headers", ()))}  # type: ignore[arg-type]
    assert verdict(data) == "accepted"
    assert plain.parse_datagram(data) == plain.Message(**expected)  # type: ignore[arg-type]


@given(st.lists(datagrams, min_size=1, max_size=8))
def test_a_batch_has_the_messages_it_was_made_of(parts: list[bytes]) -> None:
    """encode_batch writes what check accepts, and the parser finds each message in it, in order."""
    data = encode_batch(parts)
    assert verdict(data) == "accepted"
    assert plain.parse(data) == [plain.parse_datagram(part) for part in parts]
    memory = np.frombuffer(data, np.uint8).copy()
    assert count_messages(address_of(memory), len(data)) == len(parts)


@given(anything)
def test_every_datagram_gets_the_verdict_of_the_independent_parser(data: bytes) -> None:
    """For any bytes, check and an independent parser agree on the reason."""
    parsed = plain.parse(data)
    assert verdict(data) == (parsed if isinstance(parsed, str) else "accepted")


@given(datagrams | batches)
def test_every_prefix_is_refused(data: bytes) -> None:
    """A datagram cut anywhere is refused; with a right size field it may end behind a header or message."""
    for end in range(len(data)):
        assert verdict(data[:end]) == ("short" if end < 8 else "size")
        if end >= 8:
            parsed = plain.parse(resized(data[:end]))
            assert verdict(resized(data[:end])) == (parsed if isinstance(parsed, str) else "accepted")
            assert isinstance(parsed, str) or data[4:6] in (b"\1\2", b"\1\3")


@pytest.mark.parametrize(
    "vector", GOLDEN, ids=lambda v: f"{v['kind']}-{v['topic'][:12]}-{len(v['datagram_hex'])}"
)
def test_golden_datagrams_are_accepted_and_made(vector: dict[str, object]) -> None:
    """Datagrams of a Dory client library are accepted, decode to their fields, and equal those of encode."""
    data = bytes.fromhex(str(vector["datagram_hex"]))
    key, value = (bytes.fromhex(str(vector[name])) for name in ("key_hex", "value_hex"))
    topic, timestamp = str(vector["topic"]).encode(), int(str(vector["timestamp"]))
    partition_key = vector.get("partition_key")
    assert verdict(data) == "accepted"
    assert plain.parse_datagram(data) == plain.Message(topic, timestamp, key or None, value, partition_key)  # type: ignore[arg-type]
    assert encode(topic, value, key=key, timestamp=timestamp, partition_key=partition_key) == data  # type: ignore[arg-type]


def encode_long_name(length: int) -> bytes:
    """A Message with a header whose name is so long."""
    name = struct.pack(">h", length) + b"n" * length
    return resized(encode_message(b"t", b"") + name + struct.pack(">i", 0))


NEW = json.loads((Path(__file__).parents[2] / "golden/messages.json").read_text())


def from_hex(text: str | None) -> bytes | None:
    """Bytes of the golden file, or null."""
    return None if text is None else bytes.fromhex(text)


@pytest.mark.parametrize(
    "vector", NEW["messages"], ids=lambda v: f"{v['topic'][:12]}-{len(v['datagram_hex'])}"
)
def test_golden_messages_are_accepted_and_made(vector: dict[str, object]) -> None:
    """The vectors of Message: accepted, read by the independent parser, and equal to what is encoded."""
    data, topic = bytes.fromhex(str(vector["datagram_hex"])), str(vector["topic"]).encode()
    fields = {
        "timestamp": vector["timestamp"],
        "key": from_hex(vector["key_hex"]),  # type: ignore[arg-type]
        "value": from_hex(vector["value_hex"]),  # type: ignore[arg-type]
        "partition": vector["partition"],
        "partition_key": vector["partition_key"],
        "headers": tuple((name, from_hex(text)) for name, text in vector["headers"]),  # type: ignore[attr-defined]
    }
    assert verdict(data) == "accepted"
    assert plain.parse_datagram(data) == plain.Message(topic, **fields)  # type: ignore[arg-type]
    assert encode_message(topic, **fields) == data  # type: ignore[arg-type]


@pytest.mark.parametrize("vector", NEW["batches"], ids=lambda v: str(len(v["messages"])))
def test_golden_batches_are_accepted_and_made(vector: dict[str, object]) -> None:
    """The vectors of Batch: they are the vectors of their messages, put together."""
    data = bytes.fromhex(str(vector["datagram_hex"]))
    parts = [bytes.fromhex(NEW["messages"][n]["datagram_hex"]) for n in vector["messages"]]  # type: ignore[attr-defined]
    assert verdict(data) == "accepted"
    assert encode_batch(parts) == data
    assert plain.parse(data) == [plain.parse_datagram(part) for part in parts]


MALFORMED = {
    "nothing at all": (b"", "short"),
    "seven bytes": (RIGHT[:7], "short"),
    "negative size": (put(RIGHT, 0, ">i", -1, size=False), "size"),
    "size too small": (put(RIGHT, 0, ">i", len(RIGHT) - 1, size=False), "size"),
    "size too large": (put(RIGHT, 0, ">i", len(RIGHT) + 1, size=False), "size"),
    "size without its own four bytes": (put(RIGHT, 0, ">i", len(RIGHT) - 4, size=False), "size"),
    "api key 255": (put(RIGHT, 4, ">h", 255), "api_key"),
    "api key 260": (put(RIGHT, 4, ">h", 260), "api_key"),
    "api key with its bytes swapped": (put(RIGHT, 4, ">h", 1), "api_key"),
    "wrong size and api key: size comes first": (put(RIGHT[:-1], 4, ">h", 9, size=False), "size"),
    "version 1": (put(RIGHT, 6, ">h", 1), "api_version"),
    "version 1, keyed": (put(KEYED, 6, ">h", 1), "api_version"),
    "eight bytes, no flags": (resized(RIGHT[:8]), "flags"),
    "nine bytes, half the flags": (resized(RIGHT[:9]), "flags"),
    "flags 1": (put(RIGHT, 8, ">h", 1), "flags"),
    "no topic length": (resized(RIGHT[:10]), "topic"),
    "keyed, no partition key": (resized(KEYED[:12]), "topic"),
    "keyed, no topic length": (resized(KEYED[:14]), "topic"),
    "topic of no bytes": (put(RIGHT, 10, ">h", 0), "topic"),
    "negative topic length": (put(RIGHT, 10, ">h", -1), "topic"),
    "topic past the end": (put(RIGHT, 10, ">h", 32767), "topic"),
    "no timestamp": (resized(RIGHT[:17]), "timestamp"),
    "half a timestamp": (resized(RIGHT[:24]), "timestamp"),
    "no key length": (resized(RIGHT[:25]), "key"),
    "key length -1": (put(RIGHT, 25, ">i", -1), "key"),
    "key past the end": (put(RIGHT, 25, ">i", 1000), "key"),
    "largest key length": (put(RIGHT, 25, ">i", 0x7FFFFFFF), "key"),
    "no value length": (resized(RIGHT[:32]), "value"),
    "value length -1": (put(RIGHT, 32, ">i", -1), "value"),
    "value length too small": (put(RIGHT, 32, ">i", 4), "value"),
    "value length too large": (put(RIGHT, 32, ">i", 6), "value"),
    "one byte behind the value": (resized(RIGHT + b"x"), "value"),
    "value cut": (resized(RIGHT[:-1]), "value"),
    "Message, flags 12": (put(LONG, 8, ">h", 12), "flags"),
    "Message, flags -1": (put(LONG, 8, ">h", -1), "flags"),
    "Message, a number that means nothing": (put(LONG, 10, ">i", 1), "flags"),
    "Message, no number": (resized(LONG[:12]), "topic"),
    "Message, no topic length": (resized(LONG[:14]), "topic"),
    "Message, key length -2": (put(LONG, 29, ">i", -2), "key"),
    "Message, key past the end": (put(LONG, 29, ">i", 1000), "key"),
    "Message, value length -2": (put(LONG, 36, ">i", -2), "value"),
    "Message, value past the end": (put(LONG, 36, ">i", 1000), "value"),
    "Message, no value length": (resized(LONG[:38]), "value"),
    "half a header's name length": (resized(LONG[:46]), "headers"),
    "a header's name past the end": (put(LONG, 45, ">h", 255), "headers"),
    "a negative length of a header's name": (put(LONG, 45, ">h", -1), "headers"),
    "a header's name of 256 bytes": (encode_long_name(256), "headers"),
    "a header's name with a zero byte": (LONG.replace(b"name", b"n\0me"), "headers"),
    "a header's name that is not UTF-8": (LONG.replace(b"name", b"na\xed\xa0"), "headers"),
    "a header's name that is cut in a character": (LONG.replace(b"name", b"nam\xc3"), "headers"),
    "no length of a header's value": (resized(LONG[:53]), "headers"),
    "a header's value length -2": (put(LONG, 51, ">i", -2), "headers"),
    "a header's value past the end": (put(LONG, 51, ">i", 1000), "headers"),
    "257 headers": (resized(encode_message(b"t", b"") + bytes(6 * 257)), "headers"),
    "an empty batch": (resized(BATCH[:10]), "short"),
    "a batch of the wrong size": (put(BATCH, 0, ">i", 9, size=False), "size"),
    "a batch of version 1": (put(BATCH, 6, ">h", 1), "api_version"),
    "a batch with flags": (put(BATCH, 8, ">h", 4), "flags"),
    "a batch of nine bytes": (resized(BATCH[:9]), "flags"),
    "a batch in a batch": (encode_batch([BATCH]), "api_key"),
    "a batch whose last message is cut": (resized(BATCH[:-1]), "size"),
    "seven bytes behind the messages of a batch": (resized(BATCH + bytes(7)), "short"),
    "eight bytes behind them": (resized(BATCH + bytes(8)), "short"),
    "a batch with a message of size -1": (encode_batch([put(RIGHT, 0, ">i", -1, size=False)]), "short"),
    "a batch with a message that is wrong": (encode_batch([RIGHT, put(RIGHT, 8, ">h", 1)]), "flags"),
    "a batch of 257 messages": (
        resized(encode_batch([encode(b"t", b"")] * 256) + encode(b"t", b"")),
        "too_long",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_every_malformed_case_has_its_own_reason(case: str) -> None:
    """Each kind of malformed datagram has its own name, in Bruce's order of checks."""
    data, reason = MALFORMED[case]
    assert verdict(data) == reason
    assert plain.parse(data) == reason


def test_every_reason_of_the_checks_is_among_the_cases() -> None:
    """The cases above include every reason for which a single datagram can be refused."""
    reasons = {*map(Reason, range(1, 10)), Reason.HEADERS, Reason.TOO_LONG}
    assert {reason for _, reason in MALFORMED.values()} == {reason.name.lower() for reason in reasons}


@given(i16, i32, i64)
def test_big_endian_loads_are_signed(small: int, middle: int, large: int) -> None:
    """The kernels read the same values that struct wrote, including the sign."""
    memory = np.frombuffer(struct.pack(">hiq", small, middle, large), np.uint8).copy()
    at = address_of(memory)
    assert (load_be16(at), load_be32(at + 2), load_be64(at + 6)) == (small, middle, large)


@pytest.mark.parametrize("topic", [b"", b"t" * 32768])
def test_encode_refuses_topics_that_no_datagram_can_name(topic: bytes) -> None:
    """A topic has 1 to 32,767 bytes."""
    with pytest.raises(ValueError, match="1 to 32767"):
        encode(topic, b"")


@given(st.binary(min_size=1, max_size=40), st.binary(min_size=1, max_size=40), st.binary(max_size=40))
def test_another_topic(one: bytes, other: bytes, value: bytes) -> None:
    """A datagram for another topic equals one that was sent to it."""
    for key in (None, 7):
        datagram = encode(one, value, key=b"k", timestamp=5, partition_key=key)
        assert split_topic(datagram)[1] == one
        assert with_topic(datagram, other) == encode(other, value, key=b"k", timestamp=5, partition_key=key)


def test_the_reasons_that_a_stream_hears_have_their_numbers() -> None:
    """The description names them as the code has them."""
    assert wire.__doc__
    named = re.findall(r"(\d\d) ([a-z_]{3,})", wire.__doc__.partition("On a stream")[2].partition("Else")[0])
    assert len(named) == 7
    assert {name: int(number) for number, name in named} == {
        name: Reason[name.upper()].value for _, name in named
    }
