"""Sums of blocks do not depend on the order of messages, and add up; a seal writes them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.format.block_sums import add_sums, sum_blocks
from spool.format.segment import list_files
from spool.format.segment_format import BLOCK, SUM
from spool.format.wire import encode
from spool.index.log_end import read_footer
from spool.storage.disk import opened
from tests.spool import plain
from tests.spool.fixture import SpoolFixture

WORDS = st.integers(-(1 << 63), (1 << 63) - 1)
ROWS = st.dictionaries(st.integers(0, 5 * BLOCK), st.tuples(WORDS, WORDS), max_size=30)


@given(ROWS, st.randoms(use_true_random=False))
def test_order_does_not_matter(rows: dict[int, tuple[int, int]], rng: random.Random) -> None:
    """The sums are those of plain integers, whatever the order."""
    shuffled = list(rows)
    rng.shuffle(shuffled)
    sequences = np.array(shuffled, np.int64)
    words, time_words = (np.array([rows[one][at] for one in shuffled], np.int64) for at in range(2))
    blocks, sums = sum_blocks(sequences, words, time_words)
    wanted: dict[int, list[int]] = {}
    for sequence, (word, time_word) in rows.items():
        row = wanted.setdefault(sequence // BLOCK, [0, 0, 0])
        row[0], row[1], row[2] = (row[0] + word) % 2**64, (row[1] + time_word) % 2**32, row[2] + 1
    assert dict(zip(blocks.tolist(), map(list, sums.tolist()), strict=True)) == wanted


@given(ROWS, st.integers(0, 30))
def test_parts_add_up(rows: dict[int, tuple[int, int]], cut: int) -> None:
    """The sums of two parts are those of the whole."""
    sequences = np.array(sorted(rows), np.int64)
    words, time_words = (np.array([rows[one][at] for one in sorted(rows)], np.int64) for at in range(2))
    whole, added = np.zeros(8, SUM), np.zeros(8, SUM)
    for part in (slice(cut), slice(cut, None)):
        blocks, sums = sum_blocks(sequences[part], words[part], time_words[part])
        add_sums(added, blocks, sums)
    blocks, sums = sum_blocks(sequences, words, time_words)
    add_sums(whole, blocks, sums)
    assert added.tolist() == whole.tolist()


@pytest.mark.parametrize("changed", [False, True])
def test_a_seal_writes_the_sums_of_its_messages(tmp_path: Path, *, changed: bool) -> None:
    """Over several blocks, the first of which begins in the middle, as the independent reader has them.

    Another value in one message gives another sum in its block, and in no other.
    """
    spool = SpoolFixture(tmp_path, segment_bytes=1 << 20, max_bytes=16 << 20)
    for at in range(10_000):
        spool.append([encode(b"t", b"%d" % (at + (changed and at == 5000)), timestamp=at)])
    spool.stop()
    rows = []
    for path in list_files(spool.layout):
        with opened(path) as file:
            footer = read_footer(file.fileno())
        assert footer is not None
        assert footer.sums.tolist() == plain.sums(plain.read_segment(path.read_bytes()))
        rows += footer.sums["count"].tolist()
    assert sum(rows) == 10_000
    assert max(rows) <= BLOCK
