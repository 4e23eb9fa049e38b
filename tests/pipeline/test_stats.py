"""Statistics: what is measured is what was stored."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pipeline.stats import discard_hours
from spool.format.wire import encode, encode_message
from spool.index.segment_list import SegmentList
from spool.log.intake_totals import HOUR_NS
from spool.marks.discarded import Changes, Discard
from spool.marks.marks import Marks
from tests.daemon import ROOT
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

from cli.terminal.output import Form, write_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

NOON = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()) * 10**9


def store(spool: SpoolFixture, second: int, count: int, **message: object) -> None:
    """So many messages of a second, counted from noon."""
    datagrams = [encode(b"orders", b"v" * 10, **message) for _ in range(count)]  # type: ignore[arg-type]
    spool.append(datagrams, received_ns=NOON + second * 10**9)


def test_hours_peaks_sizes_and_keys(spark: SparkSession, spool: SpoolFixture) -> None:
    """By hour and topic: counts, bytes of keys and values, the busiest second, and the most frequent key."""
    from pipeline.stats import run_stats

    store(spool, 0, 5, key=b"even")
    store(spool, 1, 9, key=b"hot")
    store(spool, 3599, 2, partition_key=7)
    store(spool, 3600, 4, key=b"\xff")
    spool.append([encode(b"views", b"")], received_ns=NOON)
    spool.step()
    found = run_stats(spark, [str(spool.options.directory)])
    orders, views = found["topics"]
    hours = [(hour["hour"], hour["messages"], hour["peak"]) for hour in orders["hours"]]
    assert hours == [("2026-03-01T12:00:00Z", 16, 9), ("2026-03-01T13:00:00Z", 4, 4)]
    assert (orders["messages"], orders["peak"], orders["keys"]) == (20, 9, 4)
    assert orders["bytes"] == 20 * 10 + 5 * 4 + 9 * 3 + 4 * 1
    assert (orders["median_bytes"], orders["most_bytes"]) == (13, 14)
    assert orders["top_keys"][:2] == [{"key": "hot", "messages": 9}, {"key": "even", "messages": 5}]
    assert (views["messages"], views["bytes"], views["keys"], views["top_keys"]) == (1, 0, 0, [])
    assert found["total"]["messages"] == 21


def test_one_topic(spark: SparkSession, spool: SpoolFixture) -> None:
    """Others do not count."""
    from pipeline.stats import run_stats

    store(spool, 0, 3)
    spool.append([encode(b"views", b"")])
    spool.step()
    found = run_stats(spark, [str(spool.options.directory)], ["views"])
    assert [topic["topic"] for topic in found["topics"]] == ["views"]
    assert found["total"]["messages"] == 1


def test_discards_by_hour(spool: SpoolFixture) -> None:
    """The discards in frames, and those in the marks of stored messages, by the hour of reception.

    A sealed segment counts too, of which an hour ends between two marks.
    """
    spool.append([], refused={1: (2, b"\0")}, received_ns=NOON)
    for second in (0, 3599, 3600, 7200):
        store(spool, second, 10)
    spool.append([encode(b"orders", b"v")], refused={1: (5, b"\0")}, received_ns=NOON + 7300 * 10**9)
    spool.stop()
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    marks.commit(
        Changes(low_watermark=0, discarded=[Discard(np.array([5, 19, 20, 30, 39]), 15, b"orders", NOON)])
    )
    marks.close()
    noon = NOON // HOUR_NS
    assert discard_hours(spool.layout) == {
        (noon, 1): 2,
        (noon + 2, 1): 5,
        (noon, 15): 2,
        (noon + 1, 15): 1,
        (noon + 2, 15): 2,
    }


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
        ("SELECT to_partition, headers[0] FROM spool", ["spool", "sequence", "to_partition", "headers"]),
    ],
)
def test_only_what_the_sql_can_mean_is_read(sql: str, columns: list[str] | None) -> None:
    """A column that is not named is not made; a star, or a form of SQL without a list, means all."""
    pytest.importorskip("pyspark")
    from pipeline.source.schema import SCHEMA
    from pipeline.stats import columns_of

    all_of_a_message = [name for name in SCHEMA.names if not name.startswith("damaged")]
    assert columns_of(sql) == (columns or all_of_a_message)


@pytest.mark.oldest_spark
@pytest.mark.spark
def test_both_views_in_one_query(spark: SparkSession, spool: SpoolFixture, tmp_path: Path) -> None:
    """Archived messages and later ones, joined by spool and sequence."""
    from pipeline.archive import run_archive
    from pipeline.stats import query

    paths, archive = [str(spool.options.directory)], str(tmp_path / "archive")
    spool.append([encode(b"orders", b"%d" % i) for i in range(10)])
    spool.step()
    run_archive(spark, paths, archive)
    spool.append([encode(b"orders", b"%d" % i) for i in range(10, 13)])
    spool.step()
    sql = "SELECT cast(value AS string) FROM spool LEFT ANTI JOIN archive USING (spool, sequence) ORDER BY 1"
    assert [row[0] for row in query(spark, sql, paths, archive).collect()] == ["10", "11", "12"]


@pytest.mark.spark
def test_the_examples_of_docs_spark(spark: SparkSession, spool: SpoolFixture) -> None:
    """They are right SQL; the one about headers and partitions finds both."""
    from pipeline.stats import query

    page = (ROOT / "docs/spark.md").read_text(encoding="utf-8")
    examples = re.findall(r'brucectl spark query "(.*?)"', page, re.DOTALL)
    about_headers = [sql for sql in examples if "headers" in sql]
    assert (len(examples), len(about_headers)) == (2, 1)
    trace: list[tuple[str, bytes | None]] = [("trace", b"t1"), ("other", None), ("trace", None)]
    spool.append([encode(b"orders", b"v")])
    spool.append([encode_message(b"orders", None, partition=3, headers=trace)] * 2)
    spool.append([encode_message(b"orders", b"v", headers=trace[:1])])
    spool.step()
    found = {sql: query(spark, sql, [str(spool.options.directory)], None).collect() for sql in examples}
    assert sorted(map(tuple, found[about_headers[0]]), key=str) == [
        (3, "t1", 2),
        (3, None, 2),
        (None, "t1", 1),
    ]


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
def test_wrong_sql_is_one_sentence(spark: SparkSession, spool: SpoolFixture, sql: str, sentence: str) -> None:
    """Spark's screenful of an error is one line, with its position; a command is no question."""
    from pipeline.errors import BadQuery
    from pipeline.stats import query, wrong_sql

    spark.catalog.dropTempView("archive")
    with (
        pytest.raises(BadQuery, match=sentence.replace("(", r"\(").replace(")", r"\)")) as raised,
        wrong_sql(),
    ):
        query(spark, sql, [str(spool.options.directory)], None).collect()
    assert "\n" not in str(raised.value)


ROWS = [("a", b"text", datetime(2026, 1, 1).astimezone(), None), ("b", b"\xff\n", None, {"k": b"v"})]


def test_json_says_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """An object a row; bytes that are not UTF-8 are in base64, under a name that says so."""
    write_rows(["name", "data", "at", "more"], ROWS, Form.json)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["name"], first["data"], first["more"]) == ("a", "text", None)
    assert first["at"].endswith("Z")
    assert second == {"name": "b", "data_base64": "/wo=", "at": None, "more": {"k": "v"}}


def test_csv_has_a_head_and_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    """A reader of CSV gets the values back; no byte of a message reaches the terminal as a command."""
    write_rows(["name", "data"], [("a,b", b"\x1b[1m"), ("c", None)], Form.csv)
    text = capsys.readouterr().out
    assert list(csv.reader(io.StringIO(text))) == [["name", "data"], ["a,b", "\\x1b[1m"], ["c", ""]]
