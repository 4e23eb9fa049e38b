"""Messages that the disk does not give wait alone: all others go; none is lost, freed or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from router.unreadable import UnreadableRanges
from spool.format.wire import Reason
from spool.index.segment_list import RETRY_S
from spool.layout import SEGMENT
from spool.shared.state import Field
from tests.router.bench import Bench
from tests.spool.unreadable import unreadable

COUNT = 300


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Headers are asked for again at each look; when gaps are is for the bench's clock to say."""
    made = Bench(retry_s=0.0)
    made.kafka.leaders = {b"a": [1, 2, 3], b"b": [1, 2]}
    yield made
    made.close()


def fill(bench: Bench) -> list[int]:
    """Several segments with messages of three keys; their sequences."""
    sent = []
    for number in range(COUNT // 3):
        sent += bench.send([(b"a", key, b"%d" % number + b" " * 60) for key in range(3)])
    for _ in range(8):
        bench.spool.step()
    assert len(bench.spool.layout.list_segments()) >= 4
    return sent


def segment(bench: Bench, at: int) -> tuple[Path, int, int]:
    """(path, first sequence, that of the next) of a segment, by its place in the log."""
    named = bench.spool.layout.list_segments()
    return bench.spool.layout.segment(*named[at]), named[at][0], named[at + 1][0]


def run_until(bench: Bench, delivered: int) -> None:
    """Let it run until Kafka has this many, and all outcomes are written down."""
    for _ in range(3000):
        bench.step()
        bench.answer()
        bench.clock.now += 0.1
        if len(bench.appended()) >= delivered and not bench.router.in_flight():
            break
    assert len(bench.appended()) == delivered
    bench.router.commit()


@pytest.mark.parametrize("first_byte", [0, 3000], ids=["header", "body"])
def test_passed_by_and_delivered_when_it_heals(bench: Bench, first_byte: int) -> None:
    """Everything else is in Kafka; the low watermark waits before the gap, and moves on with it."""
    sent = fill(bench)
    path, first, behind = segment(bench, 1)
    with unreadable(path, first_byte):
        run_until(bench, len(sent) - missing(bench, path, first_byte))
        gap = sorted(set(sent) - set(bench.appended()))
        assert gap == list(range(gap[0], behind))
        assert gap[0] >= first
        assert bench.acks.low_watermark == gap[0]
        assert bench.outcomes().resolved == len(sent) - len(gap)
        said = bench.router.unread()
        assert f"{len(gap)} messages of {path.name} (Input/output error)" in said
        assert "tried again every 10 s" in said
        bench.spool.step()
        assert path.suffix == SEGMENT
        assert path.exists()
        assert bench.discarded() == {}
    bench.settle()
    assert bench.router.unread() == ""
    assert bench.appended() == sent
    bench.check_complete()
    bench.spool.step()
    assert not path.exists()


def missing(bench: Bench, path: Path, first_byte: int) -> int:
    """How many messages of a segment have a frame that ends behind a byte."""
    segments = {s.header["first_sequence"]: s for s in bench.spool.segments()}
    one = segments[int(path.stem)]
    frames = one.frames
    ends = [frame.offset for frame in frames[1:]] + [one.end]
    return sum(len(f.datagrams) for f, end in zip(frames, ends, strict=True) if end > first_byte)


@pytest.mark.parametrize("first_byte", [0, 3000], ids=["header", "body"])
def test_a_deliverer_that_begins_with_it(bench: Bench, first_byte: int) -> None:
    """Killed at any moment, it comes by the gap again, and sends nothing that was marked a second time."""
    sent = fill(bench)
    path, *_ = segment(bench, 1)
    with unreadable(path, first_byte):
        lost = missing(bench, path, first_byte)
        for _ in range(3):
            run_until(bench, len(sent) - lost)
            bench.restart()
    bench.settle()
    assert bench.appended() == sent
    bench.check_complete()


def test_what_was_delivered_of_it_before_is_not_sent_again(bench: Bench) -> None:
    """Half of the segment is marked when its header goes: the marks are believed until it is back."""
    sent = fill(bench)
    path, first, behind = segment(bench, 1)
    middle = (first + behind) // 2
    while len(bench.appended()) < middle:
        bench.step()
        bench.answer(1)
    bench.step()
    bench.router.commit()
    bench.crash()
    with unreadable(path, 0, 64):
        bench.open()
        assert middle <= bench.acks.low_watermark < behind
        marked = bench.acks.low_watermark
        for _ in range(2):
            while set(bench.appended()) < {*range(marked), *range(behind, sent[-1] + 1)}:
                bench.step()
                bench.answer()
            bench.router.commit()
            bench.restart()
            assert bench.acks.low_watermark == marked
    # The bench itself sees to it that nothing is sent again which was marked when its deliverer began.
    bench.settle()
    assert sorted(set(bench.appended())) == sent
    bench.check_complete()


def test_tried_again_every_ten_seconds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried no more often: a dying disk may take seconds for each answer."""
    sent = fill(bench)
    path, *_ = segment(bench, 1)
    looks: list[float] = []
    read = UnreadableRanges._read
    monkeypatch.setattr(
        UnreadableRanges, "_read", lambda self, gap: looks.append(bench.clock.now) or read(self, gap)
    )
    with unreadable(path):
        run_until(bench, len(sent) - missing(bench, path, 0))
        looks.clear()
        for _ in range(600):
            bench.step()
            bench.clock.now += 0.1
    gaps = [later - earlier for earlier, later in pairwise(looks)]
    assert len(looks) >= 5
    assert min(gaps) >= RETRY_S


def test_the_oldest_are_given_up(bench: Bench) -> None:
    """In a spool without room, unreadable messages go with the rest, and are counted."""
    from router.outcomes.outcome_table import Eviction
    from spool.read.reader import Reader

    sent = fill(bench)
    path, first, behind = segment(bench, 0)
    bench.router.close()
    reader = Reader(bench.readers[0].segment_list, bench.topics)
    eviction = Eviction(reader, lambda: bench.spool.shared.place(Field.SYNCED), lambda: behind)
    with unreadable(path, 3000):
        for _ in range(100):
            if not eviction.step(bench.acks, bench.pool, bench.router.read_position):
                break
    bench.router.commit()
    assert bench.acks.low_watermark == behind
    assert bench.discarded() == dict.fromkeys(range(first, behind), int(Reason.EVICTED))
    assert sent[-1] >= behind
