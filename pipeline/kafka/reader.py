"""The records of Kafka, by Spark's own connector if the session has it, else by `bruce-kafka`: the same rows.

Which offsets to read is decided once, on the driver, so that the job has an end. The connector is Java's
client, whose properties have other names. It gets librdkafka's properties of the connections to the brokers,
translated; if one has no translation, `bruce-kafka` reads. The same plan chooses the offsets in either case.
Java puts U+FFFD for each byte of a header's name that is not UTF-8, and we put one for the whole name.

Rows also go to Spark's connector and come from it, if its jars are present, with the header `bruce-id`.
To write them:

    placed = route(stored, routes).where("partition >= 0")
    as_kafka_rows(placed).write.format("kafka").option("kafka.bootstrap.servers", ...).save()

The connector has no transactions: a task that is tried again sends all of its rows once more. It has no
column for a record's time either: an audit calls records altered unless the topic's `message.timestamp.type`
is LogAppendTime.

To read them, and to drop duplicates:

    records = spark.read.format("kafka").option("includeHeaders", "true")...load()
    once = records.withColumn("id", bruce_id("headers")).dropDuplicates(["id"])
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from dispatch.header_names import HEADER_BYTES
from pipeline.kafka.ranges import RANGE_OFFSETS, Range, plan_ranges
from pipeline.kafka.records import CONNECTOR, OURS
from pipeline.source.schema import KAFKA_SCHEMA

HEADER = "bruce-id"
_HEADERS = "array<struct<key: string, value: binary>>"
_CREATE_TIME = 0
_EXACT_SINCE = "1900-01-01"
"""Before that the connector shifts timestamps, like Java's old calendar."""
_SAME = ("bootstrap.servers", "client.id", "ssl.endpoint.identification.algorithm")
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_ALIASES = {"metadata.broker.list": "bootstrap.servers", "sasl.mechanism": "sasl.mechanisms"}
_TOLD = {*_SAME, "security.protocol", "sasl.mechanisms", "sasl.username", "sasl.password", "ssl.ca.location"}
_OF_THE_WAY = ("ssl.", "sasl.", "enable.ssl.", "enable.sasl.", "https.")


def as_kafka_rows(frame: DataFrame) -> DataFrame:
    """key, value, topic, partition and headers of routed rows: the daemon's `bruce-id`, then the sender's.

    `frame` has those columns, perhaps without headers, and spool and sequence, as in
    `pipeline.source.schema`. The order stays: `pipeline.delivery.sink.arrange` makes it that of the log,
    within each partition.
    """
    digits = f.concat("spool", f.lpad(f.hex("sequence"), 16, "0"))
    ours = f.struct(f.lit(HEADER).alias("key"), f.unhex(digits).alias("value"))
    headers = f.array(ours).cast(_HEADERS)
    if "headers" in frame.columns:
        headers = f.concat(headers, f.coalesce("headers", _no_headers()))
    return frame.select("key", "value", "topic", "partition", headers.alias("headers"))


def bruce_id(headers: Column | str) -> Column:
    """struct<spool: string, sequence: long> of a record; null when its first header `bruce-id` is no id.

    `headers`: array<struct<key: string, value: binary>>, from Spark's Kafka connector. The column consists of
    Spark's own expressions, also on streams: there `dropDuplicatesWithinWatermark` accepts it.
    """
    column = f.col(headers) if isinstance(headers, str) else headers
    digits = f.lower(f.hex(_id_bytes(column)))
    # conv reads 64 bits without a sign; sequences never use the highest.
    sequence = f.conv(f.substring(digits, 33, 16), 16, 10).cast("long")
    named = f.struct(f.substring(digits, 1, 32).alias("spool"), sequence.alias("sequence"))
    return f.when(digits.isNotNull(), named)


def _id_bytes(headers: Column) -> Column:
    """The value of the first header `bruce-id`, if it is an id; else null."""
    # Those behind it are the sender's, who could name any message.
    first = f.try_element_at(f.filter(headers, lambda one: one["key"] == HEADER), f.lit(1))["value"]
    # Sequences never use the highest bit, which conv and casts would refuse.
    is_id = (f.octet_length(first) == HEADER_BYTES) & (f.substring(first, 17, 1) < f.lit(b"\x80"))
    return f.when(is_id, first)


def _own_headers(headers: Column) -> Column:
    """The headers without the id."""
    at = f.array_position(headers["key"], HEADER).cast("int")
    rest = f.concat(f.slice(headers, f.lit(1), at - 1), f.slice(headers, at + 1, f.size(headers)))
    return f.when(_id_bytes(headers).isNotNull(), rest).otherwise(f.coalesce(headers, _no_headers()))


def _no_headers() -> Column:
    return f.array().cast(_HEADERS)


def read_kafka(
    session: SparkSession, properties: Mapping[str, str], topics: Sequence[str], schema: StructType
) -> tuple[DataFrame, str]:
    """The records that these topics hold now, and by which format; `properties` are librdkafka's.

    `schema`: the columns that `bruce-kafka` makes; the connector makes all of KAFKA_SCHEMA.

    Raises Unreachable, BadProperty.
    """
    java = java_properties(properties)
    if java is not None and has_connector(session) and (ranges := plan_ranges(properties, topics, most=None)):
        return _by_connector(session, java, ranges), CONNECTOR
    source = session.read.format(OURS).options(**properties).schema(schema)
    return source.option("topics", ",".join(topics)).load(), OURS


def has_connector(session: SparkSession) -> bool:
    """Whether this session can load `format("kafka")`."""
    reader = (
        session.read.format(CONNECTOR).option("kafka.bootstrap.servers", "none:1").option("subscribe", "t")
    )
    try:
        reader.load()  # knows its columns without asking Kafka
    except AnalysisException:
        return False
    return True


def java_properties(properties: Mapping[str, str]) -> dict[str, str] | None:
    """Properties for Java's client that reach the same brokers in the same way; None if there are none."""
    known = {_ALIASES.get(name, name): value for name, value in properties.items()}
    if any(name.startswith(_OF_THE_WAY) and name not in _TOLD for name in known):
        return None
    told = {name: known[name] for name in _SAME if name in known}
    if told.get("ssl.endpoint.identification.algorithm") == "none":
        told["ssl.endpoint.identification.algorithm"] = ""
    protocol = known.get("security.protocol", "plaintext").upper()
    if protocol != "PLAINTEXT":
        told["security.protocol"] = protocol
    if protocol.startswith("SASL"):
        mechanism = known.get("sasl.mechanisms", "GSSAPI")
        if mechanism not in _LOGIN:
            return None
        user, password = (_quoted(known.get(f"sasl.{name}", "")) for name in ("username", "password"))
        told["sasl.mechanism"] = mechanism
        told["sasl.jaas.config"] = f"{_LOGIN[mechanism]} required username={user} password={password};"
    if "ssl.ca.location" in known:
        told |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": known["ssl.ca.location"]}
    return told


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _by_connector(session: SparkSession, java: Mapping[str, str], ranges: Sequence[Range]) -> DataFrame:
    chosen: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for one in ranges:
        chosen.setdefault(one.topic, []).append(one.partition)
        starts.setdefault(one.topic, {})[str(one.partition)] = one.start
        ends.setdefault(one.topic, {})[str(one.partition)] = one.end
    options = {
        **{f"kafka.{name}": value for name, value in java.items()},
        "kafka.isolation.level": "read_committed",
        "assign": json.dumps(chosen),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "includeHeaders": "true",
        # Like `bruce-kafka`: records that Kafka drops meanwhile are no error.
        "failOnDataLoss": "false",
        "maxRecordsPerPartition": str(RANGE_OFFSETS),
    }
    found = session.read.format(CONNECTOR).options(**options).load()
    exact = (f.col("timestampType") == _CREATE_TIME) & (f.col("timestamp") >= f.lit(_EXACT_SINCE))
    stamp = bruce_id("headers")
    return found.select(
        "topic",
        "partition",
        "offset",
        f.when(exact, f.unix_millis("timestamp")).alias("timestamp_ms"),
        "key",
        "value",
        _own_headers(f.col("headers")).alias("headers"),
        stamp["spool"].alias("bruce_spool"),
        stamp["sequence"].alias("bruce_sequence"),
    ).to(KAFKA_SCHEMA)
