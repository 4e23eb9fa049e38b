"""A consumer that reads the offsets it is told to, and leaves no trace: no group, nothing committed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException

from dispatch.diagnosis import KafkaError, explain_errors
from dispatch.errors import BadProperty
from dispatch.options import demand_credentials

_SETTINGS = {
    "group.id": "bruce-reader",  # never joined: partitions are assigned
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    # Nothing of brokers that fail: that is told once, by `Listener.why`.
    "log_level": "2",
}
_REMEMBERED = 64
"""Errors: brokers that are away give two a second each."""


class Listener(Consumer):
    """A consumer that knows why it does not get on."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._errors: deque[KafkaError] = deque(maxlen=_REMEMBERED)
        super().__init__({**properties, "error_cb": self._remember})

    def _remember(self, error: Any) -> None:
        self._errors.append(KafkaError(time.time(), error.name(), error.str()))

    def why(self, error: KafkaException) -> str:
        """What made a call fail: what is wrong with the connections, in words, or else librdkafka's own."""
        # It serves what `_remember` is told.
        self.poll(0)
        return explain_errors(self._errors) or str(error.args[0].str())


def open_consumer(properties: Mapping[str, str]) -> Listener:
    """With librdkafka's properties for the way to the brokers, which go before ours. Raises BadProperty."""
    demand_credentials(properties)
    try:
        return Listener({**_SETTINGS, **properties})
    except KafkaException as error:
        # Such as: No such configuration property: "..."
        raise BadProperty("", f"librdkafka refuses the [kafka] properties: {error.args[0].str()}") from error
