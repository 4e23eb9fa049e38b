"""The end of a segment: with its own footer, and with another's."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from spool.format import packed
from spool.format.batch import Topics
from spool.format.scan import read_header
from spool.format.wire import encode
from spool.index.log_end import LiveSegment, end_of, read_footer
from spool.index.segment_list import SegmentList
from spool.read.reader import Reader
from tests.spool.fixture import SpoolFixture
from tests.spool.reads import count_reads


def footer_of(path: Path) -> bytes:
    """The bytes of the footer at the end of a segment file."""
    with path.open("rb", buffering=0) as file:
        found = packed.footer_of(file.fileno())
    assert found
    return found


def give_footer(path: Path, footer: bytes) -> None:
    """Put a footer in the place of a segment's own."""
    os.truncate(path, path.stat().st_size - len(footer_of(path)))
    with path.open("ab") as file:
        file.write(footer)


def fill_alike(spool: SpoolFixture, segments: int) -> list[bytes]:
    """Segments of the same length, a topic in each; the datagrams."""
    sent = list[bytes]()
    while len(spool.layout.list_segments()) < segments:
        topic = b"even" if spool.writer.number % 2 else b"odds"
        burst = [encode(topic, b"%06d" % (len(sent) + i) + b"v" * 300) for i in range(3)]
        if spool.writer.capacity - int(spool.writer.tail[0]) < 4096:
            spool.writer.switch()
            continue
        spool.append(burst)
        sent += burst
        spool.step()
    return sent


def paths(spool: SpoolFixture) -> list[Path]:
    """Of the segments, in order."""
    return [spool.layout.segment(*pair) for pair in spool.layout.list_segments()]


def test_the_footer_of_an_earlier_segment_gives_no_number_out_twice(spool: SpoolFixture) -> None:
    """Both have one length, so its offset fits, but it has another key: the frames give the end."""
    sent = fill_alike(spool, 4)
    spool.stop()
    *_, before, last = paths(spool)
    assert before.stat().st_size != last.stat().st_size
    last.unlink()
    earlier, last = paths(spool)[-2:]
    assert earlier.stat().st_size == last.stat().st_size
    kept = int(end_of(LiveSegment(last, read_header(last))).tail[1])
    give_footer(last, footer_of(earlier))
    with last.open("rb", buffering=0) as file:
        assert read_footer(file.fileno()) is None
    end = end_of(LiveSegment(last, read_header(last)))
    assert int(end.tail[1]) == kept
    assert kept < len(sent)


def test_a_footer_that_knows_of_more_than_is_left_is_believed(spool: SpoolFixture) -> None:
    """Inserted bytes hide frames: their numbers are not used again."""
    sent = spool.fill(8)
    spool.stop()
    (path,) = paths(spool)
    data = path.read_bytes()
    path.write_bytes(data[:1000] + b"thirteen byte" + data[1000:])
    end = end_of(LiveSegment(path, read_header(path)))
    assert (int(end.tail[1]), end.appendable, end.damaged) == (len(sent), False, True)


def test_no_topic_is_passed_over_by_the_footer_of_another(spool: SpoolFixture) -> None:
    """A reader that skips segments by topic reads one whose footer does not lead to the next."""
    fill_alike(spool, 5)
    spool.stop()
    first, second = paths(spool)[:2]
    assert first.stat().st_size == second.stat().st_size
    own, topics = footer_of(first), {b"even", b"odds"}
    (held,) = (name for name in topics if name in own)
    (other,) = topics - {held}
    give_footer(first, footer_of(second))
    reader = Reader(SegmentList(spool.layout), Topics())
    reader.allow(1 << 30, 0)
    reader.seek(0)
    assert not reader.pass_over([other])
    give_footer(first, own)
    assert not reader.pass_over([other])
    assert reader.pass_over([held])
    reader.close()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Bytes read of each file while frames are looked for, by its name."""
    return count_reads(monkeypatch)


@pytest.mark.parametrize("boot", [1, 2], ids=["same boot", "next boot"])
def test_a_start_reads_frames_of_the_last_segment_only(
    spool: SpoolFixture, read: Counter[str], boot: int
) -> None:
    """With any number of segments: of the sealed ones it reads headers and footers."""
    while len(spool.layout.list_segments()) < 12:
        spool.fill(4)
        spool.step()
    # As each second: a start counts the senders of all that came since.
    spool.keeper._save_senders()
    spool.crash()
    names = [path.name for path in paths(spool)]
    read.clear()
    spool.boot = boot
    spool.open()
    assert set(read) & set(names) == {names[-1]}
