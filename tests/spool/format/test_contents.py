"""The footer's count of a segment's topics: a bounded list, the rest together, and never a wrong count."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spool.format import contents
from spool.format.batch import Topics
from spool.format.segment import list_files
from spool.format.segment_format import MAX_TOPIC_BYTES, TOPIC_BYTES, UNLISTED
from spool.format.wire import encode
from spool.fsck.examination import Examination
from spool.index.log_end import has_unlisted, read_footer
from spool.index.segment_list import SegmentList
from spool.read.files import Span, Unreadable, read_file
from spool.read.overview import overview
from spool.read.reader import Reader
from tests.spool.fixture import SpoolFixture

names = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=3),
        st.integers(1, 300).map(lambda size: b"n" * size),
    ),
    min_size=1,
    max_size=60,
)


def footer_topics(path: Path) -> list[tuple[bytes, int, int, int]]:
    """The rows of a sealed segment's footer."""
    fd = os.open(path, os.O_RDONLY)
    try:
        footer = read_footer(fd)
    finally:
        os.close(fd)
    assert footer is not None
    return footer.topics


def sealed(directory: Path, topics: list[bytes]) -> list[Path]:
    """The segments of a spool with a message of each topic, by their order; timestamps count up."""
    spool = SpoolFixture(directory)
    for at, topic in enumerate(topics):
        spool.append([encode(topic, b"", timestamp=at)])
        spool.step()
    spool.stop()
    return list_files(spool.layout)


def test_a_topic_that_returns_has_one_row(tmp_path: Path) -> None:
    """However many other topics came between its messages."""
    topics = [b"%d" % (n % 50) for n in range(150)]
    spool = SpoolFixture(tmp_path, segment_bytes=1 << 20, max_bytes=16 << 20)
    spool.append([encode(topic, b"") for topic in topics])
    spool.step()
    spool.stop()
    (path,) = list_files(spool.layout)
    assert [(name, count) for name, count, *_ in footer_topics(path)] == [(b"%d" % n, 3) for n in range(50)]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names, st.integers(40, 700))
def test_what_is_listed(tmp_path_factory: pytest.TempPathFactory, topics: list[bytes], room: int) -> None:
    """Topics are listed by their first messages while there is room; the last row counts all others.

    Each message counts once, with its timestamp, and the check of the segment finds the same.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "topic_room", lambda _: room)
        paths = sealed(tmp_path_factory.mktemp("spool"), topics)
        assert [f for path in paths for f in Examination(path, last=False).findings()] == []
    rows = [row for path in paths for row in footer_topics(path)]
    counted = Counter[bytes]()
    for name, count, *_ in rows:
        counted[name] += count
    assert counted.total() == len(topics)
    assert all(counted[name] <= topics.count(name) for name in counted if name != UNLISTED)
    assert all(len(name) <= MAX_TOPIC_BYTES for name in counted)
    assert min(first for *_, first, _ in rows) == 0
    assert max(last for *_, last in rows) == len(topics) - 1
    for path in paths:
        assert sum(TOPIC_BYTES + len(name) for name, *_ in footer_topics(path)) <= room


def test_a_topic_that_is_not_listed_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reader skips a segment for a topic that its footer has no room for."""
    monkeypatch.setattr(contents, "topic_room", lambda _: 100)
    spool = SpoolFixture(tmp_path)
    spool.append([encode(b"t%d" % i, b"v" * 100) for i in range(20)])
    spool.fill(40)
    spool.step()
    spool.stop()
    path = list_files(spool.layout)[0]
    assert (b"t19" in [name for name, *_ in footer_topics(path)], footer_topics(path)[-1][0]) == (
        False,
        UNLISTED,
    )
    found = read_file(path, Topics(), Span(topics=frozenset([b"t19"])))
    assert any(b"t19" in batch.topics.names for batch in found if not isinstance(batch, Unreadable))
    fd = os.open(path, os.O_RDONLY)
    footer = read_footer(fd)
    os.close(fd)
    assert footer
    assert has_unlisted(footer)
    (shown,) = overview([path], None)
    assert shown.topics[-1] == (b"(others)", footer.topics[-1][1])
    reader = Reader(SegmentList(spool.layout), Topics())
    reader.allow(1 << 30, 0)
    reader.seek(0)
    assert not reader.pass_over({name for name, *_ in footer.topics if name != UNLISTED})
    reader.close()


def test_distinct_topics_do_not_grow_a_segment(tmp_path: Path) -> None:
    """A footer takes a bounded part of its segment, for any number of topics."""
    spool = SpoolFixture(tmp_path, segment_bytes=1 << 20, max_bytes=64 << 20)
    spool.step()
    for start in range(0, 15_000, 500):
        spool.append([encode(b"%d" % at, b"") for at in range(start, start + 500)])
    spool.step()
    spool.stop()
    path = list_files(spool.layout)[0]
    topics = footer_topics(path)
    taken = sum(TOPIC_BYTES + len(name) for name, *_ in topics)
    assert path.stat().st_size // 36 < taken <= path.stat().st_size // 32
    assert sum(count for _, count, *_ in topics) == 15_000
