"""Files by folder: a file for each run of rows of one, with sizes that are kept."""

from __future__ import annotations

import io
from datetime import date

import pyarrow as pa
from pyarrow import parquet

from pipeline.embedded.folder_writer import FolderWriter, Sizes

KINDS = {"topic": pa.string(), "date": pa.date32(), "n": pa.int64(), "value": pa.binary()}
SCHEMA = pa.schema({name: KINDS[name] for name in ("n", "value")}.items())


class Kept(io.BytesIO):
    """A file whose bytes stay when it is closed."""

    def close(self) -> None:
        """Leave it open."""


def written(rows: list[tuple[str, int]], sizes: Sizes, *, batch: int) -> list[tuple[str, list[int]]]:
    """The folder and the numbers of each file, of (topic, day of the month) in order."""
    made: dict[str, Kept] = {}
    columns = {
        "topic": [topic for topic, _ in rows],
        "date": [date(2026, 11, day) for _, day in rows],
        "n": list(range(len(rows))),
        "value": [b"%d" % number * 20 for number in range(len(rows))],
    }
    table = pa.table({name: pa.array(columns[name], KINDS[name]) for name in KINDS})
    with FolderWriter(SCHEMA, lambda name: made.setdefault(name, Kept()), sizes) as writer:
        writer.add_all(table.to_batches(batch))
    assert writer.names == list(made)
    assert writer.topics == {topic: columns["topic"].count(topic) for topic in sorted(set(columns["topic"]))}
    found = [
        (name.rpartition("/")[0], parquet.read_table(io.BytesIO(file.getvalue())))
        for name, file in made.items()
    ]
    assert all(one.schema == SCHEMA for _, one in found)
    return [(folder, one["n"].to_pylist()) for folder, one in found]


def test_a_file_for_each_folder() -> None:
    """Over the ends of batches, and with a name that no folder may have as it is."""
    rows = [("a/b", 1)] * 3 + [("c", 1)] * 2 + [("c", 2)] * 4
    for batch in (1, 2, 100):
        assert written(rows, Sizes(), batch=batch) == [
            ("topic=a%2Fb/date=2026-11-01", [0, 1, 2]),
            ("topic=c/date=2026-11-01", [3, 4]),
            ("topic=c/date=2026-11-02", [5, 6, 7, 8]),
        ]


def test_sizes() -> None:
    """A file ends with the group that reaches its size; a group is written when so many bytes wait."""
    found = written([("a", 1)] * 1000, Sizes(file_bytes=4096, group_bytes=2048), batch=10)
    assert len(found) >= 4
    assert [number for _, numbers in found for number in numbers] == list(range(1000))
