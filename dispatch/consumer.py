"""A consumer that reads the offsets it is told to, and leaves no trace: no group, nothing committed."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException

from dispatch.errors import BadProperty
from dispatch.options import demand_credentials

_SETTINGS = {
    "group.id": "bruce-reader",  # never joined: partitions are assigned
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    # Only errors: it also warns of every producer's property, and of each broker that is away for a moment.
    "log_level": "3",
}


def open_consumer(properties: Mapping[str, str]) -> Consumer:
    """With librdkafka's properties for the way to the brokers, which go before ours. Raises BadProperty."""
    demand_credentials(properties)
    try:
        return Consumer({**_SETTINGS, **properties})
    except KafkaException as error:
        # Such as: No such configuration property: "..."
        raise BadProperty("", f"librdkafka refuses the [kafka] properties: {error.args[0].str()}") from error
