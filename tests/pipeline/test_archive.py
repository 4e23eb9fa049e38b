"""Spools to Parquet: everything, once, as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spool.wire import encode
from tests.spool.rig import Rig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BRUCECTL = [sys.executable, "-c", "from cli.app import brucectl; brucectl()"]
ODD = [
    encode(b"clicks", b"", timestamp=-5),
    encode(b"clicks", b"\x00\xff", key=b"\xff\n", timestamp=2**62),
    encode(b"clicks", b"v", key=b"k", timestamp=1, partition_key=-7),
    encode(b"2026", b"a topic that looks like a number"),
    encode(b"\xff\\x", b"v"),
    encode(b"\\xff\\x", b"v"),
    encode(b"a/b=c", b"v"),
    encode(b"t" * 300, b"v"),
]


def archived(session: SparkSession, target: Path) -> list[Any]:
    """The rows of an archive, in order of sequence."""
    from pipeline.archive_files import read_archive

    return read_archive(session, str(target)).orderBy("spool", "sequence").collect()


def fill(rig: Rig, count: int, topics: tuple[bytes, ...] = (b"clicks", b"views")) -> None:
    """Store and commit so many messages."""
    for first in range(0, count, 20):
        numbers = range(first, min(first + 20, count))
        rig.append([encode(topics[i % len(topics)], b"%d" % i, key=b"k") for i in numbers])
    rig.step()


def test_nothing_is_lost_on_the_way(spark: SparkSession, rig: Rig, tmp_path: Path) -> None:
    """Each column is as the source has it; topics that Kafka could not have are kept, and told apart."""
    from pipeline.archive import TOPIC
    from pipeline.archiving import run_archive

    rig.append(ODD)
    rig.step()
    target = tmp_path / "archive"
    report = run_archive(spark, [str(rig.options.directory)], str(target))
    assert (report.messages, report.unreadable) == (len(ODD), 0)
    assert report.topics == {"2026": 1, "clicks": 3, "~": 4}
    stored = spark.read.format("bruce").load(str(rig.options.directory)).orderBy("sequence").collect()
    rows = archived(spark, target)
    kept = set(rows[0].asDict()) - {"topic", "bad_topic", "date"}
    assert {"key", "value", "timestamp_ms", "partition_key", "received_at", "uid"} <= kept
    assert [{name: row[name] for name in kept} for row in rows] == [
        {name: row[name] for name in kept} for row in stored
    ]
    assert [row.bad_topic or row.topic for row in rows] == [row.topic for row in stored]
    assert len({row.bad_topic for row in rows}) == 5
    assert {row.date for row in rows} == {row.received_at.date() for row in stored}
    assert (target / "topic=2026").is_dir()
    assert TOPIC


def test_again_and_again(spark: SparkSession, rig: Rig, second_rig: Rig, tmp_path: Path) -> None:
    """What is archived stays out; what is new comes in, of a new spool too; nothing new makes no file."""
    from pipeline.archiving import run_archive

    target, paths = tmp_path / "archive", [str(rig.options.directory)]
    fill(rig, 300)
    assert run_archive(spark, paths, str(target)).messages == 300
    files = sorted(target.rglob("*.parquet"))
    assert run_archive(spark, paths, str(target)).messages == 0
    assert sorted(target.rglob("*.parquet")) == files
    fill(rig, 50)
    fill(second_rig, 20)
    paths.append(str(second_rig.options.directory))
    assert run_archive(spark, paths, str(target)).messages == 70
    rows = archived(spark, target)
    assert len({(row.spool, row.sequence) for row in rows}) == len(rows) == 370


def test_what_left_before_it_was_archived_is_counted(spark: SparkSession, rig: Rig, tmp_path: Path) -> None:
    """Messages of segments that went between two jobs are missed; those from before the first are not."""
    from pipeline.archiving import run_archive

    target, paths = tmp_path / "archive", [str(rig.options.directory)]

    def remove_oldest(count: int) -> None:
        for first, suffix in rig.layout.list_segments()[:count]:
            rig.layout.segment(first, suffix).unlink()

    fill(rig, 1000)
    remove_oldest(2)
    begun = run_archive(spark, paths, str(target))
    assert (begun.missed, begun.sound) == (0, True)
    assert 0 < begun.messages < 1000
    fill(rig, 1000)
    known = rig.layout.list_segments()
    gone = sum(first < begun.spools[rig.identity.spool.hex()] for first, _ in known) + 1
    left = known[gone][0]
    remove_oldest(gone)
    again = run_archive(spark, paths, str(target))
    assert again.missed == left - 1000 > 0
    assert again.messages == 2000 - left


def test_a_damaged_header_is_named(spark: SparkSession, rig: Rig, tmp_path: Path) -> None:
    """Its messages are counted as unreadable, by the job that passes its place, and not again by the next."""
    from pipeline.archiving import run_archive

    target, paths = tmp_path / "archive", [str(rig.options.directory)]
    fill(rig, 1000)
    names = rig.layout.list_segments()
    with rig.layout.segment(*names[1]).open("r+b") as file:
        file.write(b"xx")
    report = run_archive(spark, paths, str(target))
    assert report.damaged == [str(rig.layout.segment(*names[1]))]
    assert report.unreadable == names[2][0] - names[1][0] == 1000 - report.messages
    assert not report.sound
    assert report.sentence().endswith(f"the header of {report.damaged[0]} is damaged.")
    assert run_archive(spark, paths, str(target)).sound


def test_killed_between_commit_and_the_last_file(spark: SparkSession, rig: Rig, tmp_path: Path) -> None:
    """A job that dies by SIGKILL with half of its files in place leaves no gap and no double to the next."""
    from pipeline.archiving import run_archive

    target, paths = tmp_path / "archive", [str(rig.options.directory)]
    fill(rig, 200)
    code = (
        "import os, signal\n"
        "from pipeline.archiving import run_archive\n"
        "from pipeline.session import open_session\n"
        "from pipeline.store import Store\n"
        "move = Store.move\n"
        "Store.move = lambda self, *names: (move(self, *names), os.kill(os.getpid(), signal.SIGKILL))\n"
        f"with open_session('local[1]') as session: run_archive(session, {paths!r}, {str(target)!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=300, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(archived(spark, target)) == 100
    fill(rig, 10)
    assert run_archive(spark, paths, str(target)).messages == 10
    rows = archived(spark, target)
    assert len({row.sequence for row in rows}) == len(rows) == 210


def test_small_files_become_few(spark: SparkSession, rig: Rig, tmp_path: Path) -> None:
    """One file a topic and day, the same rows in order; a second compaction finds nothing to do."""
    from pipeline.archiving import run_archive

    target, paths = tmp_path / "archive", [str(rig.options.directory)]
    for _ in range(3):
        fill(rig, 40)
        run_archive(spark, paths, str(target))
    before = archived(spark, target)
    assert len(list(target.glob("topic=*/date=*/*.parquet"))) == 6
    assert run_archive(spark, paths, str(target), compact=True).merged == 6
    assert len(list(target.glob("topic=*/date=*/*.parquet"))) == 2
    assert archived(spark, target) == before
    assert run_archive(spark, paths, str(target), compact=True).merged == 0


def test_bins_hold_what_fits() -> None:
    """Files of one directory only, large ones left alone, none merged by itself, and no bin over its size."""
    from pipeline.archive_files import File
    from pipeline.compaction import FULL_BYTES, choose_bins

    mib = 1 << 20
    sizes = [60, 60, 60, 64, 1]
    files = [File(f"topic=a/date=d/{i}", size * mib) for i, size in enumerate(sizes)]
    bins = choose_bins([*files, File("topic=b/date=d/0", 1)])
    assert [[file.name[-1] for file in chosen] for chosen in bins] == [["0", "1"], ["2", "4"]]
    assert all(sum(file.bytes for file in chosen) <= FULL_BYTES for chosen in bins)


def test_command(rig: Rig, tmp_path: Path) -> None:
    """`brucectl spark archive` says what it did; a damaged frame is counted, and then it exits 1."""
    fill(rig, 100)
    rig.crash()
    first = min(rig.layout.segments.iterdir())
    with first.open("r+b") as file:
        file.seek(4096 + 200)
        file.write(os.urandom(16))
    command = [
        *BRUCECTL,
        "spark",
        "archive",
        str(rig.options.directory),
        "--to",
        str(tmp_path / "a"),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (1, "")
    report = json.loads(done.stdout)
    assert report["unreadable"] > 0
    assert report["messages"] + report["unreadable"] == 100


def test_copies_of_one_spool_are_refused(spark: SparkSession, rig: Rig, tmp_path: Path) -> None:
    """A spool and its copy would make each message two."""
    import shutil

    from pipeline.archiving import run_archive
    from pipeline.errors import JobFailed

    fill(rig, 20)
    copy = shutil.copytree(rig.options.directory, tmp_path / "copy")
    with pytest.raises(JobFailed, match="are copies of one spool; name one of them"):
        run_archive(spark, [str(rig.options.directory), str(copy)], str(tmp_path / "archive"))


@pytest.mark.crash
@pytest.mark.slow
def test_continuous_through_a_kill(spark: SparkSession, rig: Rig, tmp_path: Path) -> None:
    """`--continuous` goes on with what comes; killed, JVM and all, and started again: no gap and no double.

    SIGTERM ends it, with exit code 0.
    """
    target = tmp_path / "archive"
    command = [*BRUCECTL, "spark", "archive", str(rig.options.directory), "--to", str(target), "--continuous"]

    def rows() -> list[int]:
        return [row.sequence for row in archived(spark, target)] if target.exists() else []

    def until(count: int, process: subprocess.Popen[bytes]) -> None:
        while len(rows()) < count:
            assert process.poll() is None
            time.sleep(0.5)

    fill(rig, 60)
    with (tmp_path / "said").open("wb") as said:
        first = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
        until(60, first)
        fill(rig, 40)
        until(100, first)
        fill(rig, 30)
        # Somewhere in its next turn, or before it.
        os.killpg(first.pid, signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
        fill(rig, 20)
        second = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
        until(150, second)
        second.terminate()
        assert second.wait(120) == 0
    assert sorted(rows()) == list(range(150))
