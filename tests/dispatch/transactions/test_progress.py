"""Progress records: what is written comes back, and nothing else is taken for one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.transactions.progress import (
    BadProgress,
    DeadLetterRuns,
    Deliverer,
    Progress,
    Runs,
    dead_letter_runs,
    decode,
    encode,
    merge,
    runs_of,
)
from spool.native.digest import digest

VERSION_1 = bytes.fromhex(
    "d21a010b2fa12f25 6272756365707267 0100 0400 01000000 0700000000000000 0300000000000000"
    "000102030405060708090a0b0c0d0e0f 0500000000000000"
    "7801cbc82f2e6164800026249a05cae684d2cc401aa40e0052d701d5"
)
"""Transaction 7, generation 3, host `host`, started at 5; of segment 1 with identity 2: 4, 5, 6 and 9."""
numbers = st.integers(0, 2**63 - 1)
sequences = st.lists(st.integers(0, 2**40), unique=True, max_size=200).map(lambda s: np.array(s, np.int64))


@st.composite
def blocks(draw: st.DrawFn) -> Runs:
    """Runs of one segment."""
    return Runs(draw(numbers), draw(numbers), *runs_of(draw(sequences)))


@st.composite
def letters(draw: st.DrawFn) -> DeadLetterRuns:
    """Dead letters of one topic."""
    return DeadLetterRuns(
        draw(st.integers(0, 2**16 - 1)), draw(st.binary(max_size=40)), *runs_of(draw(sequences))
    )


@st.composite
def records(draw: st.DrawFn) -> Progress:
    """A record."""
    by = Deliverer(draw(st.binary(min_size=16, max_size=16)), draw(st.text(max_size=40)), draw(numbers))
    delivered, dead = draw(st.lists(blocks(), max_size=4)), draw(st.lists(letters(), max_size=3))
    return Progress(draw(numbers), draw(numbers), by, delivered, dead)


def plain(progress: Progress) -> tuple[object, ...]:
    """Comparable."""
    found = [(b.segment, b.identity, b.first.tolist(), b.length.tolist()) for b in progress.delivered]
    dead = [(one.reason, one.topic, one.first.tolist(), one.length.tolist()) for one in progress.letters]
    return progress.number, progress.generation, progress.by, found, dead


@given(sequences)
def test_runs_are_the_sequences(chosen: np.ndarray) -> None:
    """Runs neither touch nor overlap, and give back what they were made of."""
    first, length = runs_of(chosen)
    assert Runs(0, 0, first, length).sequences().tolist() == sorted(chosen.tolist())
    assert (length > 0).all()
    assert (first[1:] > first[:-1] + length[:-1]).all()


def test_letters_are_told_by_reason_and_topic() -> None:
    """Each with its own sequences."""
    found = dead_letter_runs({7: (14, b"a"), 3: (14, b"a"), 4: (14, b"a"), 5: (14, b"b"), 6: (15, b"a")})
    told = {(one.reason, one.topic): one.sequences().tolist() for one in found}
    assert told == {(14, b"a"): [3, 4, 7], (14, b"b"): [5], (15, b"a"): [6]}


@given(records())
def test_a_record_comes_back(progress: Progress) -> None:
    """Every field."""
    assert plain(decode(encode(progress))) == plain(progress)


@given(records(), st.data())
def test_a_damaged_record_is_refused(progress: Progress, data: st.DataObject) -> None:
    """Any byte that is another, and any that are missing."""
    whole = encode(progress)
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= data.draw(st.integers(1, 255))
    for bad in (bytes(flipped), whole[:at]):
        with pytest.raises(BadProgress):
            decode(bad)


def test_version_1_is_read() -> None:
    """Bytes that were written once, and must be understood for ever."""
    found = decode(VERSION_1)
    assert plain(found) == (7, 3, Deliverer(bytes(range(16)), "host", 5), [(1, 2, [4, 9], [3, 1])], [])


def test_a_later_version_is_refused() -> None:
    """In one sentence that says what to do."""
    body = bytearray(encode(Progress(1, 2, Deliverer(bytes(16), "h", 3), []))[8:])
    body[8] = 2
    with pytest.raises(BadProgress, match="it has version 2, and this release knows 1: use a newer one"):
        decode(digest(bytes(body)).to_bytes(8, "little") + bytes(body))


@given(st.lists(blocks(), max_size=5))
def test_merged_blocks_hold_what_each_held(parts: list[Runs]) -> None:
    """One block a segment; what two blocks name is named once."""
    wanted: dict[tuple[int, int], set[int]] = {}
    for part in parts:
        wanted.setdefault((part.segment, part.identity), set()).update(part.sequences().tolist())
    merged = merge(parts)
    assert {(m.segment, m.identity): set(m.sequences().tolist()) for m in merged} == wanted
    assert len(merged) == len(wanted)
