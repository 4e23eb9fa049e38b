"""`write.format("bruce-kafka")`: rows into Kafka, by a job of a user's own.

    placed = route(stored, routes).where("partition >= 0")
    arrange(placed).write.format("bruce-kafka").mode("append").option("bootstrap.servers", ...).save()
    arrange(placed).writeStream.format("bruce-kafka").option("checkpointLocation", ...)....start()

Nothing is leased, and nothing written down in any spool: a daemon does not learn of it. What Kafka refuses
fails the task. Options are properties of librdkafka. A task or a batch that is tried again sends its messages
again, unless there is

    transactional.id   names this job, and no other: each (spool, partition) goes in transactions of its own,
           under this name and its own. Who tries again, and a copy that speculation makes, finds in their
           progress records what he need not send. Who comes behind a later batch or job sends nothing, and
           fails. The rows must be arranged with `in_transactions=True`, and get the same partitions again
    bruce.progress.topic   where those records are; `bruce-progress` by default

Of two attempts at a task the one that begins last has the name, and the other is fenced: Kafka takes nothing
of it any more. It follows the other, and ends well when that has done all. When nothing is heard of that for
120 s (dispatch.lane), since it died, it fails, and Spark tries the task again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from dispatch.closing import epoch_of
from dispatch.options import DispatchOptions
from pipeline.errors import BadSchema, JobFailed
from pipeline.records import open_topic, patiently
from pipeline.sink import COLUMNS, Delivery, carry_all
from spool.wire import reason_name

TRANSACTIONAL_ID = "transactional.id"
PROGRESS_TOPIC = "bruce.progress.topic"


def plan_delivery(options: Mapping[str, str], schema: StructType) -> Delivery:
    """What these options ask for. Raises BadSchema when the rows lack a column."""
    if missing := [name for name in COLUMNS if name not in schema.names]:
        raise BadSchema(
            f"to be delivered, rows need the columns {', '.join(missing)}: "
            "pass the frame through pipeline.route.route and pipeline.sink.arrange"
        )
    kafka = dict(options)
    name = kafka.pop(TRANSACTIONAL_ID, "")
    topic = kafka.pop(PROGRESS_TOPIC, DispatchOptions().progress_topic)
    mode = "exactly_once" if name else "at_least_once"
    return Delivery(DispatchOptions(kafka=kafka, mode=mode, progress_topic=topic), transactional_id=name)


class KafkaWriter(DataSourceArrowWriter):
    """Writes the rows of one DataFrame, which are in order.

    Raises BadSchema when it lacks a column, Unreachable when Kafka must be asked for records and is away.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        delivery = plan_delivery(options, schema)
        self._delivery = (
            replace(delivery, epoch=_next_epoch(delivery)) if delivery.in_transactions else delivery
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task. Raises JobFailed when Kafka will never take one of them."""
        return write_rows(iterator, self._delivery)


def _next_epoch(delivery: Delivery) -> int:
    """One that no job of this name has had. Raises Unreachable."""
    name = f"{delivery.transactional_id}-"
    with open_topic(delivery.options, name) as topic:
        family, _ = patiently(topic.read_family)
    return 1 + epoch_of(family.values(), "", None)


def write_rows(batches: Iterator[pa.RecordBatch], delivery: Delivery) -> WriterCommitMessage:
    """Send the rows of one task. Raises JobFailed when Kafka will never take one of them."""
    for spool, (sequences, reasons) in carry_all(batches, delivery):
        refused = np.flatnonzero(reasons)
        if len(refused):
            first = int(refused[0])
            raise JobFailed(
                f"Kafka refuses message {sequences[first]} of spool {spool}: "
                f"{reason_name(int(reasons[first]))}; {len(refused)} are refused so far"
            )
    return WriterCommitMessage()
