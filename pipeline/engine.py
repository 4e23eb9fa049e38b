"""The engines of jobs, and the words that jobs are written in: one definition of each job runs on both.

    Spark     on a cluster or on this host            pipeline.spark_engine
    DuckDB    in this process, by SQLFrame            pipeline.embedded.engine

A job is made of functions of DataFrames in PySpark's words, which SQLFrame has for DuckDB: `f`, `Window`,
`together` and `text_of` are those of the engine in use, and Spark's outside of any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from pipeline.computed import Computed
from pipeline.kafka.ranges import Range

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Window
    from pyspark.sql import functions as f

__all__ = [
    "Column",
    "DataFrame",
    "Engine",
    "Records",
    "Window",
    "Words",
    "f",
    "hour_of",
    "second_of",
    "show_hour",
    "text_of",
    "together",
    "using",
]


class Words(NamedTuple):
    """The words of an engine."""

    functions: Any
    """Those of `pyspark.sql.functions`."""
    window: Any
    together: Callable[..., DataFrame]
    text_of: Callable[[str], Any]


class Records(NamedTuple):
    """The records of Kafka."""

    frame: DataFrame
    format: str
    """By which of Spark's formats: CONNECTOR or OURS of `pipeline.kafka.records`."""


class Engine(Protocol):
    """Reads tables, and carries out what is asked of them."""

    def working(self) -> AbstractContextManager[None]:
        """The context of a job: its words are this engine's; errors of the engine are JobFailed."""

    def table(self, rows: pa.Table) -> DataFrame:
        """A small table."""

    def spools(
        self,
        directories: Sequence[str],
        columns: Sequence[str],
        computed: Computed | None = None,
        begun: Mapping[str, int] | None = None,
    ) -> DataFrame:
        """The messages of these spools: of `fields.STORED`, UNREAD and CONTENT, and the computed column.

        `begun`: by spool, a sequence number; segments before it stay closed, others are read whole.
        """

    def records(
        self, properties: Mapping[str, str], topics: Sequence[str], columns: Sequence[str]
    ) -> Records:
        """The records that these topics hold now. Raises Unreachable, BadProperty.

        `columns`: of `fields.RECORDS`, CONTENT and REPLAYED. Spark's own connector has those of RECORDS, and
        all of them.
        """

    def withheld(self, properties: Mapping[str, str], ranges: Sequence[Range]) -> DataFrame:
        """The records of these ranges, committed or not."""

    def kept(self, frame: DataFrame) -> DataFrame:
        """The same rows, read once, for several questions within the job."""

    def collect(self, frame: DataFrame) -> list[dict[str, Any]]:
        """Its rows, by column."""


HOUR_S = 3600
_IN_USE: ContextVar[Words | None] = ContextVar("words", default=None)


@contextmanager
def using(words: Words) -> Iterator[None]:
    """Have these words in use until the context ends."""
    token = _IN_USE.set(words)
    try:
        yield
    finally:
        _IN_USE.reset(token)


def together(rows: DataFrame, *columns: str) -> DataFrame:
    """The rows, those with the same values of these columns in one task, and in their order."""
    return _words().together(rows, *columns)


def second_of(column: str) -> Column:
    """Of a time, the second that it is in, since the epoch."""
    # DuckDB rounds where Spark cuts off.
    return f.unix_seconds(f.date_trunc("second", column)).cast("long")


def hour_of(column: str) -> Column:
    """Of a time, the hour that it is in, UTC: the seconds since the epoch at its beginning."""
    seconds = second_of(column)
    return seconds - seconds % HOUR_S


def show_hour(seconds: int) -> str:
    """As 2026-11-29T12:00:00Z."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:00:00Z}"


def text_of(column: str) -> Column:
    """Bytes as text; null where they are not UTF-8."""
    found: Column = _words().text_of(column)
    return found


def _words() -> Words:
    return _IN_USE.get() or _of_spark()


def _of_spark() -> Words:
    from pyspark.sql import Window, functions  # noqa: PLC0415  (not everybody has it)

    return Words(
        functions,
        Window,
        lambda rows, *by: rows.repartition(*by).sortWithinPartitions(*by),
        lambda name: functions.try_validate_utf8(functions.col(name).cast("string")),
    )


class _InUse:
    """A word of the engine in use."""

    def __init__(self, word: str) -> None:
        self._word = word

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(_words(), self._word), name)


if not TYPE_CHECKING:
    f, Window = _InUse("functions"), _InUse("window")
    Column = DataFrame = Any
