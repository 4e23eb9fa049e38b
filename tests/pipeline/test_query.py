"""SQL over spools and archives: what it finds, how it is written, and how wrong SQL is refused."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.output import Form
from cli.rows import write_rows
from spool.wire import encode
from tests.pipeline.conftest import Done
from tests.spool.rig import Rig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT topic, count(*) FROM spool GROUP BY topic", ["spool", "sequence", "topic"]),
        ("select Value from spool", ["spool", "sequence", "value"]),
        ("SELECT * FROM spool", None),
        ("SELECT s.* FROM spool s", None),
        ("FROM spool", None),
        ("TABLE spool", None),
        ("FROM spool |> WHERE sequence > 1", None),
        ("SELECT damaged FROM spool", ["spool", "sequence", "damaged"]),
    ],
)
def test_only_what_the_sql_can_mean_is_read(sql: str, columns: list[str] | None) -> None:
    """A column that is not named is not made; a star, or a form of SQL without a list, means all."""
    pytest.importorskip("pyspark")
    from pipeline.query import columns_of
    from pipeline.schema import SCHEMA

    all_of_a_message = [name for name in SCHEMA.names if not name.startswith("damaged")]
    assert columns_of(sql) == (columns or all_of_a_message)


@pytest.mark.oldest_spark
@pytest.mark.spark
def test_both_views_in_one_query(spark: SparkSession, rig: Rig, tmp_path: Path) -> None:
    """What is archived and what came later, joined by spool and sequence."""
    from pipeline.archiving import run_archive
    from pipeline.query import query

    paths, archive = [str(rig.options.directory)], str(tmp_path / "archive")
    rig.append([encode(b"orders", b"%d" % i) for i in range(10)])
    rig.step()
    run_archive(spark, paths, archive)
    rig.append([encode(b"orders", b"%d" % i) for i in range(10, 13)])
    rig.step()
    sql = "SELECT cast(value AS string) FROM spool LEFT ANTI JOIN archive USING (spool, sequence) ORDER BY 1"
    assert [row[0] for row in query(spark, sql, paths, archive).collect()] == ["10", "11", "12"]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("SELEC 1", "Syntax error at or near 'SELEC' (line 1 pos 0)"),
        ("SELECT nope FROM spool", "with name `nope` cannot be resolved"),
        ("SELECT 1 FROM archive", "The table or view `archive` cannot be found.*give --archive DIR"),
        ("DROP VIEW spool", "Syntax error at or near 'DROP'"),
        ("SELECT cast('x' AS int)", "cannot be cast"),
    ],
)
def test_wrong_sql_is_one_sentence(spark: SparkSession, rig: Rig, sql: str, sentence: str) -> None:
    """Whatever Spark says in a screenful is one line, with its place; a command is no question."""
    from pipeline.errors import BadQuery
    from pipeline.query import query, wrong_sql

    spark.catalog.dropTempView("archive")
    with (
        pytest.raises(BadQuery, match=sentence.replace("(", r"\(").replace(")", r"\)")) as raised,
        wrong_sql(),
    ):
        query(spark, sql, [str(rig.options.directory)], None).collect()
    assert "\n" not in str(raised.value)


ROWS = [("a", b"text", datetime(2026, 1, 1).astimezone(), None), ("b", b"\xff\n", None, {"k": b"v"})]


def test_json_says_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """An object a row; bytes that are not UTF-8 stand in base64, under a name that says so."""
    write_rows(["name", "data", "at", "more"], ROWS, Form.json)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["name"], first["data"], first["more"]) == ("a", "text", None)
    assert first["at"].endswith("Z")
    assert second == {"name": "b", "data_base64": "/wo=", "at": None, "more": {"k": "v"}}


def test_csv_has_a_head_and_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    """What a reader of CSV gets back; no byte of a message reaches the terminal as a command."""
    write_rows(["name", "data"], [("a,b", b"\x1b[1m"), ("c", None)], Form.csv)
    text = capsys.readouterr().out
    assert list(csv.reader(io.StringIO(text))) == [["name", "data"], ["a,b", "\\x1b[1m"], ["c", ""]]


@pytest.mark.spark
def test_command(job: Callable[..., Done], rig: Rig) -> None:
    """`brucectl spark query` writes rows, and nothing else; wrong SQL exits 2."""
    rig.append([encode(b"orders", b"%d" % i) for i in range(3)])
    rig.step()
    sql = "SELECT value, topic FROM spool ORDER BY sequence"
    done = job("query", sql, rig.options.directory, "--form", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"value": str(i), "topic": "orders"} for i in range(3)
    ]
    done = job("query", "SELECT nope FROM spool", rig.options.directory, "--form", "json")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
