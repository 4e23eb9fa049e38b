"""The records of Kafka as a dataset of Arrow's: one consumer reads the ranges one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

import pyarrow as pa
from pyarrow import dataset

from dispatch.consumer import open_consumer
from pipeline.embedded.dataset import Scanned
from pipeline.kafka.ranges import Range
from pipeline.kafka.records import read_range, to_arrow
from pipeline.source.fields import CONTENT, RECORDS, REPLAYED, to_schema


class RecordDataset(Scanned):
    """The records of some ranges; `plan` chooses them when a scan begins."""

    def __init__(self, properties: Mapping[str, str], plan: Callable[[], Sequence[Range]]) -> None:
        super().__init__(to_schema(name for name, *_ in (*RECORDS, CONTENT, REPLAYED)))
        self._properties, self._plan = dict(properties), plan

    def rows(self, schema: pa.Schema, condition: dataset.Expression | None) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Raises Unreachable, BadProperty, JobFailed."""
        ranges = self._plan()
        self.rows_known += sum(one.end - one.start for one in ranges)
        with closing(open_consumer(self._properties)) as consumer:
            for one in ranges:
                for messages in read_range(consumer, one):
                    yield to_arrow(messages, one, schema)
