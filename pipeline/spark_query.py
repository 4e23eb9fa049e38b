"""SQL over the views `spool` and `archive`, on Spark.

`spool` has the columns of `pipeline.source.schema`. Only those that the SQL can mean are read: Spark asks a
Python data source for all. Damaged ranges are rows of it if the SQL names `damaged`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pipeline.archive.log import is_iceberg
from pipeline.errors import BadQuery, JobFailed
from pipeline.source.archived import read_archive
from pipeline.source.schema import SCHEMA

_DAMAGE = frozenset({"damaged", "damaged_bytes"})
_WORD = re.compile(r"\w+")
_ALL = re.compile(r"\btable\b|\|>", re.IGNORECASE)
"""Beside a star, the other ways to ask for all columns without their names."""
_COUNT = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)
_SENTENCE = re.compile(r"\s*\[[\w.]+\] (.+?)\.?(?: SQLSTATE:| Verify|\n)")
_PLACE = re.compile(r"SQLSTATE: \w+;? ?\(?(line \d+),? (pos \d+)")


def query(session: SparkSession, sql: str, spools: Sequence[str], archive: str | None) -> DataFrame:
    """The result of the SQL; spools are looked up when they are read. Raises BadQuery for wrong SQL.

    Only queries: a statement that writes, creates or sets something is refused.
    """
    schema = StructType([SCHEMA[name] for name in columns_of(sql)])
    session.read.format("bruce").schema(schema).load(list(spools)).createOrReplaceTempView("spool")
    with wrong_sql():
        if archive is not None:
            if is_iceberg(archive):
                raise JobFailed(f"{archive} is an Iceberg table: `brucectl query` reads it")
            read_archive(session, archive).createOrReplaceTempView("archive")
        # Spark has no public way to tell a query from a command.
        session._jsparkSession.sessionState().sqlParser().parseQuery(sql)  # noqa: SLF001
        return session.sql(sql)


@contextmanager
def wrong_sql() -> Iterator[None]:
    """Raise BadQuery, one sentence, for an error that fills a screen in Spark."""
    try:
        yield
    except PySparkException as error:
        if (found := _SENTENCE.match(str(error))) is None:
            raise
        place = f" ({' '.join(where.groups())})" if (where := _PLACE.search(str(error))) else ""
        hint = "; give --archive DIR" if "view `archive`" in found[1] else ""
        raise BadQuery(f"{found[1]}{place}{hint}") from error


def columns_of(sql: str) -> list[str]:
    """The columns of `spool` that a query can mean, in order: those that it names, or all."""
    words = {word.lower() for word in _WORD.findall(sql)}
    starred = "*" in _COUNT.sub("", sql) or "select" not in words or _ALL.search(sql)
    wanted = set(SCHEMA.names) - _DAMAGE if starred else {"sequence"}
    return [name for name in SCHEMA.names if name in wanted | words]
