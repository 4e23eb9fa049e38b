"""Beside a live keeper, a look reads little, and gets the same figures as a walk over all frames."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from spool.format import scan
from spool.format.batch import Topics
from spool.format.frame import POSITION, SEQUENCE, tail_at_start
from spool.format.head_scan import Astray, entrance_of, runs
from spool.format.scan import NOWHERE, Scan, read_header
from spool.format.segment_format import HEAD_BYTES
from spool.format.wire import encode
from spool.index.committed import read_committed
from spool.index.log_end import committed_end, committed_up_to, end_of, live_segment
from spool.index.segment_list import SegmentList
from spool.layout import SPARE
from spool.log import intake_totals
from spool.log.intake_totals import Sender, read_senders
from spool.marks.discarded import CHUNK_BYTES, Changes
from spool.marks.marks import Marks
from spool.read import backlog
from spool.read.backlog import Backlog, Waiting
from spool.read.files import Located, Span, Unreadable, locate, read_file
from spool.read.overview import take_totals
from tests.spool.fixture import SpoolFixture
from tests.spool.holder import held

TOPICS = (b"a", b"bb", b"a", b"a long name of a topic", b"cc")
FRAMES = 600


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[SpoolFixture]:
    """A segment in use with 600 KiB of frames, some of them keyed; its keeper is gone."""
    made = SpoolFixture(tmp_path, segment_bytes=1 << 20, max_bytes=16 << 20)
    for number in range(FRAMES):
        key = number if number % 3 == 0 else None
        messages = [encode(name, b"v" * 150, partition_key=key) for name in TOPICS]
        made.append(messages, sender=(1000 + number % 2, 1), received_ns=10**18 + number)
        if number % 50 == 0:
            made.step()
    made.step()
    made.crash()
    yield made
    made.crash()


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Act as a command that has not loaded the compiled loops; returns the counts made without them."""
    found: list[object] = []
    count = backlog.topics_of

    def counted(*arguments: object) -> object:
        found.append(count(*arguments))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(backlog, "topics_of", counted)
    for module in (backlog, intake_totals):
        monkeypatch.setattr(module, "interprets", lambda: True)
    return found


def look(spool: SpoolFixture) -> tuple[Waiting, list[Sender]]:
    """The backlog, and its senders."""
    looker = Backlog(spool.layout)
    try:
        return looker.look(), read_senders(spool.layout)
    finally:
        looker.close()


def mark(spool: SpoolFixture, resolved: list[int], low_watermark: int) -> None:
    """Mark these sequences of the segment in use, and those below the watermark, as resolved."""
    bits = np.zeros(CHUNK_BYTES, np.uint8)
    for sequence in resolved:
        bits[sequence >> 3] |= 1 << (sequence & 7)
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    marks.commit(Changes(low_watermark, {(1, 0): bits}))
    marks.close()


def read_by_us() -> int:
    """Bytes that this process has read so far."""
    with open("/proc/self/io", encoding="ascii") as file:
        return int(file.readline().split()[1])


@pytest.mark.parametrize("low_watermark", [0, 3, 1000, 5 * FRAMES - 1, 5 * FRAMES])
@pytest.mark.parametrize("resolved", [[], [1, 7, 8, 2900, 2901]], ids=["no-marks", "marks"])
def test_the_figures_are_those_of_a_walk(
    spool: SpoolFixture, interpreted: list[object], low_watermark: int, resolved: list[int]
) -> None:
    """By topic and sender, the oldest, the end: the same with and without the keeper, for any marks."""
    mark(spool, [one for one in resolved if one >= low_watermark], low_watermark)
    totals = take_totals(spool.layout, list)
    walked = look(spool)
    assert not interpreted
    with held(spool.layout):
        assert look(spool) == walked
        held_totals = take_totals(spool.layout, list)
    assert bool(interpreted) is (low_watermark < 5 * FRAMES)
    assert (held_totals.tail == totals.tail).all()
    assert walked[0].end.sequence == 5 * FRAMES


def test_what_is_written_behind_the_committed_end_counts(
    spool: SpoolFixture, interpreted: list[object]
) -> None:
    """Frames that the keeper has yet to commit are verified, and counted, by the look."""
    spool.open()
    spool.append([encode(b"new", b"v")] * 4, sender=(7, 1))
    spool.crash()
    walked = look(spool)
    with held(spool.layout):
        seen = look(spool)
    assert seen == walked
    assert seen[0].topics[b"new"] == 4
    assert next(one.stored for one in seen[1] if one.uid == 7) == 4
    assert interpreted


def test_a_segment_without_a_name_counts(spool: SpoolFixture, interpreted: list[object]) -> None:
    """The segment in use before its first sync is behind all committed ones."""
    spool.layout.segment(0).rename(spool.layout.segment(1, SPARE))
    walked = look(spool)
    with held(spool.layout):
        assert look(spool) == walked
    assert interpreted
    assert walked[0].oldest is not None


def test_the_loops_are_loaded_between_two_looks(
    spool: SpoolFixture, interpreted: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second look of the same reader counts the messages written after the first."""
    looker = Backlog(spool.layout)
    with held(spool.layout):
        looker.look()
    assert interpreted
    monkeypatch.setattr(backlog, "interprets", lambda: False)
    spool.open()
    spool.append([encode(b"new", b"v")] * 4, sender=(7, 1))
    assert looker.look().topics[b"new"] == 4
    looker.close()


def test_little_of_the_segment_is_read(spool: SpoolFixture) -> None:
    """The totals take the end from the index: they read less than a tenth of the bytes of a walk."""
    begun = read_by_us()
    take_totals(spool.layout, list)
    walked = read_by_us() - begun
    with held(spool.layout):
        begun = read_by_us()
        take_totals(spool.layout, list)
        looked = read_by_us() - begun
    # Behind the end a scan reads one chunk more.
    assert looked - scan.FIRST_BYTES < (walked - scan.FIRST_BYTES) / 10


def test_without_a_keeper_nothing_is_committed(spool: SpoolFixture) -> None:
    """A dead daemon's segment is walked: messages that its disk has lost since are not called stored."""
    live = live_segment(spool.layout)
    assert live is not None
    committed = read_committed(spool.layout.index)
    assert committed is not None
    cut = int(committed[1][POSITION]) // 2 & ~7
    with live.path.open("r+b") as file:
        file.truncate(cut)
        file.truncate(1 << 20)
    assert committed_end(spool.layout) is None
    assert committed_up_to(live.path, live.header) == NOWHERE
    tail = take_totals(spool.layout, list).tail
    assert 0 < tail[SEQUENCE] < committed[1][SEQUENCE]


def test_a_reader_stops_at_the_end_of_the_log(spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros behind the committed end are not searched for frames, which would read the rest of the file."""

    def searched(*_: object) -> int:
        raise AssertionError

    path = spool.layout.segment(0)
    monkeypatch.setattr(scan, "find_frame", searched)
    with held(spool.layout):
        batches = list(read_file(path, Topics(), Span()))
        found = sum(len(batch) for batch in batches if not isinstance(batch, Unreadable))
    assert found == 5 * FRAMES
    with pytest.raises(AssertionError):
        list(read_file(path, Topics(), Span()))


def test_zeros_before_the_end_are_damage_all_the_same(spool: SpoolFixture) -> None:
    """Committed messages that are gone are reported beside a live keeper, too."""
    path = spool.layout.segment(0)
    with path.open("r+b") as file:
        file.seek(100 << 10)
        file.write(bytes(8 << 10))
    with held(spool.layout):
        found = [one for one in read_file(path, Topics(), Span()) if isinstance(one, Unreadable)]
    assert len(found) == 1
    assert found[0].messages > 0


def test_a_frame_that_is_being_stored_is_waited_for(
    spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its digest comes last; a look that meets it earlier does not search the file for another frame."""
    path = spool.layout.segment(0)
    committed = read_committed(spool.layout.index)
    assert committed is not None
    spool.open()
    spool.append([encode(b"t", b"v")] * 3)
    spool.crash()
    at = int(committed[1][POSITION])
    with path.open("r+b") as file:
        digest = os.pread(file.fileno(), 8, at)
        os.pwrite(file.fileno(), b"\1" * 8, at)
        clock = SimpleNamespace(sleep=lambda _: os.pwrite(file.fileno(), digest, at))
        monkeypatch.setattr(scan, "time", clock)
        live = live_segment(spool.layout)
        assert live is not None
        end = end_of(live, known=committed)
    assert end.appendable
    assert end.tail[SEQUENCE] == 5 * FRAMES + 3


def test_it_is_waited_for_in_vain_where_it_is_damage(
    spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never finished: after a bounded time, the bytes behind it are searched."""
    path = spool.layout.segment(0)
    waits: list[float] = []
    monkeypatch.setattr(scan, "time", SimpleNamespace(sleep=waits.append))
    with path.open("rb") as file:
        one = Scan(file.fileno(), tail_at_start(read_header(path)))
        one.committed, one.stopped = 0, scan.BAD
        one.tail[SEQUENCE] += 1
        assert not one.is_being_stored()
    assert 1 < len(waits) < 100


def test_going_from_head_to_head_knows_when_it_is_astray(spool: SpoolFixture) -> None:
    """A frame that names another one before it, or none at all, is not skipped silently."""
    path = spool.layout.segment(0)
    header = read_header(path)
    with path.open("r+b") as file:
        entrance = entrance_of(header)
        assert sum(len(heads) for _, heads in runs(file.fileno(), entrance, FRAMES)) == FRAMES
        with pytest.raises(Astray):
            list(runs(file.fileno(), entrance, FRAMES + 1))
        with pytest.raises(Astray):
            list(runs(file.fileno(), entrance._replace(previous=1), FRAMES))
        with pytest.raises(Astray):
            list(runs(file.fileno(), entrance._replace(offset=entrance.offset + HEAD_BYTES), FRAMES))


@pytest.mark.parametrize("sequence", [0, 1, 1500, 5 * FRAMES - 1])
def test_a_message_is_found_where_it_is(spool: SpoolFixture, sequence: int) -> None:
    """The place is the same with a keeper and without."""
    paths = [spool.layout.segment(0)]
    walked = locate(paths, sequence)
    with held(spool.layout):
        found = locate(paths, sequence)
    assert isinstance(walked, Located)
    assert isinstance(found, Located)
    assert (found.offset, found.row, found.head) == (walked.offset, walked.row, walked.head)
