"""An archive as an Iceberg table: every message once, and each commit whole for readers."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.table import FileScanTask, Table

from pipeline.archive import iceberg
from pipeline.archive.files import Files
from pipeline.archive.iceberg import KEPT, TABLE, IcebergLog, local_catalog, open_table
from pipeline.archive.job import ArchiveReport, follow_archive, run_archive
from pipeline.embedded.archive import LocalFiles
from pipeline.embedded.engine import DuckEngine
from pipeline.embedded.iceberg import IcebergFiles
from pipeline.engine import Engine
from pipeline.errors import ArchiveConflict, JobFailed
from spool.format.wire import encode
from tests.daemon import ROOT, RunningBruce
from tests.pipeline.archive.test_job import ODD, archived, fill
from tests.pipeline.conftest import LONG_ON_SPARK
from tests.pipeline.test_oldest_spark import environment, oldest  # noqa: F401  (a fixture)
from tests.spool.fixture import SpoolFixture
from tools.bruce_process import NOWHERE
from tools.maven_jars import JarsMissing, MavenJars

FilesOf = Callable[[Table], Files]


def table_in(directory: Path) -> Table:
    """The table of an archive, as a process finds it."""
    return open_table(local_catalog(str(directory)), TABLE)


@pytest.fixture
def files_of(request: pytest.FixtureRequest, engine: Engine) -> FilesOf:
    """The files of a table, as this engine writes them."""

    def files(table: Table) -> Files:
        if isinstance(engine, DuckEngine):
            return IcebergFiles(engine, table)
        from pipeline.archive.spark_iceberg import SparkIcebergFiles

        return SparkIcebergFiles(request.getfixturevalue("spark"), table)

    return files


@pytest.fixture
def archive(
    engine: Engine, files_of: FilesOf, spool: SpoolFixture, tmp_path: Path
) -> Callable[..., ArchiveReport]:
    """Archives what is new in the spool, as a job of its own."""

    def run(**how: bool) -> ArchiveReport:
        files = files_of(table_in(tmp_path / "lake"))
        return run_archive(engine, files, [str(spool.options.directory)], **how)

    return run


def rows_of(table: Table) -> list[dict[str, Any]]:
    """In order of sequence."""
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: (row["spool"], row["sequence"]))


@LONG_ON_SPARK
def test_the_rows_are_those_of_plain_files(
    archive: Callable[..., ArchiveReport], spool: SpoolFixture, tmp_path: Path
) -> None:
    """Odd names, keys and times, too; DuckDB reads the table, and partitions leave files out."""
    spool.append(ODD)
    spool.step()
    duck = DuckEngine()
    plain = run_archive(duck, LocalFiles(duck, str(tmp_path / "plain")), [str(spool.options.directory)])
    report = archive()
    assert (report.messages, report.topics, report.unreadable) == (len(ODD), plain.topics, 0)
    table = table_in(tmp_path / "lake")
    found = rows_of(table)
    for row in found:
        for name in ("received_at", "created_at"):
            row[name] = row[name] and row[name].replace(tzinfo=None)
    assert found == archived(tmp_path / "plain")
    connection: duckdb.DuckDBPyConnection = table.scan().to_duckdb("messages")
    assert connection.sql("SELECT count(*), count(DISTINCT sequence) FROM messages").fetchall() == [
        (len(ODD), len(ODD))
    ]
    clicks = table.scan("topic = 'clicks'")
    assert len(list(clicks.plan_files())) < len(list(table.scan().plan_files()))
    assert clicks.to_arrow().num_rows == plain.topics["clicks"]


@LONG_ON_SPARK
def test_again_and_again(archive: Callable[..., ArchiveReport], spool: SpoolFixture, tmp_path: Path) -> None:
    """Archived messages stay out, nothing new makes no snapshot, and the snapshot says how far it is."""
    fill(spool, 300)
    assert archive().messages == 300
    assert archive().messages == 0
    fill(spool, 50)
    assert archive().messages == 50
    table = table_in(tmp_path / "lake")
    assert len(table.metadata.snapshots) == 2
    assert IcebergLog(table, {}).newest.spools == {spool.identity.spool.hex(): [350, 350]}
    assert [row["sequence"] for row in rows_of(table)] == list(range(350))


def test_nothing_that_can_be_read(tmp_path: Path) -> None:
    """A job that passes damage alone has no files, and its snapshot says how far it came."""
    log = IcebergLog(table_in(tmp_path), {})
    log.commit({"a" * 32: [5, 5]}, log.new_staging(), (), ())
    table = table_in(tmp_path)
    assert IcebergLog(table, {}).newest.spools == {"a" * 32: [5, 5]}
    assert table.scan().to_arrow().num_rows == 0


class Died(BaseException):
    """Simulates SIGKILL: no handler catches it, so nothing happens after it."""


@pytest.mark.parametrize("landed", [False, True])
def test_a_job_happens_whole_or_not_at_all(
    archive: Callable[..., ArchiveReport],
    spool: SpoolFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    landed: bool,
) -> None:
    """Killed right before or behind the catalog's change: the next job adds all of it, or none."""
    fill(spool, 100)
    do_commit = Table._do_commit

    def die(table: Table, **change: Any) -> None:
        if landed:
            do_commit(table, **change)
        raise Died

    table_in(tmp_path / "lake")
    with monkeypatch.context() as patched:
        patched.setattr(Table, "_do_commit", die)
        with pytest.raises(Died):
            archive()
    assert archive().messages == (0 if landed else 100)
    assert [row["sequence"] for row in rows_of(table_in(tmp_path / "lake"))] == list(range(100))


@LONG_ON_SPARK
def test_of_two_jobs_one_wins(engine: Engine, files_of: FilesOf, spool: SpoolFixture, tmp_path: Path) -> None:
    """The one that comes second changes nothing, and begins again by itself if it goes on."""
    fill(spool, 60)
    paths = [str(spool.options.directory)]
    first, second = (files_of(table_in(tmp_path / "lake")) for _ in range(2))

    def meanwhile(write: Callable[..., Any]) -> Callable[..., Any]:
        def outrun(*given: Any) -> Any:
            staged = write(*given)
            monkey.undo()
            run_archive(engine, first, paths)
            return staged

        return outrun

    for goes_on in (False, True):
        with pytest.MonkeyPatch.context() as monkey:
            monkey.setattr(second, "write", meanwhile(second.write))
            if goes_on:
                fill(spool, 20)
                stop = threading.Event()
                threading.Timer(3, stop.set).start()
                assert list(follow_archive(engine, second, paths, stop)) == []
            else:
                with pytest.raises(ArchiveConflict, match="another job or program wrote to"):
                    run_archive(engine, second, paths)
    assert [row["sequence"] for row in rows_of(table_in(tmp_path / "lake"))] == list(range(80))


@LONG_ON_SPARK
def test_no_reader_comes_short(
    archive: Callable[..., ArchiveReport], spool: SpoolFixture, tmp_path: Path
) -> None:
    """While files are merged again and again, each read has the rows of one commit."""
    fill(spool, 40)
    archive()
    counts: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            counts.append(table_in(tmp_path / "lake").scan().to_arrow().num_rows)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(6):
            fill(spool, 40)
            assert archive(compact=True).merged > 0
    finally:
        done.set()
        reader.join()
    assert len(counts) > 6
    assert counts == sorted(counts)
    assert set(counts) <= set(range(40, 281, 40))


def test_compaction(archive: Callable[..., ArchiveReport], spool: SpoolFixture, tmp_path: Path) -> None:
    """One file a topic and day, the same rows; what old snapshots alone had goes with them, and orphans."""
    for _ in range(3):
        fill(spool, 40)
        archive()
    table = table_in(tmp_path / "lake")
    before, data = rows_of(table), tmp_path / "lake/bruce/messages/data"
    orphan = data / f"0000000002-{'0' * 32}/topic=a/date=2026-11-21/part-x.zstd.parquet"
    running = data / f"0000000009-{'0' * 32}/topic=a/date=2026-11-21/part-x.zstd.parquet"
    for path in (orphan, running):
        path.parent.mkdir(parents=True)
        path.touch()
    assert archive(compact=True).merged == 6
    table.refresh()
    assert len(list(table.scan().plan_files())) == 2
    assert rows_of(table) == before
    assert (orphan.exists(), running.exists()) == (False, True)
    # Those that were merged are a snapshot's, which readers may have; a day later they are not.
    assert len(list(data.rglob("*.parquet"))) == 2 + 6 + 1
    assert archive(compact=True).merged == 0
    fill(spool, 40)
    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(iceberg, "datetime", Later)
        archive(compact=True)
    table.refresh()
    assert len(table.metadata.snapshots) == 1
    assert len(list(data.rglob("*.parquet"))) == 2 + 1
    assert [row["sequence"] for row in rows_of(table)] == list(range(160))
    assert archive().messages == 0


def test_a_file_with_deleted_rows_stays(
    archive: Callable[..., ArchiveReport],
    spool: SpoolFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another program has deleted rows of it: merged with others, it would have them again."""
    for _ in range(3):
        fill(spool, 40)
        archive()
    table = table_in(tmp_path / "lake")
    deleted = min(task.file.file_path for task in table.scan().plan_files())
    plan_files = type(table.scan()).plan_files

    def plan(scan: Any) -> list[Any]:
        return [
            FileScanTask(task.file, {task.file}) if task.file.file_path == deleted else task
            for task in plan_files(scan)
        ]

    monkeypatch.setattr(type(table.scan()), "plan_files", plan)
    assert archive(compact=True).merged == 5
    monkeypatch.undo()
    table.refresh()
    assert deleted in {task.file.file_path for task in table.scan().plan_files()}


def test_an_address_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused, and not made as a folder of that name; file: is one of this host."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JobFailed, match=r"^s3://lake/x is no directory of this host: give --catalog"):
        iceberg.local_catalog("s3://me:secret@lake/x")
    assert not list(tmp_path.iterdir())
    iceberg.local_catalog((tmp_path / "lake").as_uri())
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]


class Later(datetime):
    """A clock that is a day and a minute ahead."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.now(tz) + KEPT + timedelta(minutes=1)


def test_tables_that_are_not_ours(
    archive: Callable[..., ArchiveReport], spool: SpoolFixture, tmp_path: Path
) -> None:
    """Snapshots of others are passed over, until none of ours is left; other tables are refused."""
    fill(spool, 40)
    archive()
    table = table_in(tmp_path / "lake")
    table.append(table.scan().to_arrow().slice(0, 1))
    assert archive().messages == 0
    table.refresh()
    table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[0].snapshot_id).commit()
    with pytest.raises(JobFailed, match=r"no snapshot of .* is left that says how far spools are archived"):
        archive()
    catalog = local_catalog(str(tmp_path / "lake"))
    with table.transaction() as change:
        change.set_properties({"commit.retry.num-retries": "4"})
    with pytest.raises(JobFailed, match=r"needs the property commit\.retry\.num-retries = 0"):
        open_table(catalog, TABLE)
    catalog.create_table("bruce.other", table.schema().select("topic"))
    with pytest.raises(JobFailed, match="has other columns than an archive"):
        open_table(catalog, "bruce.other")
    with pytest.raises(JobFailed, match=r"it takes NAMESPACE\.TABLE"):
        open_table(catalog, "messages")
    (tmp_path / "lake/catalog.db").write_bytes(b"no database" * 100)
    with pytest.raises(JobFailed, match=r"catalog\.db cannot be used: .*not a database"):
        local_catalog(str(tmp_path / "lake"))


def test_the_page_s_program(
    archive: Callable[..., ArchiveReport],
    spool: SpoolFixture,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It counts the messages of a topic, as docs/query.md has it."""
    page = (ROOT / "docs/query.md").read_text(encoding="utf-8")
    program, _ = (part.split("```")[0] for part in page.split("```python")[1:])
    fill(spool, 38, (b"orders", b"views"))
    archive()
    exec(program.replace("/srv/lake", str(tmp_path / "lake")), {})
    assert "19" in capsys.readouterr().out


KILLED = """
import sys
from cli.app import brucectl
from pipeline.archive import iceberg

iceberg.EVERY_S = 0.05
brucectl()
"""


@pytest.mark.crash
@pytest.mark.long
def test_through_kills(tmp_path: Path) -> None:
    """`--continuous` beside a live daemon, killed some times at any moment: no gap and no double."""
    lake = tmp_path / "lake"
    with RunningBruce(tmp_path, NOWHERE) as bruce, (tmp_path / "said").open("wb") as said:
        command = ["archive", str(bruce.spool), "--to", str(lake), "--table", "iceberg", "--compact"]
        stored = 0
        for number in range(8):
            running = subprocess.Popen(
                [sys.executable, "-c", KILLED, *command, "--continuous"], stdout=said, stderr=said
            )
            try:
                until = time.monotonic() + 2.5 + 0.13 * number
                while time.monotonic() < until:
                    bruce.send([encode(b"clicks", b"%d" % i) for i in range(stored, stored + 40)])
                    stored += 40
                    time.sleep(0.05)
                assert running.poll() is None, (tmp_path / "said").read_text()
            finally:
                running.send_signal(signal.SIGKILL)
                running.wait()
        bruce.await_status(lambda seen: seen.watermarks.synced == stored)
        last = subprocess.run(
            [sys.executable, "-c", KILLED, *command], capture_output=True, text=True, check=False, timeout=120
        )
        assert (last.returncode, last.stderr) == (0, "")
        table = table_in(lake)
        assert [row["sequence"] for row in rows_of(table)] == list(range(stored))
        assert len(table.metadata.snapshots) > 8


SPARK = """
import sys
from pyspark.sql import SparkSession

jars, metadata = sys.argv[1:]
session = SparkSession.builder.master("local[1]").config("spark.jars", jars)
session = session.config("spark.ui.enabled", "false").getOrCreate()
rows = session.read.format("iceberg").load(metadata)
print(rows.count(), rows.select("sequence").distinct().count(), rows.where("topic = 'clicks'").count())
"""
JARS = MavenJars("Iceberg for Spark", ROOT / "tools/iceberg_jars/pom.xml", ROOT / ".cache/iceberg/1.11.0")


@pytest.mark.long
@pytest.mark.spark
def test_spark_reads_it(
    archive: Callable[..., ArchiveReport],
    spool: SpoolFixture,
    tmp_path: Path,
    oldest: Path,  # noqa: F811
) -> None:
    """Behind appends and a compaction. On PySpark 4.0: no Iceberg runs on the newest PySpark yet."""
    try:
        jars = ",".join(map(str, JARS.fetch().glob("*.jar")))
    except JarsMissing as error:
        pytest.skip(f"no Iceberg for Spark: {error}")
    for number in range(3):
        fill(spool, 40)
        archive(compact=number == 1)
    place = table_in(tmp_path / "lake").metadata_location
    done = subprocess.run(
        [sys.executable, "-c", SPARK, jars, place],
        env=environment(oldest),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["120", "120", "60"]
