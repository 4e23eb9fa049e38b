"""The context of a router: logs and choosers are what it asks for; the log of a spool, and its readers."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline.delivery.task_log import SetPartitions, TaskLog, TaskReader
from router.context import Chooser, Log, LogReader, SpoolLog, TopicReader
from router.partition import Partitioners
from spool.format.batch import Topics
from spool.format.wire import encode
from spool.index.segment_list import SegmentList
from spool.read.reader import Reader
from spool.shared.state import Field
from tests.daemon import ROOT
from tests.spool.fixture import SpoolFixture

COUNT = 8
"""Messages, of topics `a` and `b` in turn."""


@pytest.mark.parametrize(
    ("protocol", "kind"),
    [
        (LogReader, Reader),
        (LogReader, TopicReader),
        (LogReader, TaskReader),
        (Log, SpoolLog),
        (Log, TaskLog),
        (Chooser, Partitioners),
        (Chooser, SetPartitions),
    ],
    ids=lambda one: one.__name__,
)
def test_each_has_what_the_router_asks_for(protocol: type, kind: type) -> None:
    """All methods of the protocol, with arguments of the same names, on a spool and on Spark alike."""
    asked = {name: one for name, one in vars(protocol).items() if not name.startswith("_")}
    methods = {name: one for name, one in asked.items() if inspect.isfunction(one)}
    assert methods
    for name, method in methods.items():
        ours = inspect.signature(getattr(kind, name))
        assert list(ours.parameters) == list(inspect.signature(method).parameters), name


class LogFixture:
    """A spool with two topics, its log for a router that delivers `b` only, and the messages left out."""

    def __init__(self, spool: SpoolFixture) -> None:
        self.spool, self.left_out = spool, list[int]()
        self.append(COUNT)
        segment_list = SegmentList(spool.layout)
        self.topics = Topics()
        readers = [TopicReader(segment_list, self.topics, frozenset([b"b"]), self._leave_out) for _ in "12"]
        self.log = SpoolLog(readers[0], readers[1], lambda: spool.shared.place(Field.SYNCED))

    def append(self, count: int) -> None:
        """Messages that say which they are."""
        for number in range(count):
            self.spool.append([encode(b"ab"[number % 2 :][:1], b"%d" % number)])
        self.spool.step()

    def _leave_out(self, sequences: np.ndarray) -> None:
        self.left_out += sequences.tolist()

    def read(self, reader: Reader) -> list[int]:
        """The sequences that it returns, up to what is committed."""
        reader.allow(*self.log.committed())
        found = list[int]()
        while (batch := reader.next()) is not None:
            found += batch.sequence.tolist()
        reader.close()
        return found


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[LogFixture]:
    """A spool with COUNT messages."""
    made = LogFixture(SpoolFixture(tmp_path))
    yield made
    made.spool.crash()


def test_other_topics_are_left_out(fixture: LogFixture) -> None:
    """They are in the batch, since rows are counted there, and the outcome table learns that they stay."""
    assert fixture.read(fixture.log.live) == list(range(COUNT))
    assert fixture.left_out == list(range(0, COUNT, 2))


def test_a_topic_that_is_not_in_the_log_yet(fixture: LogFixture) -> None:
    """One that is to be delivered is known before its first message; those before that are left out."""
    reader = TopicReader(
        fixture.log.live.segment_list, fixture.topics, frozenset([b"new"]), fixture._leave_out
    )
    reader.allow(*fixture.log.committed())
    assert reader.next() is not None
    assert fixture.left_out == list(range(COUNT))
    fixture.spool.append([encode(b"new", b"")])
    fixture.spool.step()
    assert fixture.read(reader) == [COUNT]
    assert fixture.left_out == list(range(COUNT))


def test_a_probe_leaves_nothing_out(fixture: LogFixture) -> None:
    """It looks at unreadable ranges, whatever the router delivers, and moves no reader of the log."""
    probe = fixture.log.probe()
    assert fixture.read(probe) == list(range(COUNT))
    assert probe.topics is fixture.topics
    assert fixture.left_out == []
    assert fixture.log.live.sequence == fixture.log.catch_up.sequence == 0


def test_contents_are_read_beside_the_log(fixture: LogFixture) -> None:
    """Those of a message that is given up, also of one committed since, with no reader of the log moved."""
    contents = fixture.log.contents()
    fixture.append(2)
    for wanted in (3, COUNT + 1):
        found = contents.read(np.array([wanted]), 10)
        assert found.batch is not None
        assert [found.batch.sequence[row] for row in found.rows] == [wanted]
    assert fixture.left_out == []
    assert fixture.log.live.sequence == 0


def test_a_task_on_spark_needs_no_marks() -> None:
    """Executors have no LMDB, and import this."""
    code = "import sys; sys.modules['lmdb'] = None; import router.context"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
