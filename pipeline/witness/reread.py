"""Blocks that differ, message by message: the spool's messages and their records are read once more."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.errors import Unreachable
from dispatch.record_consumer import RecordConsumer, Records
from pipeline.source.fields import CONTENT, to_schema
from pipeline.source.plan import SpoolPlan, plan_spools
from pipeline.source.rows import PERMISSIVE, read_part
from pipeline.witness.kafka_tier import ANSWER_S, Place
from pipeline.witness.tier import UNTIMED
from spool.format.block_sums import Blocks
from spool.format.message_hash import Words
from spool.format.segment_format import BLOCK, SUM_BITS

SEARCH_S = 60.0
"""The search for the records of a spool takes no longer."""
_SCHEMA = to_schema(("sequence", "topic", "timestamp_ms", CONTENT[0]))


class Messages(NamedTuple):
    """The stored messages of some blocks, by sequence. int64[n] each, ascending."""

    sequences: Words
    contents: Words
    sent_ms: Words
    topics: frozenset[str]


def read_messages(directory: str, blocks: Blocks) -> Messages | None:
    """The messages of these blocks; None when a segment that had some of them is gone. Raises OSError."""
    (plan,) = plan_spools([directory])
    if not all(_is_there(plan, block) for block in blocks.tolist()):
        return None
    found: list[npt.NDArray[np.int64]] = []
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
    order = np.argsort(sequences)
    # A message with the time 0 goes out with 1, as in spool.format.message_hash.
    sent_ms = np.where(sent_ms == 0, 1, sent_ms)
    return Messages(sequences[order], contents[order], sent_ms[order], frozenset(topics))


def _is_there(plan: SpoolPlan, block: int) -> bool:
    """Whether no segment with messages of a block is gone."""
    return plan.begin <= block * BLOCK


def find_altered(messages: Messages, spool: str, place: Place, answer_s: float) -> list[int] | None:
    """The sequences of those that are in Kafka otherwise than they were stored.

    None when not all records of them were found in SEARCH_S, or Kafka has dropped them. Raises Unreachable,
    BadProperty.
    """
    is_found = np.zeros(len(messages.sequences), np.bool_)
    is_altered = np.zeros(len(messages.sequences), np.bool_)
    for records in _records(messages, place, answer_s):
        ours = (records.spool == np.frombuffer(bytes.fromhex(spool), np.uint8)).all(axis=1)
        sequences = records.sequence[ours]
        at = np.minimum(np.searchsorted(messages.sequences, sequences), len(messages.sequences) - 1)
        known = messages.sequences[at] == sequences
        at = at[known]
        times = records.sent_ms[ours][known]
        differs = records.content[ours][known] != messages.contents[at]
        differs |= (times != UNTIMED) & (times != messages.sent_ms[at])
        is_found[at] = True
        is_altered[at[differs]] = True
    if not is_found.all():
        return None
    return [int(one) for one in messages.sequences[is_altered]]


def _records(messages: Messages, place: Place, answer_s: float) -> Iterator[Records]:
    """The records from the time of the first of these messages on, for SEARCH_S at most."""
    deadline = time.monotonic() + SEARCH_S
    with closing(RecordConsumer(place.properties, place.prefix.encode())) as consumer:
        known = consumer.topics_known(answer_s)
        named = {place.prefix + topic for topic in messages.topics} | messages.topics
        wanted = {(topic, at) for topic in named & known.keys() for at in range(known[topic])}
        ends = {one: high for one, (_, high) in consumer.ends(answer_s, wanted).items()}
        starts = consumer.offsets_at(int(messages.sent_ms.min()), answer_s, wanted)
        consumer.assign(starts)
        while time.monotonic() < deadline and _is_behind(consumer.positions, ends):
            yield consumer.consume(1.0)


def _is_behind(positions: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int]) -> bool:
    return any(position < ends.get(one, 0) for one, position in positions.items())


def altered_of(
    directory: str, spool: str, blocks: Blocks, place: Place, *, answer_s: float = ANSWER_S
) -> list[int] | None:
    """The altered messages of blocks that differ; None: the spool or Kafka has them no more, or is away.

    Kafka is away when it does not answer in `answer_s`.
    """
    try:
        messages = read_messages(directory, blocks)
        return find_altered(messages, spool, place, answer_s) if messages else None
    except Unreachable:
        return None
