"""A connection reads what it is given, and an interrupt reaches it."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from pipeline.embedded.connection import connect, values_of, working
from pipeline.errors import BadQuery


def test_no_files(tmp_path: Path) -> None:
    """Neither are files read or written, nor can that be allowed; its own folder is gone at its end."""
    file = tmp_path / "rows.csv"
    file.write_text("n\n1\n", encoding="utf-8")
    with connect() as connection:
        (setting,) = connection.execute("SELECT current_setting('temp_directory')").fetchone() or ("",)
        assert Path(setting).is_dir()
        for sql in (
            f"SELECT * FROM '{file}'",
            f"COPY (SELECT 1) TO '{tmp_path / 'out.csv'}'",
            "SET enable_external_access = true",
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(sql)
    assert not Path(setting).exists()
    assert list(tmp_path.iterdir()) == [file]


def test_steps_are_done_elsewhere() -> None:
    """The result and the error of a step come back to the thread that asked."""
    with connect() as connection, working(connection) as work:
        assert work(lambda: connection.sql("SELECT 1").fetchall()) == [(1,)]
        with pytest.raises(duckdb.Error, match="nope"):
            work(lambda: connection.sql("SELECT nope").fetchall())


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_time_that_python_cannot_have(zone: str | None) -> None:
    """Of a sender's own making, perhaps: one sentence, and no traceback."""
    for microseconds in (1 << 60, -(1 << 60)):
        with pytest.raises(BadQuery, match="not within the years"):
            values_of(pa.array([microseconds], pa.timestamp("us", zone)))
