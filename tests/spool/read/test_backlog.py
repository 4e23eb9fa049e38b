"""The backlog: how much of which topic, and since when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from spool.format.batch import Batch
from spool.format.packed import pack
from spool.format.segment_format import MAX_TOPICS
from spool.format.topic_table import OTHERS, Names
from spool.format.wire import encode
from spool.index.segment_list import SegmentList
from spool.layout import SPARE
from spool.marks.discarded import Changes
from spool.marks.marks import Marks
from spool.native.digest import CHUNK_BYTES
from spool.read import backlog
from spool.read.backlog import Arrivals, Backlog, Oldest, Waiting
from spool.read.reader import Reader
from tests.spool.fixture import SpoolFixture

START = 1_800_000_000 * 10**9
TOPICS = (b"a", b"a", b"b", b"c")
"""The topics of a frame's messages, in order."""


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[SpoolFixture]:
    """Six segments or so, a frame of four messages each ns; the last one is not sealed."""
    made = SpoolFixture(tmp_path)
    for number in range(150):
        made.append([encode(t, b"v" * 40) for t in TOPICS], received_ns=START + number)
        made.step()
    made.crash()
    yield made
    made.crash()


@pytest.mark.parametrize(
    ("frames", "sealed", "far"), [(2, False, False), (60, False, True), (60, True, False)]
)
def test_loops_are_loaded_before_a_long_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frames: int, *, sealed: bool, far: bool
) -> None:
    """If an open segment needs a long walk: others would deliver in the middle of the look."""
    made = SpoolFixture(tmp_path, segment_bytes=1 << 20, max_bytes=16 << 20)
    for _ in range(frames):
        made.append([encode(b"t", b"v" * 1000)] * 10)
    made.step()
    if sealed:
        made.stop()
    made.crash()
    called = []
    monkeypatch.setattr(backlog, "compile_at_once", lambda: called.append(True))
    Backlog(made.layout).close()
    assert bool(called) is far


def mark(spool: SpoolFixture, resolved: list[int], low_watermark: int = 0) -> None:
    """Mark these sequences, and those below the low watermark, as resolved."""
    segment_list = SegmentList(spool.layout)
    changes = Changes(low_watermark)
    for sequence in resolved:
        info = segment_list.segments[segment_list.at(sequence)]
        bits = changes.chunks.setdefault((info.number, 0), np.zeros(CHUNK_BYTES, np.uint8))
        at = sequence - info.first_sequence
        bits[at >> 3] |= 1 << (at & 7)
    marks = Marks(spool.layout.delivery, segment_list)
    marks.commit(changes)
    marks.close()


def look(spool: SpoolFixture) -> Waiting:
    """One look."""
    looker = Backlog(spool.layout)
    try:
        return looker.look()
    finally:
        looker.close()


def stored(spool: SpoolFixture) -> Counter[int]:
    """Messages by their segment's first sequence."""
    segments = SegmentList(spool.layout).segments
    ends = [*(info.stored for info in segments[1:]), 600]
    return Counter({info.first_sequence: end - info.stored for info, end in zip(segments, ends, strict=True)})


def test_topics_with_most_messages_come_first() -> None:
    """In whatever order they were counted; equal ones stay in theirs."""
    counts = [(b"a", 1), (b"b", 3), (b"c", 3), (b"d", 2)]
    assert list(backlog._descending(Counter(dict(counts)))) == [b"b", b"c", b"d", b"a"]
    assert list(backlog._descending(Counter(dict(counts[1:])))) == [b"b", b"c", b"d"]
    assert backlog._descending(Counter()) == {}


def test_nothing_is_delivered(spool: SpoolFixture) -> None:
    """Without marks every message waits, the first one longest."""
    waiting = look(spool)
    assert len(stored(spool)) > 5
    assert waiting.topics == {b"a": 300, b"b": 150, b"c": 150}
    assert (waiting.oldest, waiting.estimated, waiting.marked) == (Oldest(0, START, b"a", 0), False, True)
    assert waiting.end.sequence == 600


def test_the_oldest_of_a_topic(spool: SpoolFixture) -> None:
    """Behind messages that are delivered, across segments; none that came after its topic's time."""
    mark(spool, [*range(2, 300, 4)])
    looker = Backlog(spool.layout)
    try:
        looker.look()
        late = looker.oldest_of({b"b": START + 150, b"c": START + 150, b"a": START + 150})
        assert late == {
            b"a": Oldest(0, START, b"a", 0),
            b"b": Oldest(302, START + 75, b"b", 0),
            b"c": Oldest(3, START, b"c", 0),
        }
        assert looker.oldest_of({b"b": START + 75}) == {}
        assert looker.oldest_of({b"b": START + 76}) == {b"b": late[b"b"]}
        assert looker.oldest_of({}) == {}
    finally:
        looker.close()


def test_an_age_as_kafka_counts_it() -> None:
    """From the message's own timestamp, and from its reception where that says nothing."""
    now = START + 60 * 10**9
    assert Oldest(0, START, b"t", START // 10**6 - 40_000).record_age_s(now) == 100
    assert Oldest(0, START, b"t", 0).record_age_s(now) == now / 1e9
    assert Oldest(0, START, b"t", START // 10**6 + 90_000).record_age_s(now) == -30
    assert Oldest(0, START, b"t", -1).record_age_s(now) == 60


def test_a_floor_and_marks_above_it(spool: SpoolFixture) -> None:
    """Resolved messages do not wait, at any place in the log; topics are exact."""
    last = list(stored(spool))[-1]
    mark(spool, [401, *range(last, last + 4)], 398)
    waiting = look(spool)
    # 398 and 399 are a `b` and a `c`, and 400 begins a frame.
    expected = Counter({b"a": 100 - 1 - 2, b"b": 51 - 1, b"c": 51 - 1})
    assert Counter(waiting.topics) == expected
    assert (waiting.oldest, waiting.estimated) == (Oldest(398, START + 99, b"b", 0), False)


def test_all_is_delivered(spool: SpoolFixture) -> None:
    """Then nothing waits."""
    mark(spool, [], 600)
    assert look(spool)[:3] == ({}, False, None)


def test_a_segment_without_a_name(spool: SpoolFixture) -> None:
    """Unsynced messages wait too, last of all."""
    first, *_, last = stored(spool)
    path = spool.layout.segment(last)
    number = SegmentList(spool.layout).segments[-1].number
    path.rename(spool.layout.segment(number, SPARE))
    waiting = look(spool)
    assert waiting.topics == {b"a": 300, b"b": 150, b"c": 150}
    mark(spool, [], last)
    assert look(spool).oldest == Oldest(last, START + last // 4, b"a", 0)
    assert first == 0


def test_many_partly_delivered(spool: SpoolFixture) -> None:
    """With more of them than a look reads the sum is exact; topics are called estimated, and nearly right."""
    sealed = sum(count for count in list(stored(spool).values())[:-1])
    # Every `a` is delivered, as when `b` and `c` belong to a broker that is away.
    mark(spool, [sequence for sequence in range(600) if sequence % 4 < 2])
    looker = Backlog(spool.layout)
    waiting = looker.look()
    assert waiting.estimated
    assert sum(waiting.topics.values()) == 300
    assert b"a" not in waiting.topics
    assert abs(waiting.topics[b"b"] - 150) <= len(stored(spool))
    assert sealed < 600
    # Each look reads some more of them.
    for _ in range(len(stored(spool))):
        waiting = looker.look()
    assert (waiting.estimated, waiting.topics) == (False, {b"b": 150, b"c": 150})
    looker.close()


def test_untouched_segments_are_not_read(spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of segments without delivered messages only the footers are read."""
    mark(spool, [], 1)
    read: list[int] = []

    def note(_: object, batch: Batch, rows: object = None) -> None:
        read.append(int(batch.sequence[0]))

    monkeypatch.setattr(backlog.Sums, "add", note)
    looker = Backlog(spool.layout)
    looker.look()
    looker.close()
    # The first is delivered in part, the last has no footer yet.
    assert {1, list(stored(spool))[-1]} == set(read)


def test_packed_segments(spool: SpoolFixture) -> None:
    """A packed segment gives the same figures."""
    second = list(stored(spool))[1]
    path = spool.layout.segment(second)
    packed = path.with_name("packed")
    with path.open("rb") as source, packed.open("w+b") as target:
        pack(source.fileno(), target.fileno())
    packed.rename(path)
    mark(spool, [second + 1], second)
    waiting = look(spool)
    below = Counter(TOPICS[sequence % 4] for sequence in [*range(second), second + 1])
    assert Counter(waiting.topics) + below == {b"a": 300, b"b": 150, b"c": 150}
    assert waiting.oldest == Oldest(second, START + second // 4, b"a", 0)


def test_marks_that_cannot_be_read(spool: SpoolFixture) -> None:
    """Then everything counts as waiting, with the reason."""
    mark(spool, [], 300)
    (spool.layout.delivery / "data.mdb").write_bytes(b"rot" * 3000)
    waiting = look(spool)
    assert (sum(waiting.topics.values()), waiting.marked) == (600, False)


def test_a_spool_that_may_not_be_read(spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled loops, which take half a second to load, are not loaded for it."""
    called = []

    def refuse(_layout: object) -> None:
        raise PermissionError

    monkeypatch.setattr(backlog, "compile_at_once", lambda: called.append(True))
    monkeypatch.setattr(backlog, "live_segment", refuse)
    looker = Backlog(spool.layout)
    with pytest.raises(PermissionError):
        looker.look()
    looker.close()
    assert not called


def test_nothing_is_written(spool: SpoolFixture) -> None:
    """A look leaves every file unchanged."""
    mark(spool, [5], 3)

    def state() -> dict[Path, tuple[int, bytes]]:
        files = [path for path in spool.layout.directory.rglob("*") if path.is_file()]
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = state()
    look(spool)
    assert state() == before


def test_arrivals(tmp_path: Path) -> None:
    """Messages after the first call are counted once, by topic, from one segment into the next."""
    spool = SpoolFixture(tmp_path)
    spool.append([encode(b"before", b"v")])
    spool.step()
    looker, arrivals = Backlog(spool.layout), Arrivals(spool.layout)
    assert arrivals.count(looker.look().end) == {}
    for _ in range(60):
        spool.append([encode(t, b"v" * 40) for t in TOPICS])
        spool.step()
    assert len(SegmentList(spool.layout).segments) > 2
    assert arrivals.count(looker.look().end) == {b"a": 120, b"b": 60, b"c": 60}
    assert arrivals.count(looker.look().end) == {}
    looker.close()
    arrivals.close()
    spool.crash()


def test_arrivals_of_whole_segments(tmp_path: Path) -> None:
    """After a long time without a look, sealed segments count by their footers, and are not read."""
    spool = SpoolFixture(tmp_path)
    spool.append([encode(b"before", b"v")])
    spool.step()
    looker, arrivals = Backlog(spool.layout), Arrivals(spool.layout)
    assert arrivals.count(looker.look().end) == {}
    for _ in range(200):
        spool.append([encode(t, b"v" * 40) for t in TOPICS])
        spool.step()
    end, segments = looker.look().end, len(SegmentList(spool.layout).segments)
    assert segments > 6
    with mock.patch.object(Reader, "next", autospec=True, side_effect=Reader.next) as read:
        assert arrivals.count(end) == {b"a": 400, b"b": 200, b"c": 200}
    assert read.call_count < segments
    looker.close()
    arrivals.close()
    spool.crash()


def test_many_names_are_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names beyond the bound are summed, no message is missing, and a look makes names once."""
    made = SpoolFixture(tmp_path, segment_bytes=1 << 20, max_bytes=16 << 20)
    for burst in range(100):
        made.append([encode(b"topic-%d" % (200 * burst + n), b"v") for n in range(200)])
    made.step()
    made.append([encode(b"topic-3", b"v")] * 7)
    made.crash()
    listed, of = list[int](), Names.of

    def counted(names: Names, numbers: npt.NDArray[np.int64]) -> list[bytes]:
        listed.append(len(numbers))
        return of(names, numbers)

    monkeypatch.setattr(Names, "of", counted)
    waiting = look(made)
    assert sum(waiting.topics.values()) == 100 * 200 + 7
    assert waiting.topics[OTHERS] == 100 * 200 - MAX_TOPICS
    assert waiting.topics[b"topic-3"] == 8
    assert listed == [MAX_TOPICS + 1]
