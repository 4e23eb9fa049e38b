"""The book of sums reads back what was written, and believes nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spool.format.segment_format import BLOCK, SUM, SUM_BITS
from spool.format.sums_book import ALIGN, HEAD, Departed, decode_departed, encode_departed

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
    return [plain(segment) for _, segment in decode_departed(spool, data)]


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
