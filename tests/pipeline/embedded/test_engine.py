"""DuckDB as an engine: its errors are ours, and nothing of it stays behind."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline.embedded.engine import open_engine
from pipeline.engine import f
from pipeline.errors import JobFailed
from spool.errors import NoSpool
from tests.spool.fixture import SpoolFixture


def test_errors(spool: SpoolFixture) -> None:
    """An error of a reader comes out as it was raised; one of DuckDB's is a sentence."""
    spool.crash()
    nowhere = f"{spool.options.directory}/nowhere"
    with open_engine() as engine, pytest.raises(NoSpool, match=f"{nowhere} holds"), engine.working():
        engine.collect(engine.spools([nowhere], ["sequence"]))
    with open_engine() as engine, pytest.raises(JobFailed, match="DuckDB: Conversion"), engine.working():
        engine.collect(engine.table(pa.table({"text": ["no number"]})).select(f.col("text").cast("long")))


def test_two_after_each_other() -> None:
    """Each has tables and a connection of its own, which ends with it."""
    for number in range(2):
        with open_engine() as engine, engine.working():
            table = engine.table(pa.table({"n": [number]}))
            assert engine.collect(table) == [{"n": number}]


def test_one_within_another() -> None:
    """Neither uses the tables of the other, and the first goes on when the second has ended."""
    with open_engine() as first, first.working():
        ours = first.table(pa.table({"n": [1]}))
        with open_engine() as second, second.working():
            assert second.collect(second.table(pa.table({"m": [2]})).select("m")) == [{"m": 2}]
            assert first.collect(ours.select((f.col("n") + 1).alias("k"))) == [{"k": 2}]
        assert first.collect(ours.select((f.col("n") + 2).alias("k"))) == [{"k": 3}]
