"""The verdict of one spool in one tier: what was seen of it, compared with what the spool says.

Work is on bitmaps, and by block for the blocks that are not settled; there is none by message.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from pipeline.witness.expected import Expected, SpoolSide
from pipeline.witness.seen import Mask, SpoolSeen, numbers_of
from pipeline.witness.tier import HAS_ALL, TierState, begin_of
from spool.format.block_sums import Blocks
from spool.format.segment_format import SUM_BITS


class Verdict(NamedTuple):
    """The verdict. A block is altered, uncompared, settled, or none of these yet."""

    judged: int
    """Messages that must have been seen by now."""
    missing: BitMap64
    """Those of them that were not."""
    late: int
    """Messages that will have to be seen, and were not."""
    duplicated: BitMap64
    """Messages of which there are two records, or more."""
    unstored: BitMap64
    """Sequences that were seen between the first and the last of the spool, which does not have them."""
    altered: Blocks
    """Blocks all of whose messages were seen, but with other contents or times. int64[n], as all of these."""
    uncompared: Blocks
    """Blocks that cannot be compared: the spool does not know their sum, or more was seen than is in it."""
    settled: Blocks
    """Blocks that are equal, and to which the spool adds no message: the caller settles them."""


def judge(seen: SpoolSeen, expected: Expected, due: BitMap64) -> Verdict:
    """The verdict, where the messages in `due` must have been seen by now.

    `due` is of messages that were delivered before the tier was read to its end. A block with missing or late
    messages is not compared. One that is altered or uncompared is so in each further verdict.
    """
    stored = expected.stored
    kept = stored - expected.discarded
    wanted = kept - expected.open
    unseen = wanted - seen.seen
    missing = unseen & due
    altered, uncompared, settled = _compare(seen, expected, kept)
    return Verdict(
        judged=wanted.intersection_cardinality(due),
        missing=missing,
        late=len(unseen) - len(missing),
        duplicated=seen.twice & stored,
        unstored=_within(seen.seen - stored, stored),
        altered=altered,
        uncompared=uncompared,
        settled=settled,
    )


def judge_tier(tier: TierState, side: SpoolSide) -> Verdict:
    """The verdict of a spool that is watched in a tier, from the message on that is judged first there."""
    seen = tier.spool(side.spool)
    expected = (side.archived if tier.facts.get(HAS_ALL) else None) or side.expected
    return judge(seen, expected.since(begin_of(tier, side.spool)), seen.due)


def ranges(bitmap: BitMap64, most: int) -> list[tuple[int, int]]:
    """(first, last) of the first runs of consecutive numbers in a bitmap, `most` at most."""
    found = list[tuple[int, int]]()
    first = bitmap.min() if bitmap else None
    end = bitmap.max() if bitmap else 0
    while first is not None and len(found) < most:
        last = _last_of_run(bitmap, first)
        found.append((first, last))
        first = bitmap.next_set_bit(last + 1) if last < end else None
    return found


def touched(bitmap: BitMap64) -> Blocks:
    """The blocks of which a bitmap of sequences has any, int64[n], ascending."""
    found = list[int]()
    at, last = 0, bitmap.max() if bitmap else -1
    while at <= last:
        block = bitmap.next_set_bit(at) >> SUM_BITS
        found.append(block)
        at = (block + 1) << SUM_BITS
    return np.array(found, np.int64)


def _compare(seen: SpoolSeen, expected: Expected, kept: BitMap64) -> tuple[Blocks, Blocks, Blocks]:
    """The blocks that are altered, that cannot be compared, and that are settled.

    `kept` are the messages that are in the spool's sums.
    """
    if not kept:
        return (np.empty(0, np.int64),) * 3
    known, sums = seen.sums()
    blocks = _unsettled(seen, known, kept)
    at, has_sum = _find(expected.blocks, blocks)
    is_whole, is_other = np.zeros((2, len(blocks)), np.bool_)
    is_whole[has_sum], is_other[has_sum] = expected.whole[at[has_sum]], expected.unknown[at[has_sum]]
    cover = _cover(blocks)
    is_awaited = _are_in(blocks, touched((cover & kept) - seen.seen))
    is_other |= ~has_sum | _are_in(blocks, touched((cover & seen.seen) - kept))
    is_other |= _are_in(blocks, numbers_of(seen.unsummed))
    # Both sums of all other blocks are of the same messages.
    is_compared = ~is_awaited & ~is_other & is_whole
    compared = blocks[is_compared]
    ours, theirs = sums[_find(known, compared)[0]], expected.sums[at[is_compared]]
    is_counted = ours["count"] == theirs["count"]
    is_equal = is_counted & (ours["content"] == theirs["content"])
    is_equal &= (ours["times"] == theirs["times"]) | (ours["untimed"] > 0)
    is_closed = compared < (expected.stored.max() + 1) >> SUM_BITS
    uncompared = np.union1d(blocks[~is_awaited & is_other], compared[~is_counted])
    return compared[is_counted & ~is_equal], uncompared, compared[is_equal & is_closed]


def _unsettled(seen: SpoolSeen, known: Blocks, kept: BitMap64) -> Blocks:
    """The blocks with a kept message that are not settled, and of which anything was seen.

    `known`: those with sums. Further ones are of strangers, or of a time before the spool counted.
    """
    blocks = np.union1d(known, numbers_of(seen.unsummed - seen.settled))
    first, last = kept.min() >> SUM_BITS, kept.max() >> SUM_BITS
    blocks = blocks[(blocks >= first) & (blocks <= last)]
    return blocks[_are_in(blocks, touched(_cover(blocks) & kept))]


def _within(numbers: BitMap64, stored: BitMap64) -> BitMap64:
    """Numbers between the first and the last one that is stored."""
    span = BitMap64()
    if stored:
        span.add_range(stored.min(), stored.max() + 1)
    span &= numbers
    return span


def _cover(blocks: Blocks) -> BitMap64:
    """All sequences of blocks int64[n], ascending."""
    cover = BitMap64()
    starts = np.flatnonzero(np.diff(blocks, prepend=-2) != 1)
    counts = np.diff(starts, append=len(blocks))
    for first, count in zip(blocks[starts].tolist(), counts.tolist(), strict=True):
        cover.add_range(first << SUM_BITS, (first + count) << SUM_BITS)
    return cover


def _find(blocks: Blocks, wanted: Blocks) -> tuple[npt.NDArray[np.int64], Mask]:
    """The place of each wanted block in `blocks`, ascending, and whether it is there."""
    at = np.searchsorted(blocks, wanted)
    is_there = np.zeros(len(wanted), np.bool_)
    is_inside = at < len(blocks)
    is_there[is_inside] = blocks[at[is_inside]] == wanted[is_inside]
    return at, is_there


def _are_in(wanted: Blocks, blocks: Blocks) -> Mask:
    """Which wanted blocks are in `blocks`, ascending, bool[n]."""
    return _find(blocks, wanted)[1]


def _last_of_run(bitmap: BitMap64, first: int) -> int:
    """The last number of the run that begins with this one."""
    # Numbers up to `last` are in it; steps double until one is too long, and are halved then.
    last, step, is_growing = first, 1, True
    while step:
        if bitmap.contains_range(last + 1, last + step + 1):
            last += step
            step = step * 2 if is_growing else step // 2
        else:
            step, is_growing = step // 2, False
    return last
