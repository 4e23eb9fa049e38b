"""SQL over spools and archives gives the rows of Spark, and reaches nothing else."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.embedded.query import ask
from pipeline.errors import BadQuery, JobFailed
from spool.errors import NoSpool
from spool.format.wire import encode_message
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 300
ANSWERS = [
    "SELECT topic, count(*), min(sequence), max(sequence) FROM spool GROUP BY topic",
    "SELECT sequence, key, value, partition_key, to_partition, timestamp_ms FROM spool WHERE sequence < 20",
    "SELECT received_at = created_at, uid, pid, host, delivered FROM spool WHERE topic = 't1'",
    "SELECT count(*) FROM spool WHERE created_at > TIMESTAMP '2026-11-21 00:00:00'",
    "SELECT frame_offset, segment FROM spool WHERE value IS NULL",
    "SELECT sum(a.sequence) FROM spool a JOIN spool b ON b.sequence = a.sequence + 1",
]
"""In the SQL that both engines know."""


def fill(spool: SpoolFixture) -> str:
    """Messages of all kinds, in several segments; the path of the spool."""
    noon = 1_795_000_000_000
    for first in range(0, COUNT, 10):
        spool.append(
            [
                encode_message(
                    b"t%d" % (i % 3),
                    None if i % 50 == 7 else b"v%d" % i,
                    key=None if i % 5 else b"k",
                    timestamp=noon + i,
                    partition_key=i if i % 4 == 0 else None,
                    headers=[("n", b"%d" % i)] * (i % 3),
                )
                for i in range(first, first + 10)
            ]
        )
        spool.step()
    spool.crash()
    return str(spool.layout.directory)


def answer(sql: str, *paths: str, archive: str | None = None) -> list[tuple[Any, ...]]:
    """All rows."""
    with ask(sql, paths, archive) as found:
        return list(found.rows())


@pytest.mark.spark
def test_the_same_as_spark(spark: SparkSession, spool: SpoolFixture) -> None:
    """Both engines give the same rows."""
    from pipeline.spark_query import query

    path = fill(spool)
    for sql in ANSWERS:
        theirs = [tuple(map(plain, row)) for row in query(spark, sql, [path], None).collect()]
        ours = [tuple(map(plain, row)) for row in answer(sql, path)]
        assert sorted(ours, key=repr) == sorted(theirs, key=repr), sql
        assert ours


def plain(value: object) -> object:
    """Both have bytes of a type of their own."""
    return bytes(value) if isinstance(value, bytearray) else value


def test_values(spool: SpoolFixture) -> None:
    """Headers are lists, times have a zone, and a sum is a number however large."""
    path = fill(spool)
    ((headers, created, total),) = answer(
        "SELECT any_value(headers) FILTER (sequence = 2), max(created_at), sum(sequence) FROM spool", path
    )
    assert headers == [{"key": "n", "value": b"2"}] * 2
    assert created == datetime.fromtimestamp(1_795_000_000.299, UTC)
    assert total == sum(range(COUNT))
    assert type(total) is int


def test_an_archive(tmp_path: Path, spool: SpoolFixture) -> None:
    """Its files by topic and day are one table; those of jobs that have not ended are not in it."""
    for place, sequence in (
        ("topic=a%2Fb/date=2026-11-21", 1),
        ("_bruce/staging/1/topic=a/date=2026-11-21", 2),
    ):
        folder = tmp_path / "archive" / place
        folder.mkdir(parents=True)
        parquet.write_table(pa.table({"sequence": [sequence]}), folder / "part.parquet")
    archive = str(tmp_path / "archive")
    sql = "SELECT a.sequence, a.topic, a.date, s.topic FROM archive a JOIN spool s USING (sequence)"
    assert answer(sql, fill(spool), archive=archive) == [(1, "a/b", date(2026, 11, 21), "t1")]
    with pytest.raises(JobFailed, match="holds no archive"):
        answer("SELECT 1", archive=str(spool.layout.directory))
    with pytest.raises(JobFailed, match="nowhere cannot be read: "):
        answer("SELECT 1", archive=str(tmp_path / "nowhere"))


WRONG = {
    "SELECT nope FROM spool": 'Binder Error: Referenced column "nope" not found',
    "SELEC": "Parser Error: syntax error",
    "SELECT 1/0::INT + 'x'::INT": "Conversion Error",
    "SELECT * FROM archive": "archive does not exist!; give --archive DIR",
    "": "this is no query",
    "SELECT 1; SELECT 2": "this is no query",
    "CREATE TABLE x AS SELECT 1": "this is no query",
    "COPY spool TO '/tmp/stolen'": "this is no query",
    "SET threads = 1": "this is no query",
    "ATTACH '/tmp/other.db'": "this is no query",
    "INSTALL httpfs": "this is no query",
    "SELECT * FROM '/etc/passwd'": "does not exist",
    "SELECT * FROM read_csv('/etc/passwd')": "file system operations are disabled",
    "SELECT * FROM glob('/etc/*')": "file system operations are disabled",
    "SELECT * FROM read_parquet('http://127.0.0.1:1/x')": "Error",
    "SELECT * FROM paths": "Table with name paths does not exist",
    "SELECT getenv('HOME')": "Error",
}


@pytest.mark.parametrize("sql", WRONG)
def test_wrong_sql(sql: str, spool: SpoolFixture) -> None:
    """It is refused by one sentence: no file but the views, no address, no extension, no variable of ours."""
    paths = [str(spool.layout.directory)]
    with pytest.raises(BadQuery) as raised, ask(sql, paths) as found:
        list(found.rows())
    assert WRONG[sql] in str(raised.value)
    assert "\n" not in str(raised.value)


def test_no_spool(tmp_path: Path) -> None:
    """The error is that of the spool, not of the SQL."""
    with pytest.raises(NoSpool, match="holds no spool"):
        answer("SELECT count(*) FROM spool", str(tmp_path / "nowhere"))


def test_the_page_s_examples(spool: SpoolFixture) -> None:
    """The queries in docs/query.md run."""
    page = (Path(__file__).resolve().parents[3] / "docs/query.md").read_text(encoding="utf-8")
    examples = [part.split('"')[0] for part in page.split('brucectl query "')[1:]]
    path = fill(spool)
    assert len(examples) > 3
    for sql in examples:
        assert json.dumps(answer(sql, path), default=str)


def test_the_page_s_program(spool: SpoolFixture, capsys: pytest.CaptureFixture[str]) -> None:
    """DuckDB finds the dataset by the name of its variable, as docs/query.md has it."""
    page = (Path(__file__).resolve().parents[3] / "docs/query.md").read_text(encoding="utf-8")
    _, program = (part.split("```")[0] for part in page.split("```python")[1:])
    exec(program.replace("/var/lib/bruce", fill(spool)), {})
    assert "t2" in capsys.readouterr().out
