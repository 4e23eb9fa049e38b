"""Datagrams of programs: each right one is accepted, each wrong one refused under its own reason."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.format.wire import (
    Reason,
    check,
    encode,
    load_be16,
    load_be32,
    load_be64,
    reason_name,
    split_topic,
    with_topic,
)
from spool.native.memory import address_of
from tests.spool import plain
from tests.spool.strategies import anything, datagrams, i16, i32, i64, messages

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/golden_datagrams.json").read_text())
RIGHT = encode(b"topic", b"value", key=b"key", timestamp=-5)
KEYED = encode(b"topic", b"value", key=b"key", partition_key=7)


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
    defaults = {"key": b"", "timestamp": 0, "partition_key": None}
    assert verdict(data) == "accepted"
    assert plain.parse_datagram(data) == plain.Message(**{**defaults, **fields})  # type: ignore[arg-type]


@given(anything)
def test_every_datagram_gets_the_verdict_of_the_independent_parser(data: bytes) -> None:
    """For any bytes, check and an independent parser agree on the reason."""
    parsed = plain.parse_datagram(data)
    assert verdict(data) == (parsed if isinstance(parsed, str) else "accepted")


@given(datagrams)
def test_every_prefix_is_refused(data: bytes) -> None:
    """A datagram cut anywhere is refused, with a right or a wrong size field."""
    for end in range(len(data)):
        assert verdict(data[:end]) == ("short" if end < 8 else "size")
        if end >= 8:
            assert verdict(resized(data[:end])) != "accepted"


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
    assert plain.parse_datagram(data) == plain.Message(topic, timestamp, key, value, partition_key)  # type: ignore[arg-type]
    assert encode(topic, value, key=key, timestamp=timestamp, partition_key=partition_key) == data  # type: ignore[arg-type]


MALFORMED = {
    "nothing at all": (b"", "short"),
    "seven bytes": (RIGHT[:7], "short"),
    "negative size": (put(RIGHT, 0, ">i", -1, size=False), "size"),
    "size too small": (put(RIGHT, 0, ">i", len(RIGHT) - 1, size=False), "size"),
    "size too large": (put(RIGHT, 0, ">i", len(RIGHT) + 1, size=False), "size"),
    "size without its own four bytes": (put(RIGHT, 0, ">i", len(RIGHT) - 4, size=False), "size"),
    "api key 255": (put(RIGHT, 4, ">h", 255), "api_key"),
    "api key 258": (put(RIGHT, 4, ">h", 258), "api_key"),
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
}


@pytest.mark.parametrize("case", MALFORMED)
def test_every_malformed_case_has_its_own_reason(case: str) -> None:
    """Each kind of malformed datagram has its own name, in Bruce's order of checks."""
    data, reason = MALFORMED[case]
    assert verdict(data) == reason
    assert plain.parse_datagram(data) == reason


def test_every_reason_of_the_checks_is_among_the_cases() -> None:
    """The cases above include every reason for which a single datagram can be refused."""
    assert {reason for _, reason in MALFORMED.values()} == {r.name.lower() for r in Reason if 1 <= r <= 9}


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
