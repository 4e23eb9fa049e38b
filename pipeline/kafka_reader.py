"""What Kafka holds, by Spark's own connector where the session has it, else by `bruce-kafka`: the same rows.

The connector is Java's client, whose properties have other names. What librdkafka's say of the way to the
brokers is told to it; where that cannot be said in its words, `bruce-kafka` reads. Which offsets are read is
taken by the same plan in either case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.identity import bruce_id
from pipeline.kafka_plan import RANGE_OFFSETS, Range, plan_ranges
from pipeline.schema import KAFKA_SCHEMA

CONNECTOR, OURS = "kafka", "bruce-kafka"
"""Spark's names for the two: what a reader is asked for by `format`."""
_CREATE_TIME = 0
_EXACT_SINCE = "1900-01-01"
"""Before that the connector moves timestamps, as Java's old calendar does."""
_SAME = ("bootstrap.servers", "client.id", "ssl.endpoint.identification.algorithm")
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_ALIASES = {"metadata.broker.list": "bootstrap.servers", "sasl.mechanism": "sasl.mechanisms"}
_TOLD = {*_SAME, "security.protocol", "sasl.mechanisms", "sasl.username", "sasl.password", "ssl.ca.location"}
_OF_THE_WAY = ("ssl.", "sasl.", "enable.ssl.", "enable.sasl.", "https.")


class Records(NamedTuple):
    """What Kafka holds, and by which of Spark's formats it is read."""

    frame: DataFrame
    """The columns of KAFKA_SCHEMA."""
    format: str
    """CONNECTOR or OURS."""


def read_kafka(session: SparkSession, properties: Mapping[str, str], topics: Sequence[str]) -> Records:
    """What these topics hold now; `properties` are librdkafka's.

    Raises Unreachable, BadProperty.
    """
    java = java_properties(properties)
    if java is not None and has_connector(session) and (ranges := plan_ranges(properties, topics, most=None)):
        return Records(_by_connector(session, java, ranges), CONNECTOR)
    source = session.read.format(OURS).options(**properties)
    return Records(source.option("topics", ",".join(topics)).load(), OURS)


def has_connector(session: SparkSession) -> bool:
    """Whether this session can load `format("kafka")`."""
    reader = (
        session.read.format(CONNECTOR).option("kafka.bootstrap.servers", "none:1").option("subscribe", "t")
    )
    try:
        reader.load()  # knows its columns without asking anybody
    except AnalysisException:
        return False
    return True


def java_properties(properties: Mapping[str, str]) -> dict[str, str] | None:
    """What Java's client must be told to reach the same brokers in the same way; None when it cannot be."""
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
        # As `bruce-kafka`: what Kafka drops meanwhile was there to be read, and is not any more.
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
        stamp["spool"].alias("bruce_spool"),
        stamp["sequence"].alias("bruce_sequence"),
    ).to(KAFKA_SCHEMA)
