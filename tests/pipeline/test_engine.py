"""The words in use are those of the engine whose job it is."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from pipeline.engine import Engine, Words, f, together, using


def test_words_end_with_their_job() -> None:
    """Within a job its engine's words are in use; behind an error, too, those of before are back."""
    ours = Words(
        SimpleNamespace(lit=lambda value: ("ours", value)),
        None,
        lambda rows, *by: (rows, by),
        lambda name: name,
    )
    other = Words(
        SimpleNamespace(lit=lambda value: ("other", value)), None, lambda rows, *by: rows, lambda name: name
    )

    def fail() -> None:
        with using(other):
            assert f.lit(1) == ("other", 1)
            raise KeyError

    with using(ours):
        with pytest.raises(KeyError):
            fail()
        assert f.lit(1) == ("ours", 1)
        rows: object = together("rows", "a")  # type: ignore[arg-type]
        assert rows == ("rows", ("a",))


def test_tables_and_rows(working: Engine) -> None:
    """A table keeps its types and its nulls through either engine; functions and windows are its own."""
    kinds = [pa.int64(), pa.string(), pa.binary(), pa.bool_()]
    columns = [[1, 2, None], ["a", None, "c"], [b"\xff", b"", None], [True, None, False]]
    table = pa.table(dict(zip("nsbt", map(pa.array, columns, kinds), strict=True)))
    frame = working.table(table)
    assert sorted(working.collect(frame), key=str) == sorted(table.to_pylist(), key=str)
    found = together(frame, "n").groupBy("n").agg(f.sum(f.octet_length("b")).alias("size"))
    sizes = {row["n"]: row["size"] for row in working.collect(found)}
    assert sizes == {1: 1, 2: 0, None: None}
    assert type(sizes[1]) is int
