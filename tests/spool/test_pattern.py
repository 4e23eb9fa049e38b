"""Searching keys and values."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from spool.pattern import Plain, Regex
from tests.dispatch import batches

SOME = st.lists(st.sampled_from([b"", b"a", b"aa", b"ab", b"ba", b"aab", b"\xff\n", b"b\xff"]), max_size=3)


@given(st.lists(st.tuples(SOME.map(b"".join), SOME.map(b"".join)), max_size=12), st.data())
def test_plain_bytes_are_found_where_they_are(rows: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    """In one key or one value, and never across two, or in what lies between them."""
    wanted = data.draw(SOME.map(b"".join).filter(bool))
    messages = [batches.Message(i, 0, value, key=key) for i, (key, value) in enumerate(rows)]
    batch = batches.build_batch(batches.name_topics(b"aab"), messages)
    found = Plain(wanted).rows(batch)
    assert found.tolist() == [wanted in key or wanted in value for key, value in rows]
    assert Plain(wanted).may_lie_in(batch.data) >= found.any(), "bytes that hold it are not looked at"
    assert Plain(wanted).may_lie_in(batch.data) == (wanted in batch.data.tobytes())


@pytest.mark.parametrize(
    ("expression", "rows"),
    [(b"^a", [0, 2]), (b"a$", [1]), (b"x.y", [3]), (b"\\x00\xff", []), (b"", [0, 1, 2, 3])],
)
def test_regular_expressions(expression: bytes, rows: list[int]) -> None:
    """An anchor is the beginning or the end of a key or a value; a dot is any byte."""
    pairs = [(b"ab", b""), (b"", b"ba"), (b"k", b"a\nb"), (b"", b"x\ny")]
    messages = [batches.Message(i, 0, value, key=key) for i, (key, value) in enumerate(pairs)]
    batch = batches.build_batch(batches.name_topics(b"t"), messages)
    assert Regex(expression).rows(batch).nonzero()[0].tolist() == rows


def test_a_batch_that_is_kept_is_a_copy() -> None:
    """What it was read from may be used for others; what lies behind its last message is not kept."""
    messages = [batches.Message(i, 0, b"value %d" % i, key=b"k") for i in range(3)]
    batch = batches.build_batch(batches.name_topics(b"t"), messages)
    kept, before = batch.kept(), [batch.datagram(row) for row in range(3)]
    assert not np.shares_memory(kept.data, batch.data)
    assert [kept.datagram(row) for row in range(3)] == before
    assert kept.value(2) == b"value 2"
    assert len(kept.data) == kept.datagram_at[2] + kept.datagram_bytes[2]
