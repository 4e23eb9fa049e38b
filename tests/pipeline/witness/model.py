"""The witness in a few lines of Python: lists of records by sequence, and hashes by the xxhash wheel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import xxhash

from pipeline.witness.seen import SEEN_SUM, SpoolSeen
from pipeline.witness.tier import UNTIMED, TierState
from spool.format.message_hash import Words
from spool.format.segment_format import Record

U64 = (1 << 64) - 1
FAR = 1 << 24
"""Messages beyond the end of a spool, from which on there are no sums."""
Sums = dict[int, tuple[int, ...]]
"""content, times, count, untimed by block."""


class Seen(NamedTuple):
    """One record of Kafka."""

    spool: str
    sequence: int
    content: int
    sent_ms: int


def sum_of(records: Iterable[tuple[int, int, int]]) -> tuple[int, int, int, int]:
    """The sums of (sequence, content, sent_ms), each a sequence of its own."""
    content = times = count = untimed = 0
    for sequence, hashed, sent_ms in records:
        word = (sequence & U64).to_bytes(8, "little")
        content += xxhash.xxh64_intdigest(word, hashed & U64)
        count += 1
        if sent_ms == UNTIMED:
            untimed += 1
        else:
            times += xxhash.xxh64_intdigest((sent_ms & U64).to_bytes(8, "little"), sequence & U64)
    return content & U64, times & 0xFFFFFFFF, count, untimed


class Model:
    """One tier."""

    def __init__(self) -> None:
        self.spools = dict[str, dict[int, list[Seen]]]()
        self.ends = dict[str, int]()
        self.settled = dict[str, set[int]]()
        self.firsts = dict[str, dict[int, Seen]]()
        """Of each sequence that counts in the sums, the first record."""
        self.unsummed = dict[str, set[int]]()
        self.records = self.foreign = self.negative = 0

    def watch(self, spool: str, end: int) -> None:
        """As TierState.watch."""
        self.ends[spool] = max(end, self.ends.get(spool, 0))
        for by_spool in (self.spools, self.firsts):
            by_spool.setdefault(spool, {})
        for blocks in (self.settled, self.unsummed):
            blocks.setdefault(spool, set())

    def absorb(self, burst: list[Seen]) -> None:
        """As TierState.absorb."""
        for one in burst:
            self.records += 1
            if one.spool not in self.spools:
                self.foreign += 1
            elif one.sequence < 0:
                self.negative += 1
            else:
                self._absorb(one)

    def _absorb(self, one: Seen) -> None:
        known = self.spools[one.spool].setdefault(one.sequence, [])
        known.append(one)
        if len(known) > 1:
            return
        block = one.sequence // 4096
        if block >= (self.ends[one.spool] + FAR) // 4096:
            self.unsummed[one.spool].add(block)
        elif block not in self.settled[one.spool]:
            self.firsts[one.spool][one.sequence] = one

    def settle(self, spool: str, blocks: Iterable[int]) -> None:
        """As SpoolSeen.settle."""
        self.settled[spool] |= set(blocks)
        firsts = self.firsts[spool].items()
        self.firsts[spool] = {at: one for at, one in firsts if at // 4096 not in self.settled[spool]}

    def sums(self, spool: str) -> Sums:
        """Of the blocks that are not settled."""
        blocks = dict[int, list[tuple[int, int, int]]]()
        for sequence, one in self.firsts[spool].items():
            blocks.setdefault(sequence // 4096, []).append((sequence, one.content, one.sent_ms))
        return {block: sum_of(records) for block, records in blocks.items()}

    def check(self, tier: TierState) -> None:
        """Assert that the tier has seen the same, what it keeps for a look included."""
        tier.take_news()
        assert (tier.records, tier.foreign, tier.negative) == (self.records, self.foreign, self.negative)
        assert sorted(tier.spools()) == sorted(self.spools)
        for spool, records in self.spools.items():
            seen = tier.spool(spool)
            assert set(seen.seen) == set(records)
            assert set(seen.twice) == {at for at, copies in records.items() if len(copies) > 1}
            assert set(seen.settled) == self.settled[spool]
            assert set(seen.unsummed) == self.unsummed[spool]
            assert sums_of(seen) == self.sums(spool)


def sums_of(seen: SpoolSeen) -> Sums:
    """The sums of a spool, as the model has them."""
    blocks, sums = seen.sums()
    assert sums.dtype == SEEN_SUM
    assert (np.diff(blocks) > 0).all()
    return dict(zip(blocks.tolist(), map(tuple, sums.tolist()), strict=True))


def columns(burst: list[Seen]) -> tuple[Record, Words, Words, Words]:
    """A burst as RecordConsumer gives it."""
    uuids = np.frombuffer(b"".join(bytes.fromhex(one.spool) for one in burst), np.uint8).reshape(-1, 16)
    numbers = np.array([one[1:] for one in burst], np.int64).reshape(-1, 3)
    return uuids, numbers[:, 0], numbers[:, 1], numbers[:, 2]
