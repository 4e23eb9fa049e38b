"""A computed column is the same in either engine."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pipeline.computed import Computed
from pipeline.engine import Engine
from spool.format.wire import encode
from tests.spool.fixture import SpoolFixture


def lengths(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
    """The number and the length of each value, as one number."""
    for numbers, values in batches:
        yield pa.array(
            [
                100 * number.as_py() + len(value.as_py())
                for number, value in zip(numbers, values, strict=True)
            ],
            pa.int64(),
        )


def test_of_columns_that_are_not_asked_for(engine: Engine, spool: SpoolFixture) -> None:
    """Over all batches of a spool; the columns that it is made of need not be among those of the table."""
    for first in range(0, 600, 100):
        spool.append([encode(b"t", bytes(i % 7)) for i in range(first, first + 100)])
    spool.step()
    spool.crash()
    made = Computed("made", pa.int64(), lengths, ("sequence", "value"))
    with engine.working():
        rows = engine.spools([str(spool.options.directory)], ["topic", "sequence", "value"], made)
        found = engine.collect(rows.select("made").where("made >= 0"))
    assert sorted(row["made"] for row in found) == [100 * i + i % 7 for i in range(600)]
