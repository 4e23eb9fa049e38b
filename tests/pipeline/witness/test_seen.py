"""One spool as it was seen: sets that are written by parts, rows of sums, and blocks that are settled."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from pipeline.witness.seen import MARGIN, BlockTable, Numbers, SpoolSeen, numbers_of
from spool.format.message_hash import Words
from spool.format.segment_format import SUM

PART = 1 << 24
NUMBERS = st.one_of(
    st.integers(0, 50), st.integers(PART - 20, PART + 20), st.integers(0, 2**63 - 1), st.just(2**63 - 1)
)


def words(*numbers: int) -> Words:
    """int64[n]."""
    return np.array(numbers, np.int64)


@settings(deadline=None)
@given(st.lists(st.lists(NUMBERS, min_size=1, max_size=30), max_size=8))
def test_the_parts_of_a_set_are_the_set(bursts: list[list[int]]) -> None:
    """Parts that are written again after each burst, and no others, are together all numbers that came."""
    numbers, files = Numbers(), dict[int, BitMap64]()
    for burst in bursts:
        numbers.add(words(*sorted(set(burst))))
        files |= {part: BitMap64.deserialize(data) for part, data in numbers.packed()}
        numbers.parts.clear()
    found = BitMap64.union(BitMap64(), *files.values())
    assert set(found) == set(numbers.bitmap) == {one for burst in bursts for one in burst}


@settings(deadline=None)
@given(st.lists(st.sets(NUMBERS, max_size=30), max_size=5))
def test_merged_sets_are_written_by_parts(more: list[set[int]]) -> None:
    """As numbers that were added one by one; without a new number nothing is to be written."""
    numbers, files = Numbers(), dict[int, BitMap64]()
    for one in more:
        numbers.merge(BitMap64(one))
        files |= {part: BitMap64.deserialize(data) for part, data in numbers.packed()}
        numbers.parts.clear()
        numbers.merge(BitMap64(one))
        assert not numbers.parts
    found = BitMap64.union(BitMap64(), *files.values())
    assert set(found) == set(numbers.bitmap) == set[int]().union(*more)


def test_only_parts_that_changed_are_written() -> None:
    """A number in one part of a large set is one part to write, and dense numbers take few bytes."""
    numbers = Numbers()
    numbers.bitmap.add_range(0, 3 * PART)
    numbers.parts.update((0, 1, 2))
    packed = dict(numbers.packed())
    assert sorted(packed) == [0, 1, 2]
    assert max(map(len, packed.values())) < 4096
    numbers.parts.clear()
    numbers.add(words(PART * 2 + 7))
    assert [part for part, _ in numbers.packed()] == [2]
    numbers.parts.clear()
    assert list(numbers.packed()) == []


def test_rows_of_sums_are_used_again() -> None:
    """A table grows when it is full, keeps its sums, and gives back rows that were freed, with sums of 0."""
    table = BlockTable()
    rows = [table.take(1, block) for block in range(3000)]
    assert len(set(rows)) == 3000
    one = np.array([(5, 6, 7)], SUM)
    table.add(words(rows[2]), one, words(1))
    table.add(words(rows[2]), one, words(0))
    assert list(table.packed()) == [(1, 2, 10, 12, 14, 1)]
    table.free(rows[2])
    assert list(table.packed()) == []
    assert table.take(2, 9) == rows[2]
    assert table.rows[rows[2]].tolist() == (2, 9, 0, 0, 0, 0)


def test_sums_wrap_around() -> None:
    """Contents are added modulo 2^64, times modulo 2^32; SQLite gets contents signed."""
    table = BlockTable()
    at = words(table.take(1, 0))
    table.add(at, np.array([(2**64 - 1, 2**32 - 1, 1)], SUM), words(0))
    assert list(table.packed()) == [(1, 0, -1, 2**32 - 1, 1, 0)]
    table.add(at, np.array([(3, 3, 1)], SUM), words(0))
    assert list(table.packed()) == [(1, 0, 2, 2, 2, 0)]


def test_a_settled_block_has_no_sums() -> None:
    """They are gone, nothing brings them back, and the block's rows are named as gone once."""
    spool = SpoolSeen(1, bytes(16), BlockTable())
    rows = [spool.row(block) for block in (4, 2, 9)]
    assert spool.sums()[0].tolist() == [2, 4, 9]
    spool.settle(words(9, 2, 2, 77))
    assert (spool.row(2), spool.row(4), spool.row(9), spool.row(77)) == (-1, rows[0], -1, -1)
    assert spool.sums()[0].tolist() == [4]
    assert (set(spool.settled), spool.gone) == ({2, 9, 77}, [2, 9])
    spool.settle(words())
    spool.written()
    assert (spool.gone, spool.sets["settled"].parts) == ([], set())


def test_the_end_only_rises() -> None:
    """The block from which on there are no sums is MARGIN messages beyond it; a hostile end is none."""
    spool = SpoolSeen(1, bytes(16), BlockTable())
    ends = list[int]()
    for end in (10 * 4096, 4096, -1, 2**62, 0):
        spool.expect(end)
        ends.append(spool.summed_end - MARGIN // 4096)
    assert ends == [10, 10, 10, 2**50, 2**50]


def test_only_new_sequences_are_first() -> None:
    """Copies in a burst, and of bursts before, are seen twice, and are not first."""
    spool = SpoolSeen(1, bytes(16), BlockTable())
    is_first = np.array([True, True, False, True])
    spool.see(words(1, 5, 5, 8), is_first)
    assert is_first.tolist() == [True, True, False, True]
    is_first = np.array([True, True, True, False, True])
    spool.see(words(1, 6, 8, 8, 9), is_first)
    assert is_first.tolist() == [False, True, False, False, True]
    assert (set(spool.seen), set(spool.twice)) == ({1, 5, 6, 8, 9}, {1, 5, 8})


def test_numbers_of_a_set() -> None:
    """They are ascending, up to the largest one."""
    numbers = numbers_of(BitMap64([7, 2**63 - 1, 2**40]))
    assert (numbers.tolist(), numbers.dtype) == ([7, 2**40, 2**63 - 1], np.int64)
    assert len(numbers_of(BitMap64())) == 0


def test_sums_of_strange_blocks_are_bounded() -> None:
    """Strangers may name any sequence among a spool's: beyond some blocks it has not, sums are forgotten."""
    spool = SpoolSeen(1, bytes(16), BlockTable())
    ours = words(0, 1, 30)
    for block in range(31):
        spool.row(block)
    spool.row(40)
    spool.limit(ours, most=10)
    assert len(spool.rows) == len(ours) + 10 + 1
    assert {*ours.tolist(), 40} < spool.rows.keys()
    assert len(spool.unsummed) == len(spool.gone) == 31 - len(ours) - 10
    spool.limit(ours, most=10)
    assert len(spool.gone) == 31 - len(ours) - 10
