"""DuckDB as an engine: its errors are ours, and nothing of it stays behind."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline.embedded.engine import DuckEngine
from pipeline.engine import f
from pipeline.errors import JobFailed
from spool.errors import NoSpool
from tests.spool.fixture import SpoolFixture


def test_errors(spool: SpoolFixture) -> None:
    """An error of a reader comes out as it was raised; one of DuckDB's is a sentence."""
    spool.crash()
    nowhere = f"{spool.options.directory}/nowhere"
    engine = DuckEngine()
    with pytest.raises(NoSpool, match=f"{nowhere} holds"), engine.working():
        engine.collect(engine.spools([nowhere], ["sequence"]))
    with pytest.raises(JobFailed, match="DuckDB: Conversion"), engine.working():
        engine.collect(engine.table(pa.table({"text": ["no number"]})).select(f.col("text").cast("long")))


def test_two_after_each_other() -> None:
    """A job leaves nothing behind: a service runs one every few seconds."""
    engine = DuckEngine()
    for number in range(2):
        with engine.working():
            table = engine.table(pa.table({"n": [number]}))
            assert engine.collect(table) == [{"n": number}]
            names = engine._connection.execute(
                "SELECT view_name FROM duckdb_views() WHERE NOT internal"
            ).fetchall()
            assert len(names) == 1
            assert len(engine._scanned) == 0


def test_one_within_another() -> None:
    """Neither uses the tables of the other, and the first goes on when the second has ended."""
    first, second = DuckEngine(), DuckEngine()
    with first.working():
        ours = first.table(pa.table({"n": [1]}))
        with second.working():
            assert second.collect(second.table(pa.table({"m": [2]})).select("m")) == [{"m": 2}]
            assert first.collect(ours.select((f.col("n") + 1).alias("k"))) == [{"k": 2}]
        assert first.collect(ours.select((f.col("n") + 2).alias("k"))) == [{"k": 3}]
