"""Patterns: each search finds the same places, by any of its ways."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from spool.native.memory import address_of
from spool.read import patterns
from spool.read.patterns import Plain, Regex
from tests.dispatch import batches

SOME = st.lists(st.sampled_from([b"", b"a", b"aa", b"ab", b"ba", b"aab", b"\xff\n", b"b\xff"]), max_size=3)


@given(st.lists(st.tuples(SOME.map(b"".join), SOME.map(b"".join)), max_size=12), st.data())
def test_plain_bytes_are_found_where_they_are(rows: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    """In one key or one value, and never across two, or in the bytes between them."""
    wanted = data.draw(SOME.map(b"".join).filter(bool))
    messages = [batches.Message(i, 0, value, key=key) for i, (key, value) in enumerate(rows)]
    batch = batches.build_batch(batches.name_topics(b"aab"), messages)
    found = Plain(wanted).rows(batch)
    assert found.tolist() == [wanted in key or wanted in value for key, value in rows]
    assert Plain(wanted).may_lie_in(batch.data) >= found.any(), "bytes that hold it are not looked at"
    assert Plain(wanted).may_lie_in(batch.data) == (wanted in batch.data.tobytes())


PIECES = st.lists(st.sampled_from([b"a", b"b", b"ab", b"a" * 63, b"ab" * 40, b"c"]), min_size=1, max_size=6)
LONG = PIECES.map(b"".join)


@given(LONG, st.lists(LONG, max_size=12), st.integers(0, 80), st.integers(1, 40))
def test_each_search_finds_every_place(wanted: bytes, pieces: list[bytes], cut: int, times: int) -> None:
    """The filter, the automaton or the hash, and all together, as bytes.find does; nothing behind the end."""
    held = ((b"".join(pieces) + wanted[cut:] + b"c") * times)[:9000]
    data, sought = np.frombuffer(held + wanted, np.uint8), patterns.SearchText.of(wanted)
    base, end = address_of(data), len(held) - len(wanted) + 1
    every = [at for at in range(max(0, end)) if held.startswith(wanted, at)]
    hits, parts = np.empty(len(data), np.int64), np.empty((3, len(data)), np.int64)
    if end > 0:
        at, filtered = 0, []
        while at < end:
            at, hit, _ = patterns._filter(base, at, end, sought.text, len(held))
            filtered += [hit] * (hit >= 0)
        assert filtered == every
        if len(wanted) > 64:
            found = patterns._match_hashes(base, 0, end, len(wanted), sought.rolling, sought.hashes, hits)
        else:
            found = patterns._match_bits(base, 0, end, sought.text, sought.bit, sought.masks, hits, parts)
        assert hits[:found].tolist() == every
    assert Plain(wanted).may_lie_in(data[: len(held)]) == (wanted in held)


@given(LONG, st.lists(st.tuples(LONG, LONG, st.integers(1, 60)), max_size=8))
def test_long_messages_are_searched_like_short_ones(
    wanted: bytes, some: list[tuple[bytes, bytes, int]]
) -> None:
    """Also where the text, or nearly the text, is everywhere."""
    pairs = [(key, (value + wanted[:-1]) * times) for key, value, times in some]
    messages = [batches.Message(i, 0, value, key=key) for i, (key, value) in enumerate(pairs)]
    batch = batches.build_batch(batches.name_topics(b"aab"), messages)
    assert Plain(wanted).rows(batch).tolist() == [wanted in key or wanted in value for key, value in pairs]


@pytest.mark.parametrize("length", [22, 64, 100])
def test_bytes_that_nearly_agree_go_through_an_automaton(length: int) -> None:
    """The filter stops after bounded work, where it would compare the text again and again."""
    wanted = bytes(range(length))
    near = b"".join(wanted[:at] + b"\xff" + wanted[at + 1 :] for at in range(length)) * 40
    data, sought = np.frombuffer(near[:8192], np.uint8), patterns.SearchText.of(wanted)
    end = 8192 - length
    searched, hit, work = patterns._filter(address_of(data), 0, end, sought.text, end // 4)
    assert (searched < end, hit, work < 0) == (True, -1, True)
    ordinary = np.frombuffer(b"a value, 4711" * 700, np.uint8)
    assert patterns._filter(address_of(ordinary), 0, end, sought.text, end // 4)[:2] == (end, -1)


def test_loops_that_are_plain_python_search_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that looks at a few messages loads no loops, and must not step through each byte."""
    pairs = [(b"ab", b""), (b"", b"xaby"), (b"a", b"b")]
    messages = [batches.Message(i, 0, value, key=key) for i, (key, value) in enumerate(pairs)]
    batch = batches.build_batch(batches.name_topics(b"ab"), messages)
    monkeypatch.setattr(patterns, "interprets", lambda: True)
    monkeypatch.setattr(patterns, "_search", None)
    assert Plain(b"ab").rows(batch).tolist() == [True, True, False]
    assert Plain(b"ab").may_lie_in(batch.data)
    assert not Plain(b"abc").may_lie_in(batch.data)


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
