"""Marks: any reader sees the written marks; unreadable marks cost duplicates, nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from unittest import mock

import lmdb
import numpy as np
import numpy.typing as npt
import pytest

from spool.errors import MarksFailed
from spool.format.topic_table import OTHERS
from spool.fsck.finding import Kind
from spool.index import environment as module
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks import discarded as kept
from spool.marks.discarded import Changes, Discard, Sample
from spool.marks.marks import Marks
from spool.marks.outcomes import outcomes_now
from spool.native.digest import CHUNK_BYTES, CHUNK_MESSAGES
from spool.read.overview import take_totals
from spool.read.selection import read_resolved
from spool.shared.ledger import Discards
from tests.spool.fixture import SpoolFixture
from tests.spool.fsck.checked import check
from tests.spool.stored import lost_of

ROOT = Path(__file__).parents[3]


def bitmap(*bits: int) -> npt.NDArray[np.uint8]:
    """A chunk with these bits set."""
    chunk = np.zeros(8 * CHUNK_BYTES, np.uint8)
    chunk[list(bits)] = 1
    return np.packbits(chunk, bitorder="little")


@pytest.fixture
def layout(spool: SpoolFixture) -> Layout:
    """The layout of a spool of several segments."""
    spool.fill(100)
    spool.step()
    return spool.layout


@pytest.fixture
def marks(layout: Layout) -> Iterator[Marks]:
    """The marks of that spool."""
    made = Marks(layout.delivery, SegmentList(layout))
    yield made
    made.close()


def files(directory: Path) -> dict[str, bytes]:
    """All files in a directory."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_commit_is_all_that_is_read(marks: Marks) -> None:
    """Chunks, offsets, discards and low watermark are read back, also after closing."""
    one, two = bitmap(0, 5, 9), bitmap(1)
    discarded = [
        Discard(np.array([20]), 15, b"t", 100),
        Discard(np.array([21]), 15, b"t", 200),
        Discard(np.array([22]), 16, b"u" * 500, 300),
    ]
    marks.commit(Changes(7, {(1, 0): one, (2, 0): two}, {-1: 30, 2: 8}, discarded))
    infos = marks.segment_list.segments
    found = [(info, chunk, bits.tolist()) for info, chunk, bits in marks.chunks()]
    assert found == [(infos[0], 0, one.tolist()), (infos[1], 0, two.tolist())]
    assert marks.offsets() == {-1: 30, 2: 8}
    assert lost_of(marks) == {20: 15, 21: 15, 22: 16}
    assert [(d.topic, d.reason, d.count, d.first_ns, d.last_ns) for d in marks.discards()] == [
        (b"t", 15, 2, 100, 200),
        (b"u" * 400, 16, 1, 300, 300),
    ]
    assert marks.low_watermark() == (7, 7)
    assert marks.outcomes() == (7, 7 + 1 + 1, marks.discards())
    assert marks.resolved() == 9


def test_nothing_is_written_unless_asked(marks: Marks) -> None:
    """Empty marks say that no message is delivered; a commit without offsets leaves the present ones."""
    assert marks.outcomes() == (0, 0, [])
    marks.commit(Changes(offsets={3: 4}))
    marks.commit(Changes(chunks={(1, 0): bitmap(1)}))
    assert marks.offsets() == {3: 4}
    marks.commit(Changes(offsets={}))
    assert marks.offsets() == {}


def test_chunks_below_the_floor_are_dropped(marks: Marks) -> None:
    """The low watermark covers them; the chunk that contains it stays."""
    infos = marks.segment_list.segments
    marks.commit(Changes(chunks={(info.number, 0): bitmap(2) for info in infos}))
    marks.commit(Changes(low_watermark=infos[2].first_sequence + 1))
    assert [info.number for info, _, _ in marks.chunks()] == [i.number for i in infos[2:]]
    marks.commit(Changes(chunks={(3, 1): bitmap(0)}))
    marks.commit(Changes(low_watermark=infos[2].first_sequence + CHUNK_MESSAGES))
    assert (3, 0) not in [(info.number, chunk) for info, chunk, _ in marks.chunks()]


def test_a_segment_that_is_not_there_is_not_marked(marks: Marks) -> None:
    """Its marks are neither written nor believed."""
    marks.commit(Changes(chunks={(99, 0): bitmap(1)}))
    assert list(marks.chunks()) == []


def test_the_floor_stands_in_a_gap(spool: SpoolFixture) -> None:
    """Everything delivered, then an unclean boot: the low watermark is unchanged, the totals too."""
    spool.fill(5)
    spool.step()
    made = Marks(spool.layout.delivery, SegmentList(spool.layout))
    made.commit(Changes(low_watermark=15))
    made.close()
    spool.boot += 1
    spool.reopen()
    spool.fill(5)
    spool.step()
    made = Marks(spool.layout.delivery, SegmentList(spool.layout))
    assert made.outcomes()[:2] == (15, 15)
    made.commit(Changes(low_watermark=1 << 32))
    assert made.outcomes()[:2] == (1 << 32, 15)
    made.close()


@pytest.mark.parametrize("damage", ["garbage", "empty page", "cut short", "pages of zeros"])
def test_a_file_that_cannot_be_read_is_set_aside(
    layout: Layout, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Delivery begins without marks, the evidence is kept, and the log explains the consequence."""
    made = Marks(layout.delivery, SegmentList(layout))
    made.commit(Changes(50, {(n, c): bitmap(3) for n in (1, 2, 3) for c in range(5)}, {-1: 50}))
    made.close()
    path = layout.delivery / "data.mdb"
    data = path.read_bytes()
    path.write_bytes(
        {
            "garbage": b"\xff" * 8192 + data[8192:],
            "empty page": bytes(8192) + data[8192:],
            "cut short": data[:100],
            "pages of zeros": data[:8192] + bytes(len(data) - 8192),
        }[damage]
    )
    broken = path.read_bytes()
    made = Marks(layout.delivery, SegmentList(layout))
    assert made.outcomes() == (0, 0, [])
    made.commit(Changes(low_watermark=4))
    made.close()
    assert (layout.delivery / "data.mdb.damaged").read_bytes() == broken
    assert "sent again" in caplog.text
    made = Marks(layout.delivery, SegmentList(layout))
    assert made.low_watermark()[0] == 4
    made.close()


def test_a_refused_commit_is_one_sentence(marks: Marks) -> None:
    """The commit raises MarksFailed, and nothing of it is written."""
    marks._env.set_mapsize(64 << 10)
    changes = Changes(9, {(1, chunk): bitmap(chunk) for chunk in range(1000)})
    with pytest.raises(MarksFailed, match=r"^the marks cannot be written: [^\n]+$"):
        marks.commit(changes)
    assert marks.outcomes() == (0, 0, [])


def test_looking_changes_nothing(layout: Layout) -> None:
    """On a read-only copy without a lock file, no byte is written and no file made."""
    made = Marks(layout.delivery, SegmentList(layout))
    made.commit(Changes(12, {(1, 0): bitmap(13, 14)}))
    made.close()
    (layout.delivery / "lock.mdb").unlink()
    before = files(layout.delivery)
    os.chmod(layout.delivery, 0o550)
    looker = Marks(layout.delivery, SegmentList(layout), readonly=True)
    assert looker.outcomes()[:2] == (12, 14)
    with pytest.raises(MarksFailed):
        looker.commit(Changes(low_watermark=13))
    looker.close()
    os.chmod(layout.delivery, 0o750)
    assert files(layout.delivery) == before


def test_threads_of_a_process_look_one_after_the_other(layout: Layout) -> None:
    """LMDB refuses a second opening in a process: a thread waits until another has finished its look."""
    made = Marks(layout.delivery, SegmentList(layout))
    made.commit(Changes(12, {(1, 0): bitmap(13, 14)}))
    made.close()
    came = threading.Event()

    def look() -> tuple[int, int]:
        came.set()
        looker = Marks(layout.delivery, SegmentList(layout), readonly=True)
        try:
            return looker.outcomes()[:2]
        finally:
            looker.close()

    first = Marks(layout.delivery, SegmentList(layout), readonly=True)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(look)
        came.wait()
        with pytest.raises(TimeoutError):
            second.result(0.1)
        first.close()
        assert second.result() == (12, 14)


def test_there_may_be_nothing_to_look_at(layout: Layout) -> None:
    """A spool without any delivery yet."""
    shutil.rmtree(layout.delivery)
    with pytest.raises(lmdb.NotFoundError):
        Marks(layout.delivery, SegmentList(layout), readonly=True)
    assert not layout.delivery.exists()


@pytest.mark.crash
@pytest.mark.parametrize("made", ["an empty file", "its first pages", "zeros"])
def test_a_kill_while_they_are_made(spool: SpoolFixture, made: str, caplog: pytest.LogCaptureFixture) -> None:
    """Every reader takes a file that has not begun for no marks, and delivery begins there, in silence."""
    spool.fill(60)
    spool.crash()
    shutil.rmtree(spool.layout.delivery)
    spool.layout.delivery.mkdir()
    file = spool.layout.delivery / "data.mdb"
    file.write_bytes(bytes(8192 if made == "zeros" else 0))
    if made == "its first pages":
        lmdb.open(os.fsencode(spool.layout.delivery)).close()
        assert file.stat().st_size > 0
    before = file.read_bytes()
    assert take_totals(spool.layout, list).backlog == 180
    assert read_resolved(spool.layout) == (0, {})
    assert not [finding for finding in check(spool.layout) if finding.kind is Kind.MARKS]
    assert outcomes_now(spool.layout, np.arange(3)) is None
    with pytest.raises(lmdb.CorruptedError if made == "zeros" else lmdb.NotFoundError):
        Marks(spool.layout.delivery, SegmentList(spool.layout), readonly=True)
    assert file.read_bytes() == before
    Marks(spool.layout.delivery, SegmentList(spool.layout)).close()
    with closing(Marks(spool.layout.delivery, SegmentList(spool.layout), readonly=True)) as marks:
        assert marks.low_watermark() == (0, 0)
    assert {path.name for path in spool.layout.delivery.iterdir()} == {"data.mdb", "lock.mdb"}
    assert [record.message for record in caplog.records if "cannot be read" in record.message] == []


LOOK = """
import sys
from pathlib import Path
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks.marks import Marks
layout = Layout(Path(sys.argv[1]))
marks = Marks(layout.delivery, SegmentList(layout), readonly=True)
before = 0
print("looking", flush=True)
while before < int(sys.argv[2]):
    floor, resolved, discarded = marks.outcomes()
    count = sum(d.count for d in discarded)
    assert before <= floor, (before, floor)
    assert resolved == floor + 2 * (floor > 0), (floor, resolved)
    assert count == floor, (floor, count)
    before = floor
print("ok")
"""


def test_whoever_looks_sees_one_commit(layout: Layout) -> None:
    """Another process reads while commits go on and pages are reused: watermark, marks and discards agree."""
    made = Marks(layout.delivery, SegmentList(layout))
    commits = 60
    with subprocess.Popen(
        [sys.executable, "-c", LOOK, layout.directory, str(commits)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as looker:
        assert looker.stdout
        # Data to look at: an environment without tables cannot be opened read-only.
        assert looker.stdout.readline() == "looking\n"
        for n in range(1, commits + 1):
            chunks = {(1, 0): bitmap(n, n + 1)}
            made.commit(Changes(n, chunks, {-1: n}, [Discard(np.array([n - 1]), 15, b"t", n)]))
        out, err = looker.communicate(timeout=60)
    assert (out, looker.returncode) == ("ok\n", 0), err
    made.close()


def test_a_reader_that_died_is_forgotten(layout: Layout) -> None:
    """Its place in the lock file is cleared: the file does not grow for ever."""
    made = Marks(layout.delivery, SegmentList(layout))
    made.commit(Changes(low_watermark=1))
    die = LOOK.replace('print("looking"', 'txn = marks._env.begin(); print("looking"').split("while")[0]
    code = die + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run(
        [sys.executable, "-c", code, layout.directory, "1"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == -9, done.stderr
    sizes = []
    for n in range(400):
        made.commit(Changes(chunks={(1, 0): bitmap(n), (2, 0): bitmap(n)}, offsets={-1: n}))
        sizes.append(made._env.info()["last_pgno"])
    assert sizes[-1] == sizes[200] < 400
    made.close()


def test_samples_are_bounded_and_read_back(layout: Layout) -> None:
    """At most four for each reason and topic, within a bound in all; the newest stay."""
    marks = Marks(layout.delivery, SegmentList(layout))
    made = [Sample(n, 15, b"t%d" % (n // 5), n, b"%d" % n) for n in range(1500)]
    marks.commit(Changes(samples=made))
    found = marks.samples()
    marks.close()
    assert len(found) == kept.MOST_SAMPLES
    assert {s.sequence for s in found if s.topic == b"t0"} == {1, 2, 3, 4}
    assert set(found) <= set(made)


def test_marks_of_an_earlier_release_lack_tables(layout: Layout) -> None:
    """They are read unchanged, and get the table from the next deliverer."""
    with mock.patch.object(module, "_TABLES", module._TABLES[:-2]):
        before = Marks(layout.delivery, SegmentList(layout))
        before.close()
    reader = Marks(layout.delivery, SegmentList(layout), readonly=True)
    assert reader.samples() == []
    assert lost_of(reader) == {}
    reader.close()
    after = Marks(layout.delivery, SegmentList(layout))
    after.commit(
        Changes(samples=[Sample(0, 15, b"t", 7, b"x")], discarded=[Discard(np.array([0]), 15, b"t", 7)])
    )
    assert len(after.samples()) == 1
    assert lost_of(after) == {0: 15}
    after.close()


def sums(marks: Marks) -> dict[int, int]:
    """The number of discarded messages by reason."""
    found: dict[int, int] = {}
    for row in marks.discards():
        found[row.reason] = found.get(row.reason, 0) + row.count
    return found


def test_discards_of_many_topics_have_a_bound(marks: Marks) -> None:
    """The first topics have their own rows, the others share one for each reason; those sums are exact."""
    for part in range(4):
        names = {b"t%d" % n: 2 for n in range(500 * part, 500 * part + 500)}
        more = [Discard(np.arange(1000), reason, names, 100 * part) for reason in (14, 27)]
        marks.commit(Changes(discarded=more))
    rows = marks.discards()
    assert len(rows) == kept.MOST_COUNTS + 2
    assert {(d.reason, d.topic): d.count for d in rows if d.topic == OTHERS} == {
        (14, OTHERS): 3000,
        (27, OTHERS): 3000,
    }
    assert sums(marks) == {14: 4000, 27: 4000}
    # A topic with a row is still counted there.
    marks.commit(Changes(discarded=[Discard(np.arange(5), 14, b"t3", 900)]))
    assert {d.count for d in marks.discards() if (d.topic, d.reason) == (b"t3", 14)} == {7}


def test_rows_of_an_earlier_release_are_summed_up(layout: Layout) -> None:
    """It kept a row for every topic; the next deliverer keeps those with most messages, and every count."""
    before = Marks(layout.delivery, SegmentList(layout))
    old = [Discards(b"t%d" % n, 14, 1 + n % 7, 5, 5) for n in range(30_000)]
    with before._env.begin(write=True) as txn:
        for row in (*old, Discards(b"u", 16, 9, 6, 6)):
            kept.count(txn, before._db[b"discard"], row, before.segment_list.spool, most=1 << 30)
    whole = sums(before)
    before.close()
    after = Marks(layout.delivery, SegmentList(layout))
    rows = after.discards()
    assert sums(after) == whole
    assert len(rows) <= kept.MOST_COUNTS + 2
    assert {d.count for d in rows if d.topic not in (OTHERS, b"u")} == {7}
    assert after.mismatches() == []
    after.close()
