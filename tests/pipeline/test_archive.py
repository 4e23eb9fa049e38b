"""The archive: every message once, through kills, and in files of a good size."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from tests.daemon import RunningBruce
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

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
    from pipeline.archive import read_archive

    return read_archive(session, str(target)).orderBy("spool", "sequence").collect()


def fill(spool: SpoolFixture, count: int, topics: tuple[bytes, ...] = (b"clicks", b"views")) -> None:
    """Store and commit this many messages."""
    for first in range(0, count, 20):
        numbers = range(first, min(first + 20, count))
        spool.append([encode(topics[i % len(topics)], b"%d" % i, key=b"k") for i in numbers])
    spool.step()


def test_topics_that_are_shown_alike(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is longer than Kafka's is cut; two that are cut to the same are one row, with their sum."""
    from cli.commands.spark.archive import _show
    from pipeline.archive import ArchiveReport

    topics = {"t" * 300: 2, "t" * 301: 3, "u": 1}
    _show(ArchiveReport("a", topics, files=1, unreadable=0, missed=0, spools={}), as_json=False)
    assert capsys.readouterr().out.splitlines()[:2] == ["t" * 248 + "…\t5", "u\t1"]


def test_nothing_is_lost_on_the_way(spark: SparkSession, spool: SpoolFixture, tmp_path: Path) -> None:
    """Each column is as the source has it; topics that Kafka could not have are kept, and distinguished."""
    from pipeline.archive import TOPIC, run_archive

    spool.append(ODD)
    spool.step()
    target = tmp_path / "archive"
    report = run_archive(spark, [str(spool.options.directory)], str(target))
    assert (report.messages, report.unreadable) == (len(ODD), 0)
    assert report.topics == {"2026": 1, "clicks": 3, "~": 4}
    stored = spark.read.format("bruce").load(str(spool.options.directory)).orderBy("sequence").collect()
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


@pytest.mark.oldest_spark
def test_again_and_again(
    spark: SparkSession, spool: SpoolFixture, second_spool: SpoolFixture, tmp_path: Path
) -> None:
    """Archived messages stay out; new ones come in, of a new spool too; nothing new makes no file."""
    from pipeline.archive import run_archive

    target, paths = tmp_path / "archive", [str(spool.options.directory)]
    fill(spool, 300)
    assert run_archive(spark, paths, str(target)).messages == 300
    files = sorted(target.rglob("*.parquet"))
    assert run_archive(spark, paths, str(target)).messages == 0
    assert sorted(target.rglob("*.parquet")) == files
    fill(spool, 50)
    fill(second_spool, 20)
    paths.append(str(second_spool.options.directory))
    assert run_archive(spark, paths, str(target)).messages == 70
    rows = archived(spark, target)
    assert len({(row.spool, row.sequence) for row in rows}) == len(rows) == 370


def test_what_left_before_it_was_archived_is_counted(
    spark: SparkSession, spool: SpoolFixture, tmp_path: Path
) -> None:
    """Messages of segments that went between two jobs are missed; those from before the first are not."""
    from pipeline.archive import run_archive

    target, paths = tmp_path / "archive", [str(spool.options.directory)]

    def remove_oldest(count: int) -> None:
        for first, suffix in spool.layout.list_segments()[:count]:
            spool.layout.segment(first, suffix).unlink()

    fill(spool, 1000)
    remove_oldest(2)
    begun = run_archive(spark, paths, str(target))
    assert (begun.missed, begun.sound) == (0, True)
    assert 0 < begun.messages < 1000
    fill(spool, 1000)
    known = spool.layout.list_segments()
    gone = sum(first < begun.spools[spool.identity.spool.hex()] for first, _ in known) + 1
    left = known[gone][0]
    remove_oldest(gone)
    again = run_archive(spark, paths, str(target))
    assert again.missed == left - 1000 > 0
    assert again.messages == 2000 - left


def test_a_damaged_header_is_named(spark: SparkSession, spool: SpoolFixture, tmp_path: Path) -> None:
    """Its messages are counted as unreadable, by the job that passes its place, and not again by the next."""
    from pipeline.archive import run_archive

    target, paths = tmp_path / "archive", [str(spool.options.directory)]
    fill(spool, 1000)
    names = spool.layout.list_segments()
    with spool.layout.segment(*names[1]).open("r+b") as file:
        file.write(b"xx")
    report = run_archive(spark, paths, str(target))
    assert report.damaged == [str(spool.layout.segment(*names[1]))]
    assert report.unreadable == names[2][0] - names[1][0] == 1000 - report.messages
    assert not report.sound
    assert report.sentence().endswith(f"the header of {report.damaged[0]} is damaged.")
    assert run_archive(spark, paths, str(target)).sound


@pytest.mark.long
def test_small_files_become_few(
    spark: SparkSession, spool: SpoolFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file a topic and day, the same rows in order; a second compaction finds nothing to do.

    At each moment of the exchange one directory at most is without its files.
    """
    from pipeline.archive import Store, run_archive

    empty: list[int] = []
    remove = Store.remove

    def watch(store: Store, name: str) -> None:
        remove(store, name)
        empty.append(sum(not any(day.glob("*.parquet")) for day in target.glob("topic=*/date=*")))

    target, paths = tmp_path / "archive", [str(spool.options.directory)]
    for _ in range(3):
        fill(spool, 40)
        run_archive(spark, paths, str(target))
    before = archived(spark, target)
    assert len(list(target.glob("topic=*/date=*/*.parquet"))) == 6
    monkeypatch.setattr(Store, "remove", watch)
    assert run_archive(spark, paths, str(target), compact=True).merged == 6
    assert max(empty) == 1
    assert len(list(target.glob("topic=*/date=*/*.parquet"))) == 2
    assert archived(spark, target) == before
    assert run_archive(spark, paths, str(target), compact=True).merged == 0


def test_bins_hold_what_fits() -> None:
    """Files of one directory only, large ones left alone, none merged by itself, and no bin over its size."""
    from pipeline.archive import FULL_BYTES, File, choose_bins

    mib = 1 << 20
    sizes = [60, 60, 60, 64, 1]
    files = [File(f"topic=a/date=d/{i}", size * mib) for i, size in enumerate(sizes)]
    bins = choose_bins([*files, File("topic=b/date=d/0", 1)])
    assert [[file.name[-1] for file in chosen] for chosen in bins] == [["0", "1"], ["2", "4"]]
    assert all(sum(file.bytes for file in chosen) <= FULL_BYTES for chosen in bins)


def test_copies_of_one_spool_are_refused(spark: SparkSession, spool: SpoolFixture, tmp_path: Path) -> None:
    """A spool and its copy would make each message two."""
    import shutil

    from pipeline.archive import run_archive
    from pipeline.errors import JobFailed

    fill(spool, 20)
    copy = shutil.copytree(spool.options.directory, tmp_path / "copy")
    with pytest.raises(JobFailed, match="are copies of one spool; name one of them"):
        run_archive(spark, [str(spool.options.directory), str(copy)], str(tmp_path / "archive"))


CONTINUOUS = """
import os, signal, sys
from cli.app import brucectl
from pipeline import archive
from pipeline.archive import Store

archive.EVERY_S = 0.2
left, move = int(sys.argv.pop(1)), Store.move

def move_and_die(self, *names):
    global left
    move(self, *names)
    left -= 1
    if left == 0:
        os.killpg(0, signal.SIGKILL)

Store.move = move_and_die
brucectl()
"""
"""`brucectl` that dies, its JVM with it, when so many files have the names that they keep."""


@pytest.mark.crash
@pytest.mark.long
def test_continuous_through_a_kill(spark: SparkSession, tmp_path: Path) -> None:
    """`--continuous` goes on while Kafka is away; killed, and started again: no gap and no double.

    Beside a live daemon. It dies, JVM and all, between a commit and the last of its files. SIGTERM ends it,
    with exit code 0.
    """
    target, topics = tmp_path / "archive", (b"clicks", b"views")
    with (
        EmbeddedKafka(brokers=1, topics=[(topic.decode(), 1) for topic in topics]) as kafka,
        RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce,
        (tmp_path / "said").open("wb") as said,
    ):

        def send(first: int, end: int) -> None:
            bruce.send([encode(topics[i % 2], b"%d" % i) for i in range(first, end)])
            bruce.await_status(lambda seen: seen.watermarks.synced == end)

        @contextmanager
        def running(moves: int) -> Iterator[subprocess.Popen[bytes]]:
            command = ["spark", "archive", str(bruce.spool), "--to", str(target), "--continuous"]
            started = subprocess.Popen(
                [sys.executable, "-c", CONTINUOUS, str(moves), *command],
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                yield started
            finally:
                if started.poll() is None:
                    os.killpg(started.pid, signal.SIGKILL)
                    started.wait()

        def archived_to(process: subprocess.Popen[bytes], end: int) -> bool:
            assert process.poll() is None, (tmp_path / "said").read_text()
            commits = sorted(target.glob("_bruce/commits/*.json"))
            return bool(commits) and [[end, end]] == list(
                json.loads(commits[-1].read_text())["spools"].values()
            )

        send(0, 60)
        with running(3) as first:
            bruce.await_true(lambda: archived_to(first, 60), 300)
            kafka.down(-1)
            send(60, 100)
            assert first.wait(300) == -signal.SIGKILL
        send(100, 120)
        with running(-1) as second:
            bruce.await_true(lambda: archived_to(second, 120), 300)
            send(120, 150)
            bruce.await_true(lambda: archived_to(second, 150), 300)
            second.terminate()
            assert second.wait(300) == 0
        assert bruce.status().backlog >= 90
        assert [row.sequence for row in archived(spark, target)] == list(range(150))


OLD, NEW = ["topic=a/date=2026-11-21/old-1", "topic=a/date=2026-11-21/old-2"], "topic=a/date=2026-11-21/new"


class Died(BaseException):
    """Simulates SIGKILL: no handler catches it, so nothing happens after it."""


def mortal(session: SparkSession, directory: Path, steps: int) -> Any:
    """A store that dies before it changes anything for the time `steps`."""
    from pipeline.archive import Store

    class Mortal(Store):
        left = steps

        def _step(self) -> None:
            if self.left == 0:
                raise Died
            self.left -= 1

        def _rename(self, source: Any, target: Any) -> None:
            self._step()
            super()._rename(source, target)

        def _sync(self, names: Any) -> None:
            self._step()
            super()._sync(names)

        def remove(self, name: str) -> None:
            self._step()
            super().remove(name)

    return Mortal(session, str(directory))


def files(directory: Path) -> set[str]:
    """The files that a reader of the archive sees."""
    return {str(path.relative_to(directory)) for path in directory.glob("topic=*/*/[!.]*")}


def test_a_job_happens_whole_or_not_at_all(spark: SparkSession, tmp_path: Path) -> None:
    """Killed before each of its steps and started again, mark and files go together; no reader sees both.

    Fails when files move before the commit is published, or new ones before old ones are gone.
    """
    from pipeline.archive import ArchiveLog, Store

    for steps in range(100):
        directory = tmp_path / str(steps)
        for name in OLD:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).touch()
        log = ArchiveLog(Store(spark, str(directory)))
        staging = log.new_staging()
        staged = directory / staging / NEW
        staged.parent.mkdir(parents=True)
        staged.touch()
        log._store = mortal(spark, directory, steps)
        try:
            log.commit({"s": [10, 10]}, staging, [(f"{staging}/{NEW}", NEW)], OLD)
        except Died:
            assert not (NEW in files(directory) and files(directory) & set(OLD)), steps
            again = ArchiveLog(Store(spark, str(directory)))
            assert (again.newest.spools, files(directory)) in (({}, set(OLD)), ({"s": [10, 10]}, {NEW})), (
                steps
            )
        else:
            break
    assert steps > 6
    assert not list((directory / "_bruce/staging").iterdir())


def test_of_two_jobs_one_wins(spark: SparkSession, tmp_path: Path) -> None:
    """Of two jobs that began at the same commit the second gets an error, and changes nothing."""
    from pipeline.archive import ArchiveLog, Store
    from pipeline.errors import JobFailed

    first, second = (ArchiveLog(Store(spark, str(tmp_path))) for _ in range(2))
    first.commit({"s": [10, 10]}, "", (), ())
    with pytest.raises(JobFailed, match="another job writes to"):
        second.commit({"s": [20, 20]}, "", (), ())
    assert ArchiveLog(Store(spark, str(tmp_path))).newest.spools == {"s": [10, 10]}


def test_old_commits_go(spark: SparkSession, tmp_path: Path) -> None:
    """Ten stay, and each says how far every spool is."""
    from pipeline.archive import ArchiveLog, Store

    log = ArchiveLog(Store(spark, str(tmp_path)))
    for number in range(14):
        log.commit({f"s{number % 3}": [number, 0]}, "", (), ())
    assert len(list((tmp_path / "_bruce/commits").glob("[0-9]*.json"))) == 10
    assert ArchiveLog(Store(spark, str(tmp_path))).newest.spools == {
        "s0": [12, 0],
        "s1": [13, 0],
        "s2": [11, 0],
    }
