"""The archive: every message once, through kills, and in files of a good size; on either engine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from dispatch.embedded import EmbeddedKafka
from pipeline.archive.files import Files
from pipeline.archive.job import run_archive
from pipeline.embedded.engine import DuckEngine
from pipeline.embedded.query import open_archive
from pipeline.engine import Engine
from pipeline.errors import JobFailed
from spool.format.wire import encode
from tests.daemon import RunningBruce
from tests.spool.fixture import SpoolFixture

FilesIn = Callable[[Path], Files]
ODD = [
    encode(b"clicks", b"", timestamp=-5),
    encode(b"clicks", b"\x00\xff", key=b"\xff\n", timestamp=2**62),
    encode(b"clicks", b"v", key=b"k", timestamp=1, partition_key=-7),
    encode(b"2026", b"a topic that looks like a number"),
    encode(b"\xff\\x", b"v"),
    encode(b"\\xff\\x", b"v"),
    encode(b"a/b=c", b"v"),
    encode(b"a\n", b"v"),
    encode(b"__HIVE_DEFAULT_PARTITION__", b"v"),
    encode(b"t" * 300, b"v"),
]


def archived(target: Path) -> list[dict[str, Any]]:
    """The rows of an archive, in order of sequence."""
    rows = open_archive(str(target)).to_table().to_pylist()
    return sorted(rows, key=itemgetter("spool", "sequence"))


def in_utc(value: Any) -> Any:
    """A time in UTC, without a zone, as DuckDB has it; anything else as it is."""
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) else value


def fill(spool: SpoolFixture, count: int, topics: tuple[bytes, ...] = (b"clicks", b"views")) -> None:
    """Store and commit this many messages."""
    for first in range(0, count, 20):
        numbers = range(first, min(first + 20, count))
        spool.append([encode(topics[i % len(topics)], b"%d" % i, key=b"k") for i in numbers])
    spool.step()


def test_nothing_is_lost_on_the_way(
    engine: Engine, files: FilesIn, spool: SpoolFixture, tmp_path: Path
) -> None:
    """Each column is as the source has it; topics that Kafka could not have are kept, and distinguished."""
    spool.append(ODD)
    spool.step()
    target = tmp_path / "archive"
    report = run_archive(engine, files(target), [str(spool.options.directory)])
    assert (report.messages, report.unreadable) == (len(ODD), 0)
    assert report.topics == {"2026": 1, "clicks": 3, "~": 6}
    rows = archived(target)
    kept = set(rows[0]) - {"topic", "bad_topic", "date"}
    with engine.working():
        frame = engine.spools([str(spool.options.directory)], [*kept, "topic"])
        stored = sorted(engine.collect(frame), key=itemgetter("sequence"))
    assert {"key", "value", "timestamp_ms", "partition_key", "received_at", "uid"} <= kept
    assert [{name: row[name] for name in kept} for row in rows] == [
        {name: in_utc(row[name]) for name in kept} for row in stored
    ]
    assert [row["bad_topic"] or row["topic"] for row in rows] == [row["topic"] for row in stored]
    assert len({row["bad_topic"] for row in rows}) == 7
    assert {row["date"] for row in rows} == {row["received_at"].astimezone(UTC).date() for row in stored}
    assert (target / "topic=2026").is_dir()


@pytest.mark.oldest_spark
def test_again_and_again(
    engine: Engine, files: FilesIn, spool: SpoolFixture, second_spool: SpoolFixture, tmp_path: Path
) -> None:
    """Archived messages stay out; new ones come in, of a new spool too; nothing new makes no file."""
    target, paths = tmp_path / "archive", [str(spool.options.directory)]
    fill(spool, 300)
    assert run_archive(engine, files(target), paths).messages == 300
    known = sorted(target.rglob("*.parquet"))
    assert run_archive(engine, files(target), paths).messages == 0
    assert sorted(target.rglob("*.parquet")) == known
    fill(spool, 50)
    fill(second_spool, 20)
    paths.append(str(second_spool.options.directory))
    assert run_archive(engine, files(target), paths).messages == 70
    rows = archived(target)
    assert len({(row["spool"], row["sequence"]) for row in rows}) == len(rows) == 370


def test_what_left_before_it_was_archived_is_counted(
    engine: Engine, files: FilesIn, spool: SpoolFixture, tmp_path: Path
) -> None:
    """Messages of segments that went between two jobs are missed; those from before the first are not."""
    target, paths = tmp_path / "archive", [str(spool.options.directory)]

    def remove_oldest(count: int) -> None:
        for first, suffix in spool.layout.list_segments()[:count]:
            spool.layout.segment(first, suffix).unlink()

    fill(spool, 1000)
    remove_oldest(2)
    begun = run_archive(engine, files(target), paths)
    assert (begun.missed, begun.sound) == (0, True)
    assert 0 < begun.messages < 1000
    fill(spool, 1000)
    known = spool.layout.list_segments()
    gone = sum(first < begun.spools[spool.identity.spool.hex()] for first, _ in known) + 1
    left = known[gone][0]
    remove_oldest(gone)
    again = run_archive(engine, files(target), paths)
    assert again.missed == left - 1000 > 0
    assert again.messages == 2000 - left


def test_a_damaged_header_is_named(
    engine: Engine, files: FilesIn, spool: SpoolFixture, tmp_path: Path
) -> None:
    """Its messages are counted as unreadable, by the job that passes its place, and not again by the next."""
    target, paths = tmp_path / "archive", [str(spool.options.directory)]
    fill(spool, 1000)
    names = spool.layout.list_segments()
    with spool.layout.segment(*names[1]).open("r+b") as file:
        file.write(b"xx")
    report = run_archive(engine, files(target), paths)
    assert report.damaged == [str(spool.layout.segment(*names[1]))]
    assert report.unreadable == names[2][0] - names[1][0] == 1000 - report.messages
    assert not report.sound
    assert report.sentence().endswith(f"the header of {report.damaged[0]} is damaged.")
    assert run_archive(engine, files(target), paths).sound


@pytest.mark.long
def test_small_files_become_few(
    engine: Engine, files: FilesIn, spool: SpoolFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file a topic and day, the same rows in order; a second compaction finds nothing to do.

    At each moment of the exchange one directory at most is without its files.
    """
    target, paths = tmp_path / "archive", [str(spool.options.directory)]
    for _ in range(3):
        fill(spool, 40)
        run_archive(engine, files(target), paths)
    before = archived(target)
    assert len(list(target.glob("topic=*/date=*/*.parquet"))) == 6
    made, empty = files(target), []
    remove = made.store.remove

    def watch(name: str) -> None:
        remove(name)
        empty.append(sum(not any(day.glob("*.parquet")) for day in target.glob("topic=*/date=*")))

    monkeypatch.setattr(made.store, "remove", watch)
    assert run_archive(engine, made, paths, compact=True).merged == 6
    assert max(empty) == 1
    assert len(list(target.glob("topic=*/date=*/*.parquet"))) == 2
    assert archived(target) == before
    assert run_archive(engine, files(target), paths, compact=True).merged == 0


def test_copies_of_one_spool_are_refused(
    engine: Engine, files: FilesIn, spool: SpoolFixture, tmp_path: Path
) -> None:
    """A spool and its copy would make each message two."""
    fill(spool, 20)
    copy = shutil.copytree(spool.options.directory, tmp_path / "copy")
    with pytest.raises(JobFailed, match="are copies of one spool; name one of them"):
        run_archive(engine, files(tmp_path / "archive"), [str(spool.options.directory), str(copy)])


CONTINUOUS = """
import os, signal, sys
from cli.app import brucectl
if sys.argv[2] == "spark":
    from pipeline.archive import spark as engine
    Store = engine.HadoopStore
else:
    from pipeline.embedded import archive as engine
    Store = engine.LocalStore

engine.EVERY_S = 0.2
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
def test_continuous_through_a_kill(engine: Engine, tmp_path: Path) -> None:
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
            on = [] if isinstance(engine, DuckEngine) else ["spark"]
            command = [*on, "archive", str(bruce.spool), "--to", str(target), "--continuous"]
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
        assert [row["sequence"] for row in archived(target)] == list(range(150))
