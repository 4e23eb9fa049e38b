"""Topics that clients of the Kafka input want are noted with each answer of Kafka that says something new."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from dispatch.client import Cluster
from router.cluster.wanted_topics import WantedTopics
from spool.layout import Layout
from spool.shared.topics import MOST_WANTED, read_partitions, write_partitions


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """The layout of a spool with a folder for its marks."""
    found = Layout(tmp_path)
    found.delivery.mkdir()
    return found


def answer(topics: Mapping[bytes, int], errors: Mapping[bytes, int] | None = None) -> Cluster:
    """Kafka's answer: by topic, how many partitions it has, or an error."""
    leaders = {name: np.ones(count, np.int32) for name, count in topics.items()}
    return Cluster({1: "kafka:9092"}, leaders, errors or {})


def test_noted(layout: Layout) -> None:
    """Partitions and errors of wanted topics are noted, and of no other."""
    wanted = WantedTopics(layout)
    wanted.add([b"orders", b"none"])
    wanted.note(answer({b"orders": 3, b"other": 7}, {b"none": 3, b"else": 3}))
    assert read_partitions(layout) == {b"orders": 3, b"none": -3}


def test_nothing_wanted(layout: Layout) -> None:
    """Without wanted topics no note is written."""
    WantedTopics(layout).note(answer({b"orders": 3}, {b"none": 3}))
    assert not layout.topics.exists()


def test_wanted_later(layout: Layout) -> None:
    """A topic is noted with the first answer after it was wanted, and stays wanted."""
    wanted = WantedTopics(layout)
    wanted.note(answer({b"orders": 3}))
    wanted.add([b"orders"])
    assert not layout.topics.exists()
    wanted.note(answer({b"orders": 3}))
    wanted.add([b"payments"])
    wanted.note(answer({b"orders": 4, b"payments": 1}))
    assert read_partitions(layout) == {b"orders": 4, b"payments": 1}


def test_an_answer_without_it(layout: Layout) -> None:
    """A topic that an answer does not name keeps its partitions."""
    wanted = WantedTopics(layout)
    wanted.add([b"orders", b"payments"])
    wanted.note(answer({b"orders": 3, b"payments": 1}))
    wanted.note(answer({}))
    wanted.note(answer({b"payments": 2}))
    assert read_partitions(layout) == {b"orders": 3, b"payments": 2}


def test_an_error_replaces_partitions(layout: Layout) -> None:
    """A topic that Kafka does not have any more has its error, until Kafka has it again."""
    wanted = WantedTopics(layout)
    wanted.add([b"orders"])
    wanted.note(answer({b"orders": 3}))
    wanted.note(answer({}, {b"orders": 3}))
    assert read_partitions(layout) == {b"orders": -3}
    wanted.note(answer({b"orders": 5}))
    assert read_partitions(layout) == {b"orders": 5}


def test_restart(layout: Layout) -> None:
    """A new process goes on with the topics that were noted before, wanted as they were."""
    write_partitions(layout, {b"orders": 3, b"none": -3})
    wanted = WantedTopics(layout)
    wanted.note(answer({}))
    assert read_partitions(layout) == {b"orders": 3, b"none": -3}
    wanted.note(answer({b"none": 1}))
    assert read_partitions(layout) == {b"orders": 3, b"none": 1}


def test_nothing_new(layout: Layout) -> None:
    """An answer that says nothing new is not written."""
    wanted = WantedTopics(layout)
    wanted.add([b"orders"])
    wanted.note(answer({b"orders": 3}))
    layout.topics.unlink()
    wanted.note(answer({b"orders": 3, b"other": 1}))
    assert not layout.topics.exists()
    wanted.note(answer({b"orders": 4}))
    assert read_partitions(layout) == {b"orders": 4}


@pytest.mark.parametrize("data", [b"", b"[]", b'{"a": "x"}', b'{"a": 1', b"\xff"])
def test_damaged(layout: Layout, data: bytes) -> None:
    """A damaged note is none, and is replaced."""
    layout.topics.write_bytes(data)
    wanted = WantedTopics(layout)
    wanted.add([b"orders"])
    wanted.note(answer({b"orders": 3}))
    assert read_partitions(layout) == {b"orders": 3}


def test_a_name_that_is_no_text(layout: Layout) -> None:
    """A note with a name that cannot be a topic's is damaged, too."""
    layout.topics.write_bytes(b'{"\\ud800": 1}')
    WantedTopics(layout)


def test_cannot_be_written(layout: Layout, caplog: pytest.LogCaptureFixture) -> None:
    """A write that fails is logged, and tried again with the next answer."""
    wanted = WantedTopics(layout)
    wanted.add([b"orders"])
    layout.delivery.rmdir()
    with caplog.at_level(logging.WARNING, "bruce.router"):
        wanted.note(answer({b"orders": 3}))
    assert "partitions cannot be noted" in caplog.text
    layout.delivery.mkdir()
    wanted.note(answer({b"orders": 3}))
    assert read_partitions(layout) == {b"orders": 3}


def test_bounded(layout: Layout) -> None:
    """Of too many names those that were not wanted lately are forgotten."""
    wanted, names = WantedTopics(layout), [b"t%d" % number for number in range(2 * MOST_WANTED)]
    wanted.add(names)
    wanted.note(answer(dict.fromkeys(names, 1)))
    assert len(read_partitions(layout)) == MOST_WANTED
    wanted.add([b"new", names[5]])
    wanted.note(answer({b"new": 2}))
    assert read_partitions(layout) == {b"new": 2, b"t5": 1}


def test_bounded_bytes(layout: Layout) -> None:
    """As many names as are noted, of the greatest length, are read; no error takes the place of a topic."""
    wanted, names = WantedTopics(layout), [b"%0249d" % number for number in range(2 * MOST_WANTED)]
    wanted.add(names[:MOST_WANTED])
    wanted.add(names[MOST_WANTED:])
    wanted.note(answer(dict.fromkeys(names[:MOST_WANTED], 1), dict.fromkeys(names[MOST_WANTED:], 3)))
    assert read_partitions(layout) == dict.fromkeys(names[:MOST_WANTED], 1)
