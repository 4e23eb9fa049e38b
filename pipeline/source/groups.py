"""Small parts together: a task of Spark's costs as much as reading some megabytes.

A fleet has hundreds of spools with little in each, and a young spool has small segments. Parts that follow
one another are one task, up to a size that leaves enough tasks for a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from pipeline.source.segments import DamagedFile, Part
from spool.format.segment_format import HEADER_BYTES

LEAST_BYTES, MOST_BYTES = 16 << 20, 512 << 20
"""The size of a group: a smaller one costs more to begin than to read; a larger one keeps others waiting."""
TASKS = 256
"""Between these bounds, a query has about as many."""
MOST_PARTS = 64
"""In one group: opening a segment takes about a millisecond."""


@dataclass(frozen=True)
class Group(InputPartition):
    """Parts that one task reads, one after the other."""

    parts: tuple[Part | DamagedFile, ...]


def group(parts: Sequence[Part | DamagedFile]) -> list[Group]:
    """The parts in groups, in order."""
    sizes = list(map(_size, parts))
    limit = min(max(sum(sizes) // TASKS, LEAST_BYTES), MOST_BYTES)
    groups: list[list[Part | DamagedFile]] = []
    room = 0
    for part, size in zip(parts, sizes, strict=True):
        if not groups or size > room or len(groups[-1]) == MOST_PARTS:
            groups.append([])
            room = limit
        groups[-1].append(part)
        room -= size
    return [Group(tuple(one)) for one in groups]


def parts_of(partition: InputPartition) -> Iterable[Part | DamagedFile]:
    """The parts of a group; none of the partition that Spark makes of its own when a plan has none."""
    return partition.parts if isinstance(partition, Group) else ()


def _size(part: Part | DamagedFile) -> int:
    """The bytes to read; MOST_BYTES if the plan does not tell."""
    if isinstance(part, DamagedFile):
        return 0
    begin = part.start[0] if part.start else HEADER_BYTES
    return MOST_BYTES if part.end is None else part.end - begin
