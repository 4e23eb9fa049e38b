"""Faults that are planted, chosen by a seed, and what is in a tier in the end.

A block of 4,096 sequences has faults of one kind, or of several, or none: while messages of a block are
missing, the witness compares no sums of it, so most alterations are in blocks without losses.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from dispatch.header_names import HEADER_BYTES, HEADER_NAME
from spool.format.segment_format import BLOCK, SUM_BITS

Header = tuple[str, bytes | None]
ID = HEADER_NAME.decode()
MOST_SEQUENCE = 1 << 63
"""A record with this one, or one above it, names no message."""
_UUID_BYTES = HEADER_BYTES - 8
KINDS = ("alter and double", "lose", "alter", "double", "lose and alter", "none", "none")
"""Of blocks."""
MOST_SINGLES, LONGEST_RUN = 4, 60
"""Faults of one kind in a block: so many single messages, and one run."""
MOST_RUNS = 900
"""The audit names the first 1,000 runs of a spool: blocks behind them have no faults."""


class Fault(Enum):
    """The fault of a message."""

    LOSE = "lose"
    DOUBLE = "double"
    VALUE = "value"
    KEY = "key"
    HEADER = "header"
    TIME = "time"
    TOPIC = "topic"


ALTERATIONS = (Fault.VALUE, Fault.KEY, Fault.HEADER, Fault.TIME, Fault.TOPIC)


@dataclass(frozen=True, slots=True)
class Record:
    """A record, to be written to a tier."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    sent_ms: int

    @property
    def stamp(self) -> bytes:
        """The id of its message; empty for a record of somebody else's."""
        stamp = next((value for name, value in self.headers if name == ID), None)
        return stamp if stamp is not None and len(stamp) == HEADER_BYTES else b""


def split(stamp: bytes) -> tuple[str, int]:
    """(uuid in hexadecimal digits, sequence) of an id."""
    return stamp[:_UUID_BYTES].hex(), int.from_bytes(stamp[_UUID_BYTES:], "big")


class Faults:
    """The faults of one place. They depend on the seed and the message alone."""

    def __init__(self, seed: str, topics: Sequence[str]) -> None:
        self._seed, self._topics = seed, list(topics)
        self._blocks: dict[tuple[bytes, int], dict[int, Fault]] = {}

    def of(self, stamp: bytes) -> Fault | None:
        """The fault of a message, by its id."""
        spool, sequence = stamp[:_UUID_BYTES], int.from_bytes(stamp[_UUID_BYTES:], "big")
        place = spool, sequence >> SUM_BITS
        if place not in self._blocks:
            self._blocks[place] = self._plan(*place)
        return self._blocks[place].get(sequence % BLOCK)

    def _plan(self, spool: bytes, block: int) -> dict[int, Fault]:
        rng = random.Random(f"{self._seed}:{spool.hex()}:{block}")  # noqa: S311  (a load, not a secret)
        # So that a small run has each kind, too.
        kind = KINDS[(block + rng.randrange(2)) % len(KINDS)]
        if block * (MOST_SINGLES + 1) > MOST_RUNS:
            return {}
        found = dict[int, Fault]()
        for place in _places(rng) if "lose" in kind else ():
            found[place] = Fault.LOSE
        for place in _places(rng) if "double" in kind else ():
            found.setdefault(place, Fault.DOUBLE)
        for place in rng.sample(range(BLOCK), rng.randint(1, MOST_SINGLES)) if "alter" in kind else ():
            found.setdefault(place, rng.choice(ALTERATIONS))
        return found

    def apply(self, record: Record, fault: Fault) -> Record:
        """The record with an alteration."""
        match fault:
            case Fault.VALUE:
                value = record.value
                return replace(record, value=b"not null" if value is None else value[:-1] + b"\xa5?")
            case Fault.KEY:
                return replace(record, key=b"a key" if record.key is None else record.key + b"!")
            case Fault.HEADER:
                return replace(record, headers=_change(record.headers))
            case Fault.TIME:
                return replace(record, sent_ms=record.sent_ms + 1)
            case Fault.TOPIC:
                at = self._topics.index(record.topic)
                return replace(record, topic=self._topics[(at + 1) % len(self._topics)])
        raise ValueError(fault)

    def spread(self, record: Record) -> tuple[list[Record], Fault | None]:
        """The records to be written for one, and the fault that was made of it."""
        fault = self.of(record.stamp) if record.stamp else None
        if fault is None:
            return [record], None
        if fault is Fault.LOSE:
            return [], fault
        return ([record, record] if fault is Fault.DOUBLE else [self.apply(record, fault)]), fault


def _change(headers: Sequence[Header]) -> list[Header]:
    """The headers with the last one longer, or with one more."""
    *others, (name, value) = headers
    return [*headers, ("more", b"1")] if name == ID else [*others, (name, (value or b"") + b"!")]


def _places(rng: random.Random) -> Iterator[int]:
    """Some single places in a block, and a run of them."""
    yield from rng.sample(range(BLOCK), rng.randint(0, MOST_SINGLES))
    first = rng.randrange(BLOCK - LONGEST_RUN)
    yield from range(first, first + rng.randint(1, LONGEST_RUN))


@dataclass(slots=True)
class Contents:
    """The messages that are in a tier, by id."""

    copies: Counter[bytes] = field(default_factory=Counter)
    altered: dict[bytes, Fault] = field(default_factory=dict)
    """Those that are otherwise than they were stored."""

    def sequences(self, spool: str) -> tuple[np.ndarray, np.ndarray]:
        """Sequences of a spool that are there, ascending, and the copies of each. int64[n] both."""
        named = ((*split(stamp), count) for stamp, count in self.copies.items())
        found = sorted((at, count) for uuid, at, count in named if uuid == spool and at < MOST_SEQUENCE)
        rows = np.array(found, np.int64).reshape(-1, 2)
        return rows[:, 0], rows[:, 1]

    def altered_of(self, spool: str) -> set[int]:
        """The altered sequences of a spool that are there."""
        named = (split(stamp) for stamp in self.altered)
        return {sequence for uuid, sequence in named if uuid == spool}
