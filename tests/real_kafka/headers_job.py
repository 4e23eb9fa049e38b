"""A user's own job with Spark's Kafka connector: a spool into a topic, and the topic by either source.

    python -m tests.real_kafka.headers_job SPOOL SERVERS TOPIC JARS

Prints the rows by each source, each as [offset, headers, spool, sequence], as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from pipeline.kafka.reader import CONNECTOR, OURS, _by_connector, as_kafka_rows, plan_ranges
from pipeline.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _rows(frame: DataFrame) -> list[Any]:
    asked = frame.select("offset", "headers", "bruce_spool", "bruce_sequence").orderBy("offset")
    return [
        [at, [(key, None if value is None else value.hex()) for key, value in headers], spool, sequence]
        for at, headers, spool, sequence in asked.collect()
    ]


def _main() -> None:
    spool, servers, topic, jars = sys.argv[1:]
    kafka = {"bootstrap.servers": servers}
    with open_session("local[2]", {"spark.jars": jars}) as session:
        stored = session.read.format("bruce").load(spool).withColumn("partition", f.lit(0))
        sent = as_kafka_rows(stored).write.format(CONNECTOR).option("kafka.bootstrap.servers", servers)
        sent.save()
        ranges = plan_ranges(kafka, [topic], most=None)
        ours = session.read.format(OURS).options(**kafka).option("topics", topic).load()
        theirs = _by_connector(session, kafka, ranges)
        assert theirs.schema.simpleString() == ours.schema.simpleString()
        json.dump({CONNECTOR: _rows(theirs), OURS: _rows(ours)}, sys.stdout)


if __name__ == "__main__":
    _main()
