"""Rows of the marks: each ends with a check of its key and value, seeded with what it speaks of."""

from __future__ import annotations

from spool.digest import digest

CHECK_BYTES = 8
TOPIC_BYTES = 400
"""Of a topic's name in a key: LMDB's keys have 511 bytes at most."""


def check(key: bytes, value: bytes, identity: int) -> bytes:
    """What stands behind a value."""
    return digest(key + value, identity).to_bytes(CHECK_BYTES, "little")


def matches(key: bytes, row: bytes, identity: int) -> bool:
    """Whether a row ends with the check of its key and its value."""
    return row[-CHECK_BYTES:] == check(key, row[:-CHECK_BYTES], identity)
