"""Reading segment files: requested messages are found, with any other bytes around them."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from spool.format.batch import Topics
from spool.format.segment import list_files
from spool.format.segment_format import HEAD_BYTES
from spool.format.wire import encode
from spool.index.segment_list import SegmentList
from spool.native.memory import address_of
from spool.read import files
from spool.read.files import Located, Plain, Regex, Span, Unreadable, locate, read_file
from spool.read.selection import Selection
from tests.dispatch import batches
from tests.spool.fixture import SpoolFixture

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
    """The filter, both automata, and all of them together, as bytes.find does; nothing behind the end."""
    held = ((b"".join(pieces) + wanted[cut:] + b"c") * times)[:9000]
    data, sought = np.frombuffer(held + wanted, np.uint8), files.Sought.of(wanted)
    base, end = address_of(data), len(held) - len(wanted) + 1
    every = [at for at in range(max(0, end)) if held.startswith(wanted, at)]
    hits, parts = np.empty(len(data), np.int64), np.empty((3, len(data)), np.int64)
    if end > 0:
        searched, found = files._filter_block(base, 0, end, sought.text, hits)
        assert hits[:found].tolist() == [at for at in every if at < searched]
        assert searched == end or found or searched >= 64
        found = files._match_borders(base, 0, end, sought.text, sought.borders, hits)
        assert hits[:found].tolist() == every
        first = sought.text[:64]
        found = files._match_bits(base, 0, end, first, sought.bit, sought.masks, hits, parts)
        assert hits[:found].tolist() == [at for at in range(end) if held.startswith(wanted[:64], at)]
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
    data, sought = np.frombuffer(near[:8192], np.uint8), files.Sought.of(wanted)
    hits = np.empty(8192, np.int64)
    end = 8192 - length
    searched, _ = files._filter_block(address_of(data), 0, end, sought.text, hits)
    assert searched < end
    ordinary = np.frombuffer(b"a value, 4711" * 700, np.uint8)
    assert files._filter_block(address_of(ordinary), 0, end, sought.text, hits) == (end, 0)


def test_loops_that_are_plain_python_search_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that looks at a few messages loads no loops, and must not step through each byte."""
    pairs = [(b"ab", b""), (b"", b"xaby"), (b"a", b"b")]
    messages = [batches.Message(i, 0, value, key=key) for i, (key, value) in enumerate(pairs)]
    batch = batches.build_batch(batches.name_topics(b"ab"), messages)
    monkeypatch.setattr(files, "interprets", lambda: True)
    monkeypatch.setattr(files, "_search", None)
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


def test_a_batch_that_is_kept_is_a_copy() -> None:
    """The buffer may be used again; bytes behind its last message are not kept."""
    messages = [batches.Message(i, 0, b"value %d" % i, key=b"k") for i in range(3)]
    batch = batches.build_batch(batches.name_topics(b"t"), messages)
    kept, before = batch.kept(), [batch.datagram(row) for row in range(3)]
    assert not np.shares_memory(kept.data, batch.data)
    assert [kept.datagram(row) for row in range(3)] == before
    assert kept.value(2) == b"value 2"
    assert len(kept.data) == kept.datagram_at[2] + kept.datagram_bytes[2]


@pytest.fixture
def many_topics(tmp_path: Path) -> SpoolFixture:
    """A segment of twenty topics, of which a reader's table takes five."""
    made = SpoolFixture(tmp_path, segment_bytes=1 << 20, max_bytes=16 << 20)
    made.append([encode(b"t%d" % n, b"v") for n in range(20)] * 2)
    made.step()
    made.crash()
    return made


def test_a_topic_that_came_late_is_found(many_topics: SpoolFixture) -> None:
    """Requested topics have numbers, however many came before them."""
    span, found = Span(topics=frozenset({b"t19"})), list[bytes]()
    for path in list_files(many_topics.layout):
        for batch in read_file(path, Topics.of_reader(5), span):
            assert not isinstance(batch, Unreadable)
            found += [batch.topic_name(row) for row in span.rows(batch).nonzero()[0].tolist()]
    assert found == [b"t19"] * 2


def test_a_selection_finds_it_too(many_topics: SpoolFixture) -> None:
    """So do readers of committed messages."""
    span = Span(topics=frozenset({b"t18"}))
    reader = Selection(SegmentList(many_topics.layout), Topics.of_reader(5), span)
    batch = reader.next()
    assert batch is not None
    assert [batch.topic_name(row) for row in span.rows(batch).nonzero()[0].tolist()] == [b"t18"] * 2
    reader.close()


def fill(spool: SpoolFixture, bursts: int) -> None:
    """Bursts of ten messages; the value of each is its number."""
    for burst in range(bursts):
        spool.append([encode(b"t", b"%d" % number) for number in range(10 * burst, 10 * burst + 10)])
        spool.step()


def value(found: Located | Unreadable | None) -> bytes:
    """The value of the message found."""
    assert isinstance(found, Located)
    assert int(found.batch.sequence[found.row]) == int(found.head["first_sequence"]) + found.row
    return found.batch.value(found.row)


def test_every_message_is_found(spool: SpoolFixture) -> None:
    """In sealed segments and in the one in use; behind the last there is nothing."""
    fill(spool, 60)
    files = list_files(spool.layout)
    assert len(files) > 3
    for sequence in range(600):
        assert value(locate(files, sequence)) == b"%d" % sequence
    assert locate(files, 600) is None
    sealed = {found.sealed for n in (0, 599) if isinstance(found := locate(files, n), Located)}
    assert sealed == {True, False}


def test_a_single_file(spool: SpoolFixture, tmp_path: Path) -> None:
    """A segment under any name; messages before and behind it are not there, nor are they in another file."""
    fill(spool, 60)
    first, second = spool.layout.list_segments()[:2]
    bare, letter = tmp_path / "anything", tmp_path / "letter"
    bare.write_bytes(spool.layout.segment(*second).read_bytes())
    letter.write_text("dear reader")
    assert value(locate([letter, bare], second[0])) == b"%d" % second[0]
    assert locate([bare], first[0]) is None
    assert locate([letter], 0) is None


def test_what_is_damaged_is_said_to_be(spool: SpoolFixture) -> None:
    """For a message in a damaged frame: the file, and the place. Those around it are found."""
    fill(spool, 6)
    (path,) = list_files(spool.layout)
    good = locate([path], 25)
    assert isinstance(good, Located)
    with path.open("r+b") as file:
        file.seek(good.offset + HEAD_BYTES + 8)
        file.write(b"rot")
    for sequence in range(20, 30):
        assert locate([path], sequence) == Unreadable(path, good.offset, 10)
    assert value(locate([path], 19)) == b"19"
    assert value(locate([path], 30)) == b"30"
