"""Blocks that differ, message by message: the spool's messages and their records are read once more."""

from __future__ import annotations

import time
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from dispatch.errors import Unreachable
from dispatch.record_consumer import RecordConsumer, Records
from pipeline.source.fields import CONTENT, to_schema
from pipeline.source.plan import SpoolPlan, plan_spools
from pipeline.source.rows import PERMISSIVE, read_part
from pipeline.witness.expected import SpoolSide
from pipeline.witness.kafka_tier import ANSWER_S, Place
from pipeline.witness.seen import numbers_of
from pipeline.witness.tier import UNTIMED
from spool.format.block_sums import Blocks
from spool.format.message_hash import Words
from spool.format.segment_format import BLOCK, SUM_BITS

SEARCH_S = 60.0
"""The search for the records of a spool in a tier takes no longer."""
MOST_BLOCKS = 256
"""Blocks of a spool in a tier that are read again at most: a million messages."""
_SCHEMA = to_schema(("sequence", "topic", "timestamp_ms", CONTENT[0]))


class Messages(NamedTuple):
    """The stored messages of some blocks, by sequence. int64[n] each, ascending."""

    sequences: Words
    contents: Words
    sent_ms: Words
    topics: frozenset[str]

    def of(self, block: int) -> Messages:
        """Those of one block."""
        part = slice(*np.searchsorted(self.sequences, (block * BLOCK, (block + 1) * BLOCK)))
        return Messages(self.sequences[part], self.contents[part], self.sent_ms[part], self.topics)


class Altered(NamedTuple):
    """The outcome for some blocks that differ."""

    sequences: list[int]
    """Messages that are in Kafka otherwise than they were stored, ascending."""
    unread: list[int]
    """Blocks of which that is not known: a segment or a record is gone, Kafka is away, time was over, or they
    are more than are read."""


def read_messages(plan: SpoolPlan, blocks: Blocks, discarded: BitMap64) -> Messages:
    """The messages of these blocks but for the discarded ones. Raises JobFailed, OSError."""
    found: list[npt.NDArray[np.int64]] = [np.empty((3, 0), np.int64)]
    topics: set[str] = set()
    for part, (first, end) in zip(plan.parts, plan.runs, strict=True):
        if not ((blocks >= first >> SUM_BITS) & (blocks <= (end - 1) >> SUM_BITS)).any():
            continue
        for rows in read_part(part, _SCHEMA, PERMISSIVE):
            sequences = np.asarray(rows["sequence"].fill_null(-1))
            wanted = np.isin(sequences >> SUM_BITS, blocks)
            columns = (sequences, np.asarray(rows[CONTENT[0]]), np.asarray(rows["timestamp_ms"].fill_null(0)))
            found.append(np.array([column[wanted] for column in columns], np.int64))
            topics.update(rows["topic"].filter(wanted).unique().to_pylist())
    sequences, contents, sent_ms = np.concatenate(found, axis=1)
    kept = ~np.isin(sequences, numbers_of(discarded & _cover(blocks)))
    # A message with the time 0 goes out with 1, as in spool.format.message_hash.
    sent_ms = np.where(sent_ms == 0, 1, sent_ms)
    order = np.argsort(sequences[kept])
    return Messages(sequences[kept][order], contents[kept][order], sent_ms[kept][order], frozenset(topics))


def _count(messages: BitMap64, block: int) -> int:
    return int(messages.range_cardinality(block * BLOCK, (block + 1) * BLOCK))


def _cover(blocks: Blocks) -> BitMap64:
    """All sequences of these blocks."""
    found = BitMap64()
    for block in blocks.tolist():
        found.add_range(block * BLOCK, (block + 1) * BLOCK)
    return found


class Search:
    """Finds the records of messages in a cluster, block by block, for SEARCH_S at most."""

    def __init__(self, spool: str, place: Place, topics: AbstractSet[str], answer_s: float) -> None:
        """Kafka is away when it does not answer in `answer_s`. Raises BadProperty, Unreachable."""
        self._spool, self._answer_s = np.frombuffer(bytes.fromhex(spool), np.uint8), answer_s
        self._deadline = time.monotonic() + SEARCH_S
        self._consumer = RecordConsumer(place.properties, place.prefix.encode())
        try:
            known = self._consumer.topics_known(answer_s)
            named = {place.prefix + topic for topic in topics} | topics
            self._wanted = {(topic, at) for topic in named & known.keys() for at in range(known[topic])}
            ends = self._consumer.ends(answer_s, self._wanted)
        except Unreachable:
            self.close()
            raise
        self._ends = {one: high for one, (_, high) in ends.items()}

    def close(self) -> None:
        """End the consumer."""
        self._consumer.close()

    def find(self, messages: Messages) -> list[int] | None:
        """The altered ones of these messages, which are of one block; None: not all have records.

        Raises Unreachable.
        """
        is_found, is_altered = np.zeros((2, len(messages.sequences)), np.bool_)
        starts = self._consumer.offsets_at(int(messages.sent_ms.min()), self._answer_s, self._wanted)
        self._consumer.assign(starts)
        while not is_found.all() and time.monotonic() < self._deadline and self._is_behind():
            records = self._consumer.consume(1.0)
            at, differs = self._compare(records, messages)
            is_found[at] = True
            is_altered[at[differs]] = True
        return [int(one) for one in messages.sequences[is_altered]] if is_found.all() else None

    def _compare(self, records: Records, messages: Messages) -> tuple[Words, npt.NDArray[np.bool_]]:
        """Of the records of these messages: which message each is of, and whether it differs from it."""
        ours = (records.spool == self._spool).all(axis=1)
        sequences, times = records.sequence[ours], records.sent_ms[ours]
        at = np.minimum(np.searchsorted(messages.sequences, sequences), len(messages.sequences) - 1)
        known = messages.sequences[at] == sequences
        at, times = at[known], times[known]
        differs = records.content[ours][known] != messages.contents[at]
        differs |= (times != UNTIMED) & (times != messages.sent_ms[at])
        return at, differs

    def _is_behind(self) -> bool:
        return any(position < self._ends.get(one, 0) for one, position in self._consumer.positions.items())


def altered_of(
    side: SpoolSide,
    blocks: Blocks,
    place: Place | None,
    *,
    answer_s: float = ANSWER_S,
    most: int = MOST_BLOCKS,
) -> Altered:
    """The altered messages of blocks of a spool that differ in a cluster; None: it is no cluster.

    Raises JobFailed, OSError.
    """
    (plan,) = plan_spools([side.directory])
    there = blocks[blocks >= -(-plan.begin // BLOCK)][:most]
    unread = np.setdiff1d(blocks, there).tolist()
    if place is None or not len(there):
        return Altered([], blocks.tolist())
    expected = side.expected
    messages = read_messages(plan, there, expected.discarded)
    # Damage is passed over: of such a block the altered message may be unreadable here.
    kept = expected.stored - expected.discarded
    whole = [len(messages.of(one).sequences) == _count(kept, one) for one in there.tolist()]
    unread += there[~np.array(whole)].tolist()
    sequences: list[int] = []
    left = there[whole].tolist()
    with suppress(Unreachable), closing(Search(side.spool, place, messages.topics, answer_s)) as search:
        while left:
            found = search.find(messages.of(left[0]))
            block = left.pop(0)
            if found is None:
                unread.append(block)
            else:
                sequences += found
    return Altered(sequences, sorted([*unread, *left]))
