"""The rows of a part: its messages, and what is damaged or cannot be read, as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from pipeline.errors import JobFailed
from pipeline.source.columns import damage_to_arrow, to_arrow
from pipeline.source.fields import UNREAD
from pipeline.source.segments import DamagedFile, Part, SegmentReading
from spool.errors import ReadFailed

PERMISSIVE, DROPMALFORMED, FAILFAST = MODES = ("permissive", "dropmalformed", "failfast")
"""The modes for damaged frames, named as in Spark's own readers: rows, nothing, an error."""

_UNREAD = "the disk gives an error for {}; see to it, and start the job again"

BATCH_BYTES = 1 << 20
"""Of a batch handed to Spark, about. The JVM writes it down and then looks at each row of it: a batch that
fits the cache of one core costs a tenth less. The columns are made of larger chunks, and cut without a
copy."""


def read_part(partition: Part | DamagedFile, schema: pa.Schema, mode: str) -> Iterator[pa.RecordBatch]:
    """The messages of a part, and its damaged ranges according to `mode` (MODES).

    A damaged range is a row only if the schema has the column `damaged`: a query without it wants messages.
    Raises SegmentGone when the segment is removed, JobFailed with FAILFAST when it is damaged. Raises
    JobFailed, too, for a range that the disk cannot read, unless `skips_read_errors`: then that is a row.
    """
    if isinstance(partition, DamagedFile):
        yield from _read_nothing(partition, schema, mode)
        return
    reading = SegmentReading(partition, skip_read_errors=skips_read_errors(schema.names, mode))
    try:
        for piece in reading.pieces():
            _refuse(reading, mode)
            yield from _cut(to_arrow(piece, partition, schema))
    except ReadFailed as error:
        raise JobFailed(_UNREAD.format(_named(error))) from error
    _refuse(reading, mode)
    if reading.error:
        yield damage_to_arrow(reading.unread, partition, schema, _named(reading.error))
    if mode == PERMISSIVE and reading.damaged and "damaged" in schema.names:
        yield damage_to_arrow(reading.damaged, partition, schema)


def _read_nothing(file: DamagedFile, schema: pa.Schema, mode: str) -> Iterator[pa.RecordBatch]:
    """The row, or error, of a segment without a readable header."""
    whole = [(0, file.bytes)]
    if file.error:
        # Only a plan that skips read errors has such a file.
        yield damage_to_arrow(whole, file, schema, f"{file.location}: {file.error}")
    elif mode == FAILFAST:
        raise JobFailed(
            f"{file.location} has a damaged header, and nothing of it can be read; "
            "mode = permissive makes a row of it, dropmalformed passes it over"
        )
    elif mode == PERMISSIVE and "damaged" in schema.names:
        yield damage_to_arrow(whole, file, schema)


def skips_read_errors(columns: Iterable[str], mode: str) -> bool:
    """Whether read errors end nothing: a query that names the column `unread` gets a row for each."""
    return UNREAD[0] in columns and mode != FAILFAST


def _named(error: ReadFailed) -> str:
    return f"{error.filename}: {error.strerror}"


def _cut(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about BATCH_BYTES, and at least eight rows."""
    # A multiple of 8: bitmaps are then cut between bytes, and need no copy.
    count = max(1, BATCH_BYTES * rows.num_rows // max(1, rows.nbytes)) + 7 & ~7
    for first in range(0, rows.num_rows, count):
        yield rows.slice(first, count)


def _refuse(reading: SegmentReading, mode: str) -> None:
    if mode == FAILFAST and reading.damaged:
        (start, end), part = reading.damaged[0], reading.part
        raise JobFailed(
            f"segment {part.number} of {part.location} is damaged: {end - start} bytes at offset {start} "
            "hold no good frame; mode = permissive makes a row of it, dropmalformed passes it over"
        )
