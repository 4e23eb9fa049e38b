"""`spark.read.format("bruce-kafka")`: the records of Kafka as a DataFrame, without Spark's own connector.

    spark.read.format("bruce-kafka").option("topics", "clicks,views").option("bootstrap.servers", ...).load()

Options: `topics`, separated by commas (default: all but Kafka's own), and any property of librdkafka. The
plan of the query takes the offsets; the source commits nothing and joins no group. `withheld`: the ranges
that are read instead, committed or not (pipeline.kafka.ranges.show_ranges).

With a schema that names fewer columns, it makes no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamWriter, InputPartition
from pyspark.sql.types import StructType

from dispatch.consumer import open_consumer
from pipeline.job import freeze_imports
from pipeline.kafka.ends import uncommitted
from pipeline.kafka.ranges import Range, plan_ranges, read_ranges
from pipeline.kafka.records import read_range, to_arrow
from pipeline.kafka.writer import KafkaRowWriter, KafkaWriter
from pipeline.source.schema import CONTENT, KAFKA_SCHEMA, REPLAYED, to_arrow_schema
from pipeline.source.source import check_schema
from pipeline.spark_release import ARROW_STREAM_WRITERS, has

_OURS = ("path", "paths", "topics", "withheld", "checkpointlocation")
KNOWN = StructType([*KAFKA_SCHEMA.fields, CONTENT, REPLAYED])


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """A range as Spark's input partition."""

    range: Range


class KafkaSource(DataSource):
    """The data source `bruce-kafka`."""

    @classmethod
    def name(cls) -> str:
        return "bruce-kafka"

    def schema(self) -> StructType:
        return KAFKA_SCHEMA

    def reader(self, schema: StructType) -> RangeReader:
        check_schema(schema, KNOWN)
        options = dict(self.options)
        topics = options["topics"].split(",") if "topics" in options else None
        withheld = read_ranges(options["withheld"]) if "withheld" in options else None
        return RangeReader(self._properties(), topics, schema, withheld)

    def writer(self, schema: StructType, overwrite: bool) -> KafkaWriter:  # noqa: ARG002, FBT001
        """The writer of `pipeline.kafka.writer`; nothing is overwritten."""
        return KafkaWriter(self._properties(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, FBT001, N802
        """The same, batch by batch."""
        if not has(ARROW_STREAM_WRITERS):
            return KafkaRowWriter(self._properties(), schema)
        from pipeline.kafka.writer import KafkaArrowWriter  # noqa: PLC0415

        return KafkaArrowWriter(self._properties(), schema)

    def _properties(self) -> dict[str, str]:
        """librdkafka's."""
        return {name: value for name, value in self.options.items() if name not in _OURS}


class RangeReader(DataSourceReader):
    """Reads offset ranges into Arrow batches."""

    def __init__(
        self,
        properties: Mapping[str, str],
        topics: list[str] | None,
        schema: StructType,
        withheld: list[Range] | None,
    ) -> None:
        self._properties = dict(properties) if withheld is None else uncommitted(properties)
        self._topics, self._schema, self._withheld = topics, schema, withheld

    def partitions(self) -> list[RangePartition]:
        withheld = self._withheld
        ranges = plan_ranges(self._properties, self._topics) if withheld is None else withheld
        return [RangePartition(one) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without ranges Spark makes a partition of its own.
        if not isinstance(partition, RangePartition):
            return
        schema = to_arrow_schema(self._schema)
        with closing(open_consumer(self._properties)) as consumer:
            for messages in read_range(consumer, partition.range):
                yield to_arrow(messages, partition.range, schema)
        freeze_imports("read Kafka")
