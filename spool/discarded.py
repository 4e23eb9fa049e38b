"""Counts and samples of discarded messages, as the marks keep them: a bounded number, whatever is discarded.

discard   reason:u16be topic -> messages, first and last time (ns), check
for the first pairs of a reason and a topic, MOST_COUNTS rows; one more a reason, `(others)`, has all others

sample    reason:u16be slot:u8 topic -> sequence, time (ns), first bytes of the datagram, check
some of the discarded messages, a slot for every fourth sequence number

`check` is seeded with the identity of the spool. DEAD_LETTERED is added to the reason of what is in the
dead-letter topic.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from spool.ledger import Discards
from spool.row import CHECK_BYTES, TOPIC_BYTES, check, matches
from spool.topics import OTHERS
from spool.wire import REASONS

SAMPLE_BYTES = 256
"""Of a discarded datagram, so many are kept."""
SAMPLE_SLOTS = 4
"""Samples a reason and topic."""
MOST_SAMPLES = 1024
MOST_COUNTS = 1000
_FOLD_ABOVE = MOST_COUNTS + 2 * REASONS
"""Rows. So many there may be, with those of `(others)`; earlier releases had no bound."""
_COUNT = struct.Struct("<QQQ")
_FIXED = struct.Struct("<QQ")
_TOPIC_AT = 3


class Sample(NamedTuple):
    """A discarded message."""

    sequence: int
    reason: int
    topic: bytes
    time_ns: int
    data: bytes
    """Its datagram, or the first SAMPLE_BYTES of it."""


def count(txn: Any, table: Any, more: Discards, identity: int) -> None:
    """Count more of them."""
    key = more.reason.to_bytes(2, "big") + more.topic[:TOPIC_BYTES]
    row = txn.get(key, db=table)
    if row is None and txn.stat(table)["entries"] >= MOST_COUNTS:
        key = key[:2] + OTHERS
        row = txn.get(key, db=table)
    messages, first, _ = _counts(key, row, identity) or (0, more.first_ns, 0)
    value = _COUNT.pack(messages + more.count, first, more.last_ns)
    txn.put(key, value + check(key, value, identity), db=table)


def fold(txn: Any, table: Any, identity: int) -> None:
    """Sum up what is too much, under `(others)`; the MOST_COUNTS that have most messages stay."""
    if txn.stat(table)["entries"] <= _FOLD_ABOVE:
        return
    kept = heapq.nlargest(MOST_COUNTS, read_counts(txn, table, identity), key=lambda row: row.count)
    rest: dict[int, Discards] = {}
    stay = {(row.reason, row.topic) for row in kept}
    for row in read_counts(txn, table, identity):
        if (row.reason, row.topic) not in stay:
            sum_ = rest.get(row.reason) or replace(row, topic=OTHERS, count=0)
            first, last = min(sum_.first_ns, row.first_ns), max(sum_.last_ns, row.last_ns)
            rest[row.reason] = Discards(OTHERS, row.reason, sum_.count + row.count, first, last)
    txn.drop(table, delete=False)
    for row in (*kept, *rest.values()):
        count(txn, table, row, identity)


def read_counts(txn: Any, table: Any, identity: int) -> Iterator[Discards]:
    """All that match their check, by reason."""
    with txn.cursor(table) as cursor:
        for key, row in cursor:
            if counts := _counts(key, row, identity):
                yield Discards(key[2:], int.from_bytes(key[:2], "big"), *counts)


def _counts(key: bytes, row: bytes | None, identity: int) -> tuple[int, int, int] | None:
    """(messages, first and last time) of a row; None when it does not match."""
    if row is None or len(row) != _COUNT.size + CHECK_BYTES or not matches(key, row, identity):
        return None
    messages, first, last = _COUNT.unpack_from(row)
    return messages, first, last


def keep_sample(txn: Any, table: Any, sample: Sample, identity: int) -> None:
    """Put a sample in place of an older one, or beside it while there is room."""
    slot = sample.sequence % SAMPLE_SLOTS
    key = sample.reason.to_bytes(2, "big") + bytes([slot]) + sample.topic[:TOPIC_BYTES]
    if txn.get(key, db=table) is not None or txn.stat(table)["entries"] < MOST_SAMPLES:
        value = _FIXED.pack(sample.sequence, sample.time_ns) + sample.data[:SAMPLE_BYTES]
        txn.put(key, value + check(key, value, identity), db=table)


def read_samples(txn: Any, table: Any, identity: int) -> Iterator[Sample]:
    """All that match their check, by reason."""
    with txn.cursor(table) as cursor:
        for key, row in cursor:
            if len(row) >= _FIXED.size + CHECK_BYTES and matches(key, row, identity):
                sequence, time_ns = _FIXED.unpack_from(row)
                reason, topic = int.from_bytes(key[:2], "big"), key[_TOPIC_AT:]
                yield Sample(sequence, reason, topic, time_ns, row[_FIXED.size : -CHECK_BYTES])
