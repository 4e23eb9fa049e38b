"""The verdict, compared with one that goes through all sequences; and each kind of it by itself."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from pipeline.witness.expected import Expected
from pipeline.witness.judge import Verdict, judge, ranges, touched
from pipeline.witness.seen import BlockTable, SpoolSeen
from pipeline.witness.tier import UNTIMED, TierState
from spool.format.segment_format import SUM
from tests.pipeline.witness.model import Model, Seen, columns, sum_of
from tests.pipeline.witness.test_tier import tier_of

SPOOL = bytes([1] * 16).hex()
BLOCKS = 4


class Stored(NamedTuple):
    """A spool in plain Python."""

    messages: dict[int, tuple[int, int]]
    """(content, sent_ms) by sequence."""
    discarded: set[int]
    open: set[int]
    blocks: list[int]
    whole: set[int]
    unknown: set[int]

    def expected(self) -> Expected:
        """As the witness reads it."""
        sums = np.zeros(len(self.blocks), SUM)
        for row, block in enumerate(self.blocks):
            kept = sorted(self.messages.keys() - self.discarded)
            known = [(at, *self.messages[at]) for at in kept if at // 4096 == block]
            if block not in self.whole:
                known = known[:-1]
            sums[row] = sum_of(known)[:3]
        return Expected(
            *(BitMap64(one) for one in (self.messages, self.discarded, self.open)),
            blocks=np.array(self.blocks, np.int64),
            sums=sums,
            whole=np.array([block in self.whole for block in self.blocks], np.bool_),
            unknown=np.array([block in self.unknown for block in self.blocks], np.bool_),
        )


def plain(model: Model, stored: Stored, due: set[int]) -> dict[str, object]:
    """The verdict, by sequences."""
    seen, messages = model.spools[SPOOL], set(stored.messages)
    kept = messages - stored.discarded
    wanted = kept - stored.open
    kinds: dict[str, list[int]] = {"altered": [], "uncompared": [], "settled": []}
    for block in sorted({at // 4096 for at in kept & set(seen)} - model.settled[SPOOL]):
        if kind := kind_of(block, model, stored):
            kinds[kind].append(block)
    return {
        "judged": len(wanted & due),
        "missing": (wanted & due) - set(seen),
        "late": len(wanted - due - set(seen)),
        "duplicated": {at for at, copies in seen.items() if len(copies) > 1} & messages,
        "unstored": {at for at in set(seen) - messages if min(messages) <= at <= max(messages)}
        if messages
        else set(),
        **kinds,
    }


def kind_of(block: int, model: Model, stored: Stored) -> str:
    """One block's."""

    def within(sequences: Iterable[int]) -> set[int]:
        return {at for at in sequences if at // 4096 == block}

    messages, seen = within(stored.messages.keys() - stored.discarded), within(model.spools[SPOOL])
    if messages - seen:
        return ""
    is_unknown = block in stored.unknown or block not in stored.blocks or block in model.unsummed[SPOOL]
    if is_unknown or messages != seen:
        return "uncompared"
    if block not in stored.whole:
        return ""
    ours = model.sums(SPOOL)[block]
    theirs = sum_of((at, *stored.messages[at]) for at in messages)
    if ours[0] != theirs[0] or (ours[1] != theirs[1] and not ours[3]):
        return "altered"
    return "settled" if block < (max(stored.messages) + 1) // 4096 else ""


def as_plain(verdict: Verdict) -> dict[str, object]:
    """The same form."""
    found = dict[str, object]()
    for name, one in verdict._asdict().items():
        found[name] = set(one) if isinstance(one, BitMap64) else one
        if isinstance(one, np.ndarray):
            assert one.dtype == np.int64
            found[name] = one.tolist()
    return found


CLOSE = [at + block * 4096 for block in range(BLOCKS) for at in (0, 1, 2, 4094, 4095)]
SEQUENCES = st.sampled_from(CLOSE)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Stored, list[Seen], set[int], list[int]]:
    """A spool, the records that arrived of it, the messages that are due, and blocks that were settled."""
    few = st.sets(SEQUENCES, max_size=2)
    messages = {at: (at * 7, at) for at in CLOSE if at not in draw(few)}
    some = draw(st.integers(0, len(CLOSE)))
    messages = {at: one for at, one in messages.items() if at >= CLOSE[-1] - some * 1000}
    stored = Stored(
        messages,
        draw(few) & set(messages),
        draw(few) & set(messages),
        sorted(set(range(BLOCKS)) - draw(st.sets(st.integers(0, BLOCKS - 1), max_size=1))),
        set(range(BLOCKS)) - draw(st.sets(st.integers(0, BLOCKS - 1), max_size=1)),
        draw(st.sets(st.integers(0, BLOCKS - 1), max_size=1)),
    )
    absent, altered, untimed = draw(few), draw(few), draw(few)
    absent |= stored.discarded if draw(st.booleans()) else set()
    records = list[Seen]()
    for at in sorted(messages.keys() - absent):
        content, sent_ms = (one + (at in altered and draw(st.integers(0, 1))) for one in messages[at])
        records.append(Seen(SPOOL, at, content, UNTIMED if at in untimed else sent_ms))
    records += [Seen(SPOOL, at, 0, 0) for at in draw(st.lists(SEQUENCES, max_size=2))]
    records += [Seen(SPOOL, at, 0, 0) for at in draw(st.lists(st.integers(0, 2**63 - 1), max_size=2))]
    due = set(messages) - stored.open - draw(few)
    return stored, records, due, draw(st.lists(st.integers(0, BLOCKS - 1), max_size=1))


@settings(deadline=None, max_examples=200)
@given(cases())
def test_the_verdict_is_that_of_a_loop_over_all_sequences(
    case: tuple[Stored, list[Seen], set[int], list[int]],
) -> None:
    """Discarded, open, absent, altered, untimed, copied and unstored messages, in any mixture."""
    stored, records, due, settled = case
    tier, model = tier_of(SPOOL), Model()
    model.watch(SPOOL, 0)
    tier.absorb(*columns(records))
    model.absorb(records)
    model.settle(SPOOL, settled)
    tier.spool(SPOOL).settle(np.array(settled, np.int64))
    found = judge(tier.spool(SPOOL), stored.expected(), BitMap64(due))
    assert as_plain(found) == plain(model, stored, due)
    # Blocks that are settled are no news any more; nothing else changes.
    tier.spool(SPOOL).settle(found.settled)
    again = judge(tier.spool(SPOOL), stored.expected(), BitMap64(due))
    assert as_plain(again) == as_plain(found) | {"settled": []}


def spool_of(count: int) -> Stored:
    """A spool of two whole blocks and a beginning of a third."""
    return Stored(
        {at: (at * 3, at + 1) for at in range(count)},
        set(),
        set(),
        list(range((count >> 12) + 1)),
        set(range((count >> 12) + 1)),
        set(),
    )


def tier_that_saw(stored: Stored, *records: Seen, without: Iterable[int] = ()) -> TierState:
    """A tier that saw these records, and then those of all messages but some."""
    tier = tier_of(SPOOL)
    tier.absorb(*columns(list(records)))
    skipped = set(without) | {one.sequence for one in records}
    rest = [Seen(SPOOL, at, *one) for at, one in stored.messages.items() if at not in skipped]
    tier.absorb(*columns(rest))
    return tier


def verdict_of(stored: Stored, tier: TierState) -> dict[str, object]:
    """The verdict where all that is not open is due, without what is empty."""
    due = BitMap64(set(stored.messages) - stored.open)
    verdict = as_plain(judge(tier.spool(SPOOL), stored.expected(), due))
    return {name: one for name, one in verdict.items() if one and name != "judged"}


STORED = spool_of(9000)


def test_a_complete_spool_is_settled() -> None:
    """But for its last block, to which it may add messages; that one is compared nevertheless."""
    assert verdict_of(STORED, tier_that_saw(STORED)) == {"settled": [0, 1]}
    altered = tier_that_saw(STORED, Seen(SPOOL, 8999, 1, 1))
    assert verdict_of(STORED, altered) == {"settled": [0, 1], "altered": [2]}


def test_another_content_and_another_time_are_altered() -> None:
    """Each by itself; a broker's time is no other time, and hides no other content."""
    for at, content, sent_ms, is_altered in (
        (5, 16, 6, True),
        (5, 15, 7, True),
        (5, 15, UNTIMED, False),
        (5, 16, UNTIMED, True),
    ):
        verdict = verdict_of(STORED, tier_that_saw(STORED, Seen(SPOOL, at, content, sent_ms)))
        assert verdict == ({"altered": [0], "settled": [1]} if is_altered else {"settled": [0, 1]})


def test_contents_that_changed_places_are_altered() -> None:
    """Two messages that have each other's content, as the sums are of the sequence, too."""
    tier = tier_that_saw(STORED, Seen(SPOOL, 5, 18, 6), Seen(SPOOL, 6, 15, 7))
    assert verdict_of(STORED, tier) == {"altered": [0], "settled": [1]}


def test_a_missing_message_is_missing_alone() -> None:
    """Its block is not compared, even when another of its messages is altered."""
    tier = tier_that_saw(STORED, Seen(SPOOL, 6, 1, 1), without=[5, 4096])
    assert verdict_of(STORED, tier) == {"missing": {5, 4096}}


def test_a_discarded_message_that_arrived_leaves_its_block_uncompared() -> None:
    """The spool's sum is without it. If it did not arrive, both sums are of the other messages."""
    stored = STORED._replace(discarded={5})
    assert verdict_of(stored, tier_that_saw(stored, without=[5])) == {"settled": [0, 1]}
    assert verdict_of(stored, tier_that_saw(stored)) == {"uncompared": [0], "settled": [1]}


def test_an_open_message_lets_its_block_wait() -> None:
    """It is not judged, and not late; once it is seen, its block is compared."""
    stored = STORED._replace(open={5})
    assert verdict_of(stored, tier_that_saw(stored, without=[5])) == {"settled": [1]}
    assert verdict_of(stored, tier_that_saw(stored)) == {"settled": [0, 1]}


def test_sums_that_will_come_are_waited_for() -> None:
    """A block that is not whole yet is nothing; one whose sum never will be known is uncompared."""
    tier = tier_that_saw(STORED)
    waiting = STORED._replace(whole={0, 2})
    assert verdict_of(waiting, tier) == {"settled": [0]}
    assert verdict_of(waiting._replace(unknown={1}), tier) == {"settled": [0], "uncompared": [1]}
    assert verdict_of(STORED._replace(blocks=[0, 2]), tier) == {"settled": [0], "uncompared": [1]}


def test_a_sum_of_other_messages_is_not_compared() -> None:
    """If the spool counts fewer messages in a sum than it has, an altered block is not what that means."""
    expected = STORED.expected()
    expected.sums["count"][1] -= 1
    verdict = judge(tier_that_saw(STORED).spool(SPOOL), expected, BitMap64())
    assert (verdict.uncompared.tolist(), verdict.settled.tolist()) == ([1], [0])
    assert verdict.altered.tolist() == []


def test_a_block_with_records_in_no_sum_is_uncompared() -> None:
    """Some of its records, or all, came from beyond the end of the spool as it was known; once."""
    tier = tier_that_saw(STORED)
    seen = tier.spool(SPOOL)
    seen.sets["unsummed"].add(np.array([0, 1]))
    seen.table.free(seen.rows.pop(0))
    assert verdict_of(STORED, tier) == {"uncompared": [0, 1]}
    seen.settle(np.array([1]))
    assert verdict_of(STORED, tier) == {"uncompared": [0]}


def test_a_spool_without_messages_has_an_empty_verdict() -> None:
    """Also when records came that name it."""
    empty = Stored({}, set(), set(), [], set(), set())
    assert verdict_of(empty, tier_that_saw(STORED)) == {}


def test_a_verdict_on_a_billion_messages_takes_milliseconds() -> None:
    """All blocks but three are settled: the time is that of bitmaps of runs."""
    count = 10**9
    everything, seen = BitMap64(), SpoolSeen(1, bytes(16), BlockTable())
    everything.add_range(0, count)
    seen.seen.add_range(0, count)
    seen.settled.add_range(0, (count >> 12) - 3)
    for block in range((count >> 12) - 3, (count >> 12) + 1):
        seen.row(block)
    blocks = np.arange((count >> 12) + 1)
    sums, whole = np.zeros(len(blocks), SUM), np.ones(len(blocks), np.bool_)
    expected = Expected(everything, BitMap64(), BitMap64(), blocks, sums, whole, ~whole)
    took = list[float]()
    for _ in range(5):
        begun = time.thread_time()
        verdict = judge(seen, expected, everything)
        took.append(time.thread_time() - begun)
    assert (verdict.judged, verdict.late, verdict.settled.tolist()) == (count, 0, blocks[-4:-1].tolist())
    # 0.02 s on a quiet machine.
    assert min(took) < 0.2


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**63 - 70_000), st.integers(1, 70_000)), max_size=6),
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 9)), max_size=6),
    st.integers(0, 9),
)
def test_ranges_are_the_runs(far: list[tuple[int, int]], near: list[tuple[int, int]], most: int) -> None:
    """The first ones, in order, whole, and no two that touch each other; at most as many as asked for."""
    bitmap, runs = BitMap64(), list[tuple[int, int]]()
    for first, count in sorted(far + near):
        bitmap.add_range(first, first + count)
        if runs and first <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(runs[-1][1], first + count - 1))
        else:
            runs.append((first, first + count - 1))
    assert ranges(bitmap, most) == runs[:most]


def test_ranges_of_the_largest_numbers() -> None:
    """The last number that a sequence can be ends a run."""
    bitmap = BitMap64([0, 2**63 - 2, 2**63 - 1])
    assert ranges(bitmap, 5) == [(0, 0), (2**63 - 2, 2**63 - 1)]


def test_touched_blocks() -> None:
    """Each block of which a sequence is in it, once."""
    assert touched(BitMap64([0, 4095, 4096, 9 << 12, 2**63 - 1])).tolist() == [0, 1, 9, (1 << 51) - 1]
    assert touched(BitMap64()).tolist() == []
