"""SQL on Spark: the views, their columns, and its errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spool.format.wire import encode, encode_message
from tests.daemon import ROOT
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


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
    from pipeline.source.schema import SCHEMA
    from pipeline.spark_query import columns_of

    all_of_a_message = [name for name in SCHEMA.names if not name.startswith("damaged")]
    assert columns_of(sql) == (columns or all_of_a_message)


@pytest.mark.oldest_spark
def test_both_views_in_one_query(spark: SparkSession, spool: SpoolFixture, tmp_path: Path) -> None:
    """Archived messages and later ones, joined by spool and sequence."""
    from pipeline.archive.job import run_archive
    from pipeline.archive.spark import SparkFiles
    from pipeline.spark_engine import SparkEngine
    from pipeline.spark_query import query

    paths, archive = [str(spool.options.directory)], str(tmp_path / "archive")
    spool.append([encode(b"orders", b"%d" % i) for i in range(10)])
    spool.step()
    run_archive(SparkEngine(spark), SparkFiles(spark, archive), paths)
    spool.append([encode(b"orders", b"%d" % i) for i in range(10, 13)])
    spool.step()
    sql = "SELECT cast(value AS string) FROM spool LEFT ANTI JOIN archive USING (spool, sequence) ORDER BY 1"
    assert [row[0] for row in query(spark, sql, paths, archive).collect()] == ["10", "11", "12"]


def test_the_examples_of_docs_spark(spark: SparkSession, spool: SpoolFixture) -> None:
    """They are right SQL; the one about headers and partitions finds both."""
    from pipeline.spark_query import query

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
    from pipeline.spark_query import query, wrong_sql

    spark.catalog.dropTempView("archive")
    with (
        pytest.raises(BadQuery, match=sentence.replace("(", r"\(").replace(")", r"\)")) as raised,
        wrong_sql(),
    ):
        query(spark, sql, [str(spool.options.directory)], None).collect()
    assert "\n" not in str(raised.value)
