"""Reading segment files: requested messages are found, with any other bytes around them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spool.format.batch import Topics
from spool.format.segment import list_files
from spool.format.segment_format import HEAD_BYTES
from spool.format.wire import encode
from spool.index.segment_list import SegmentList
from spool.read.files import Located, Span, Unreadable, locate, read_file
from spool.read.selection import Selection
from tests.dispatch import batches
from tests.spool.fixture import SpoolFixture


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
