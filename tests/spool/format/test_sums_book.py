"""The book of sums reads back what was written, and believes nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.format import sums_book
from spool.format.segment_format import BLOCK, SUM, SUM_BITS, Record
from spool.format.sums_book import (
    ALIGN,
    HEAD,
    MAGIC,
    MOST_BLOCKS,
    MOST_MESSAGES,
    MOST_WASTED,
    Departed,
    decode_departed,
    encode_departed,
    end_of_book,
)
from spool.native.digest import digest

SPOOL, OTHER = bytes(range(16)), bytes(range(1, 17))


@st.composite
def segments(draw: st.DrawFn) -> Departed:
    """A segment, of whose messages some were discarded."""
    first, messages = draw(st.integers(0, 1 << 40)), draw(st.integers(1, 3 * BLOCK))
    blocks = ((first + messages - 1) >> SUM_BITS) - (first >> SUM_BITS) + 1
    row = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, BLOCK))
    rows = draw(st.none() | st.lists(row, min_size=blocks, max_size=blocks))
    gone = draw(st.none() | st.sets(st.integers(0, messages - 1), max_size=9))
    sums = None if rows is None else np.array(rows, SUM)
    return Departed(first, messages, sums, None if gone is None else first + np.array(sorted(gone), np.int64))


def plain(segment: Departed) -> tuple[object, ...]:
    """A segment that can be compared."""
    sums, discarded = segment.sums, segment.discarded
    return (
        segment.first,
        segment.messages,
        None if sums is None else sums.tolist(),
        None if discarded is None else discarded.tolist(),
    )


def read(data: bytes, spool: bytes = SPOOL) -> list[tuple[object, ...]]:
    """All segments of a book."""
    return [plain(segment) for segment in decode_departed(spool, data)]


def test_the_golden_book_reads_as_it_did() -> None:
    """A book of version 1, written once: two segments, of which the second has nothing but its numbers."""
    data = (Path(__file__).parents[2] / "golden/sums-v1.bin").read_bytes()
    sums = [(11, 12, 4000), (2**64 - 1, 2**32 - 1, 94)]
    assert read(data) == [(96, 4096, sums, [96, 98, 4191]), (4192, 1, None, None)]


BOOKS = st.lists(segments(), max_size=4, unique_by=lambda one: one.first)


@given(BOOKS)
def test_books_round_trip(book: list[Departed]) -> None:
    """A record reads as it was written; a second one of a segment, or another spool's, does not count."""
    records = [encode_departed(SPOOL, one) for one in book]
    assert all(len(record) % ALIGN == 0 for record in records)
    assert read(b"".join(records)) == [plain(one) for one in book]
    twice = b"".join(record + encode_departed(OTHER, one) for record, one in zip(records, book, strict=True))
    assert read(twice + b"".join(records)) == [plain(one) for one in book]


@given(BOOKS.filter(bool), st.data())
def test_damage_hides_one_record(book: list[Departed], data: st.DataObject) -> None:
    """A flipped byte hides the record that it is in, and a cut the last one."""
    records = [encode_departed(SPOOL, one) for one in book]
    hit = data.draw(st.integers(0, len(book) - 1))
    changed = bytearray(records[hit])
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    rest = [plain(one) for at, one in enumerate(book) if at != hit]
    assert read(b"".join([*records[:hit], bytes(changed), *records[hit + 1 :]])) == rest
    cut = data.draw(st.integers(1, len(records[-1])))
    assert read(b"".join(records)[:-cut]) == [plain(one) for one in book[:-1]]


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_other_bytes_are_no_records(before: bytes, behind: bytes) -> None:
    """Nothing else in the file is one, also behind the magic."""
    assert read(before + HEAD.names.__repr__().encode() + b"brucesum" + behind) == []


def test_heads_that_claim_much_cost_little() -> None:
    """Each claims all that a record may have, and none is whole: a reader takes no more than it must."""
    head = np.zeros(1, HEAD)
    head["magic"], head["version"], head["messages"] = MAGIC, 1, MOST_MESSAGES
    head["discarded_bytes"] = MOST_MESSAGES // 8
    data = head.tobytes() * (1 << 16) + bytes(MOST_MESSAGES // 8)
    taken = list[int]()

    def count(text: bytes, seed: int) -> int:
        taken.append(len(text))
        return digest(text, seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums_book, "digest", count)
        assert read(data) == []
    assert len(taken) > 1
    assert sum(taken) <= MOST_WASTED + MOST_MESSAGES


@pytest.mark.parametrize("sums", [None, np.empty(0, SUM)])
def test_blocks_without_bytes_are_bounded(sums: Record | None) -> None:
    """Records of a few bytes may say that segments had 2^28 messages each; a later one that fits is taken."""
    each = MOST_MESSAGES >> SUM_BITS
    large = [Departed(number * MOST_MESSAGES, MOST_MESSAGES, sums, None) for number in range(12)]
    small = Departed(
        12 * MOST_MESSAGES, 5, np.zeros(1, SUM), np.arange(12 * MOST_MESSAGES, 12 * MOST_MESSAGES + 2)
    )
    found = decode_departed(SPOOL, b"".join(encode_departed(SPOOL, one) for one in [*large, small]))
    firsts = [number * MOST_MESSAGES for number in range(MOST_BLOCKS // each)]
    assert [one.first for one in found] == [*firsts, small.first]


def test_blocks_with_sums_cost_nothing_else() -> None:
    """However many segments had a discarded message."""
    records = [
        Departed(number << 16, 2 << SUM_BITS, np.zeros(2, SUM), np.array([number << 16]))
        for number in range(9)
    ]
    data = b"".join(encode_departed(SPOOL, one) for one in records)
    found = decode_departed(SPOOL, data, most_blocks=4)
    assert [one.first for one in found] == [one.first for one in records]


def test_discards_without_bytes_are_bounded() -> None:
    """Behind too many of them it is not known which messages were discarded."""
    records = [
        Departed(number << SUM_BITS, 600, np.zeros(1, SUM), (number << SUM_BITS) + np.arange(count))
        for number, count in enumerate((600, 600, 400, 1))
    ]
    data = b"".join(encode_departed(SPOOL, one) for one in records)
    found = decode_departed(SPOOL, data, most_discarded=1000)
    assert [None if one.discarded is None else len(one.discarded) for one in found] == [600, None, 400, None]


def test_a_record_has_no_more_than_its_messages_need() -> None:
    """More blocks, or more bytes of discards, than there may be, are no record, whatever the check says."""
    whole = Departed(0, 10, np.zeros(1, SUM), np.arange(3))
    assert len(read(encode_departed(SPOOL, whole))) == 1
    for name, value in (("blocks", 2), ("discarded_bytes", 400)):
        data = bytearray(encode_departed(SPOOL, whole) + bytes(512))
        head = np.frombuffer(data, HEAD, 1)
        head[name], head["check"] = value, 0
        length = HEAD.itemsize + int(head["blocks"][0]) * SUM.itemsize + int(head["discarded_bytes"][0])
        head["check"] = digest(bytes(data[: length + -length % ALIGN]), sums_book.seed_of(SPOOL))
        assert read(bytes(data)) == []


def test_a_book_ends_behind_its_last_whole_record() -> None:
    """Also where a reader would leave records out: nothing is written over them."""
    records = [
        encode_departed(SPOOL, Departed(number * MOST_MESSAGES, MOST_MESSAGES, None, None))
        for number in range(2 * MOST_BLOCKS // (MOST_MESSAGES >> SUM_BITS))
    ]
    whole = b"".join(records)
    assert end_of_book(SPOOL, whole + records[0][:-1]) == len(whole)
    assert end_of_book(SPOOL, b"") == 0
