"""Rows of the marks: each ends with a check of its key and value, seeded with what it speaks of."""

from __future__ import annotations

from spool.digest import digest

CHECK_BYTES = 8
TOPIC_BYTES = 400
"""Of a topic's name in a key: LMDB's keys have 511 bytes at most."""
UNTOLD = -1
"""The identity of a segment whose header the disk does not give at present. What speaks of it is believed:
taken for another's, it would be forgotten for good."""


def check(key: bytes, value: bytes, identity: int) -> bytes:
    """What stands behind a value."""
    return digest(key + value, max(identity, 0)).to_bytes(CHECK_BYTES, "little")


def matches(key: bytes, row: bytes, identity: int) -> bool:
    """Whether a row ends with the check of its key and its value, as far as that can be said."""
    return identity == UNTOLD or row[-CHECK_BYTES:] == check(key, row[:-CHECK_BYTES], identity)
