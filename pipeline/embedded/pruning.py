"""Segments that a condition leaves out: their footers say that no message of theirs can meet it.

A footer bounds the sequence numbers and times of its segment, and lists the topics. pyarrow finds for a file
of a dataset whether a condition contradicts the facts known of it; here the files are segments, and it opens
none.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyarrow import dataset, fs

from pipeline.source.plan import SpoolPlan
from pipeline.source.pushdown import bounds_of
from pipeline.source.segments import topic_name
from spool.format.segment_format import Footer
from spool.index.log_end import has_unlisted

_FORMAT = dataset.ParquetFileFormat()
_NOWHERE = fs.LocalFileSystem()


def prune(plan: SpoolPlan, condition: dataset.Expression, schema: pa.Schema) -> SpoolPlan:
    """The plan of the segments that may hold a message which meets the condition, over columns of `schema`.

    Rows of damage are left out with their segments.
    """
    by_first = {
        str(part.first_sequence): segment for part, segment in zip(plan.parts, plan.segments, strict=True)
    }
    facts = {first: _facts(int(first), segment.footer) for first, segment in by_first.items()}
    topics = {first: _topics(segment.footer) for first, segment in by_first.items()}
    wanted = _possible(
        {name: dataset.field("topic") == name for names in topics.values() for name in names or ()},
        condition,
        schema,
    )
    return plan.narrow(
        {
            int(first)
            for first in _possible(facts, condition, schema)
            if topics[first] is None or not wanted.isdisjoint(topics[first] or ())
        }
    )


def _possible(
    facts: Mapping[str, dataset.Expression], condition: dataset.Expression, schema: pa.Schema
) -> set[str]:
    """The names whose facts do not contradict the condition."""
    numbers = dict(enumerate(facts))
    files = [
        _FORMAT.make_fragment(str(number), _NOWHERE, partition_expression=facts[name])
        for number, name in numbers.items()
    ]
    whole = dataset.FileSystemDataset(files, schema, _FORMAT, _NOWHERE)
    return {numbers[int(file.path)] for file in whole.get_fragments(filter=condition)}


def _facts(first: int, footer: Footer | None) -> dataset.Expression:
    """The bounds of the numbers and times of a segment's messages."""
    known = bounds_of({}, first, footer).columns
    sequence, received = dataset.field("sequence"), dataset.field("received_at")
    facts = (sequence >= known["sequence"][0]) & (sequence <= known["sequence"][1])
    if footer is None:
        return facts
    begin, end = (pa.scalar(moment, pa.timestamp("us")) for moment in known["received_at"])
    return facts & (received >= begin) & (received <= end)


def _topics(footer: Footer | None) -> set[str] | None:
    """All topics of a segment's messages; None if they are not known."""
    if footer is None or has_unlisted(footer):
        return None
    return {topic_name(name) for name, *_ in footer.topics}
