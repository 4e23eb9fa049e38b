"""`spark.readStream.format("bruce-stamps")`: ids, hashes and times of Kafka's records, for the witness.

Executors read Kafka and hash. A row is a piece: one task's, of some ranges of offsets. Its columns
are few and large, so that Spark carries 40 bytes for each record, and touches none of them.

    ranges      the offsets that were read (`pipeline.kafka.ranges.show_ranges`), records or none
    spools      16 bytes for each record that has a header bruce-id: the spool's uuid
    sequences, contents, sent_ms      8 bytes for each, as in `dispatch.record_consumer.Records`

Options: `startingOffsets`, a JSON object {topic: {partition: offset}}, which names all partitions to read;
`maxOffsetsPerTrigger`, of one batch; `tasks`, so many for a batch if it is large; `prefix`, of the names of
topics that a mirror has copied; and any property of librdkafka.

A piece tells itself which offsets it has: whoever keeps positions needs no checkpoint of Spark's, and finds a
piece that is given again, or one that is missing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from dispatch.errors import Unreachable
from dispatch.record_consumer import RecordConsumer, Records
from pipeline.job import freeze_imports
from pipeline.kafka.ranges import Range, read_ranges, show_ranges

NAME = "bruce-stamps"
BATCH_OFFSETS = 4_000_000
"""Of one batch, at most: 160 MB for the driver."""
TASK_OFFSETS, LEAST_OFFSETS = 250_000, 50_000
"""Of one task, at most; and of a task where there are several."""
ANSWER_S = 5.0
PAUSE_S = 0.5
"""Before the next question where nothing has come."""
POLL_S = 0.2
SILENCE_S = 60.0
"""A task that gets nothing for so long ends, with what it has."""

_COLUMNS = ("spools", "sequences", "contents", "sent_ms")
SCHEMA = StructType([StructField("ranges", StringType()), *(StructField(n, BinaryType()) for n in _COLUMNS)])
_ARROW = pa.schema([("ranges", pa.string()), *((name, pa.binary()) for name in _COLUMNS)])
_OPTIONS = {
    name.lower(): name for name in ("startingOffsets", "maxOffsetsPerTrigger", "tasks", "prefix", "path")
}
_UUID_BYTES = 16
Offsets = dict[str, dict[str, int]]
"""By topic, and by partition in digits: as JSON has them."""
Positions = dict[tuple[str, int], int]
Numbers = npt.NDArray[np.int64]


class Piece(NamedTuple):
    """The result of one task."""

    ranges: list[Range]
    spools: npt.NDArray[np.uint8]
    """uint8[n, 16]"""
    sequences: Numbers
    """int64[n], as the other two; see `dispatch.record_consumer.Records`."""
    contents: Numbers
    sent_ms: Numbers


def pieces_of(table: pa.Table) -> Iterator[Piece]:
    """The pieces in rows of this format, in their order."""
    for row in zip(*(table.column(name) for name in _ARROW.names), strict=True):
        raw = [np.frombuffer(column.as_buffer() or b"", np.uint8) for column in row[1:]]
        sequences, contents, sent_ms = (one.view(np.int64) for one in raw[1:])
        spools = raw[0].reshape(-1, _UUID_BYTES)
        yield Piece(read_ranges(row[0].as_py()), spools, sequences, contents, sent_ms)


def to_offsets(positions: Mapping[tuple[str, int], int]) -> Offsets:
    """Positions by topic and partition, as Spark keeps them."""
    found: Offsets = {}
    for (topic, partition), offset in sorted(positions.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def to_positions(offsets: Offsets) -> Positions:
    """The same back."""
    return {(topic, int(at)): offset for topic, parts in offsets.items() for at, offset in parts.items()}


@dataclass(frozen=True)
class Task(InputPartition):
    """Ranges that one task reads."""

    ranges: tuple[Range, ...]


class StampSource(DataSource):
    """The data source `bruce-stamps`. It has streams only."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  (Spark's)
        options = dict(self.options)
        return StampStream(
            {name: value for name, value in options.items() if name.lower() not in _OPTIONS},
            self.options.get("prefix", ""),
            to_positions(json.loads(self.options["startingOffsets"])),
            int(self.options.get("maxOffsetsPerTrigger", BATCH_OFFSETS)),
            int(self.options.get("tasks", 1)),
        )


class StampStream(DataSourceStreamReader):
    """The stream of some partitions.

    Before 4.2 PySpark does not say from where `latestOffset` is to go on, so this remembers which batch it
    planned last.
    """

    def __init__(
        self, properties: Mapping[str, str], prefix: str, begin: Positions, most: int, tasks: int
    ) -> None:
        self._properties, self._prefix = dict(properties), prefix.encode()
        self._begin, self._most, self._tasks = begin, most, tasks
        self._reached: Positions | None = None
        self._turn = 0
        self._asker: RecordConsumer | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The state for an executor: without the consumer of the driver."""
        return {**self.__dict__, "_asker": None}

    # The names are Spark's.

    def initialOffset(self) -> Offsets:  # noqa: N802
        return to_offsets(self._begin)

    def latestOffset(self) -> Offsets:  # type: ignore[override]  # noqa: N802  (as it was before 4.2)
        """The end of the next batch; Kafka being away is no error."""
        start = self._begin if self._reached is None else self._reached
        end, self._turn = advance(start, self._ends(), self._most, self._turn)
        if end == start:
            time.sleep(PAUSE_S)
        return to_offsets(end)

    def _ends(self) -> Positions:
        """Behind the last record of each partition that may be read."""
        self._asker = self._asker or RecordConsumer(self._properties)
        try:
            found = self._asker.ends(ANSWER_S, self._begin)
        except Unreachable:
            return {}
        return {one: high for one, (_, high) in found.items()}

    def partitions(self, start: Offsets, end: Offsets) -> list[Task]:
        begin, until = to_positions(start), to_positions(end)
        self._reached = until
        ranges = [Range(*one, begin[one], offset) for one, offset in until.items() if offset > begin[one]]
        return [Task(tuple(some)) for some in share(ranges, self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without ranges Spark makes a partition of its own.
        if not isinstance(partition, Task):
            return
        with closing(RecordConsumer(self._properties, self._prefix)) as consumer:
            yield read_piece(consumer, partition.ranges)
        freeze_imports("stamps")

    def commit(self, end: Offsets) -> None:
        """Nothing is kept."""


def advance(start: Positions, ends: Positions, most: int, turn: int) -> tuple[Positions, int]:
    """How far a batch of `most` offsets goes, and the turn of the next one.

    One partition after the other gives TASK_OFFSETS at most, so that few are read in part. The turn says
    which one begins.
    """
    names = sorted(start)
    found = dict(start)
    for count in range(len(names)):
        one = names[(turn + count) % len(names)]
        wanted = max(0, min(ends.get(one, 0) - start[one], TASK_OFFSETS))
        found[one] += min(wanted, most)
        if wanted >= most:
            return found, (turn + count + (wanted == most)) % len(names)
        most -= wanted
    return found, turn


def share(ranges: Sequence[Range], tasks: int) -> list[list[Range]]:
    """Ranges for each task: so many tasks, or more where each would have too much, or fewer if too little."""
    total = sum(one.end - one.start for one in ranges)
    size = min(max(-(-total // tasks), LEAST_OFFSETS), TASK_OFFSETS)
    shared: list[list[Range]] = []
    room = 0
    for one in ranges:
        start = one.start
        while start < one.end:
            if not room:
                shared.append([])
                room = size
            end = min(one.end, start + room)
            shared[-1].append(one._replace(start=start, end=end))
            room -= end - start
            start = end
    return shared


def read_piece(
    consumer: RecordConsumer, ranges: Sequence[Range], silence_s: float = SILENCE_S
) -> pa.RecordBatch:
    """The piece of these ranges, one row. A range of which Kafka gives no more ends before its end.

    Raises Unreachable for an error that does not pass by itself.
    """
    begin = {(one.topic, one.partition): one.start for one in ranges}
    ends = {(one.topic, one.partition): one.end for one in ranges}
    consumer.assign(begin)
    limits = [_table(consumer.topics, one) for one in (begin, ends)]
    read, positions, heard = [], begin, time.monotonic()
    while any(positions[one] < end for one, end in ends.items()) and time.monotonic() - heard < silence_s:
        read.append(_within(consumer.consume(POLL_S), *limits))
        if consumer.positions != positions:
            positions, heard = consumer.positions, time.monotonic()
    told = [
        one._replace(end=max(one.start, min(one.end, positions[one.topic, one.partition]))) for one in ranges
    ]
    columns = [b"".join(map(np.ndarray.tobytes, column)) for column in zip(*read, strict=True)]
    row = show_ranges(told), *(columns or [b""] * len(_COLUMNS))
    return pa.RecordBatch.from_arrays([pa.array([one]) for one in row], schema=_ARROW)


def _table(topics: Sequence[str], offsets: Positions) -> Numbers:
    """int64[topics, partitions]: the offsets by the numbers of a consumer."""
    found = np.zeros((len(topics), 1 + max((partition for _, partition in offsets), default=0)), np.int64)
    index = {topic: number for number, topic in enumerate(topics)}
    for (topic, partition), offset in offsets.items():
        found[index[topic], partition] = offset
    return found


def _within(records: Records, begin: Numbers, end: Numbers) -> tuple[npt.NDArray[Any], ...]:
    """The columns of those records that are in the ranges."""
    at = records.topic, records.partition
    is_in = (records.offset >= begin[at]) & (records.offset < end[at])
    return tuple(one[is_in] for one in (records.spool, records.sequence, records.content, records.sent_ms))
