"""Reading from Kafka: a consumer that leaves no trace, and the search for the record of one message.

The consumer reads the offsets that it is given. It joins no group, and commits nothing. The record of a
message is found by the header `bruce-id`, near its timestamp. The first of that name is ours: those behind it
are the sender's, and name no message.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from gc import get_referents
from operator import methodcaller
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from dispatch.diagnosis import KafkaError, explain_errors
from dispatch.errors import BadProperty, Code, Unreachable
from dispatch.header_names import HEADER_BYTES, HEADER_NAME
from dispatch.options import demand_credentials
from dispatch.timing import CONSUMER_ANSWER_S, CONSUMER_POLL_S

ALONE = {
    "group.id": "bruce-reader",  # never joined: partitions are assigned
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "earliest",
}
"""The properties of a consumer that leaves no trace."""
_SETTINGS = {
    **ALONE,
    "isolation.level": "read_committed",
    # Every reader knows where it ends: a broker would wait there for half a second, with the next partition.
    "fetch.wait.max.ms": "10",
    # librdkafka would look again a second after its queue was full, which a reader empties in a third of it.
    "fetch.queue.backoff.ms": "10",
    # Nothing about brokers that fail: `Listener.why` says that once.
    "log_level": "2",
}
_REMEMBERED = 64
"""Errors: brokers that are away give two a second each."""

_BATCH = 1000
_SEQUENCE_AT, _HIGHEST_BIT = 16, 0x80
"""In the value of our header: the uuid of the spool is before it."""

Headers = Sequence[tuple[str, bytes | None]]
"""The name and the value of each header of a record, in order."""
NAMELESS = "\ufffd"
"""In place of a header's name that is not UTF-8."""
_ID_NAME = HEADER_NAME.decode()
# Not `message.headers()`: in a hot loop Python leaves out the check that makes an error of it when the method
# returns something and has failed all the same.
_headers_of = methodcaller("headers")


class Listener(Consumer):
    """A consumer that can say why it makes no progress."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._errors: deque[KafkaError] = deque(maxlen=_REMEMBERED)
        super().__init__({**properties, "error_cb": self._remember})

    def _remember(self, error: Any) -> None:
        self._errors.append(KafkaError(time.time(), error.name(), error.str()))

    def why(self, error: KafkaException) -> str:
        """Why a call failed: the trouble with the connections in our words, or else librdkafka's own."""
        # This calls `_remember`.
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


class Wanted(NamedTuple):
    """A message as its record would be known."""

    topic: str
    stamp: bytes
    """The header's value, 24 bytes."""
    from_ms: int
    """No record of it has an earlier timestamp, ms since the epoch."""


class RecordPosition(NamedTuple):
    """The position of a record in Kafka."""

    partition: int
    offset: int
    timestamp_ms: int


def find_records(
    properties: Mapping[str, str], wanted: Wanted, first: int | None = None, seconds: float = 60.0
) -> list[RecordPosition]:
    """All records of a message, in Kafka's order, partition by partition; [] when there is none.

    `first`: the partition to look at before the others. A record whose sender's clock was wrong is found
    only if its timestamp is not before `from_ms`. Raises BadProperty, Unreachable, which is also what is
    raised when `seconds` are over before all was read.
    """
    deadline = time.monotonic() + seconds
    with closing(open_consumer(properties)) as consumer:
        try:
            starts = _starts(consumer, wanted, min(seconds, CONSUMER_ANSWER_S))
            starts.sort(key=lambda start: start.partition != first)
            return [found for start in starts for found in _search(consumer, start, wanted, deadline)]
        except KafkaException as error:
            code, why = error.args[0].code(), consumer.why(error)
            raise Unreachable(code, f"Kafka cannot be searched: {why}") from error


def _starts(consumer: Consumer, wanted: Wanted, timeout_s: float) -> list[TopicPartition]:
    """Of each partition the first offset whose record is not older; without those that have none."""
    found = consumer.list_topics(wanted.topic, timeout=timeout_s).topics[wanted.topic]
    asked = [TopicPartition(wanted.topic, number, wanted.from_ms) for number in sorted(found.partitions)]
    if not asked:
        return []
    return [at for at in consumer.offsets_for_times(asked, timeout=timeout_s) if at.offset != OFFSET_END]


def _search(
    consumer: Consumer, start: TopicPartition, wanted: Wanted, deadline: float
) -> Iterable[RecordPosition]:
    _, end = consumer.get_watermark_offsets(start, timeout=CONSUMER_ANSWER_S)
    consumer.assign([start])
    offset = start.offset
    while offset < end:
        if time.monotonic() > deadline:
            raise Unreachable(
                int(Code.TIMED_OUT),
                f"the search of {wanted.topic} [{start.partition}] was not over in time: "
                f"it came to offset {offset} of {end}",
            )
        for message in consumer.consume(_BATCH, CONSUMER_POLL_S):
            if (error := message.error()) is None:
                offset = _offset(message) + 1
                if _is_wanted(message, wanted.stamp):
                    yield RecordPosition(start.partition, offset - 1, message.timestamp()[1])
            elif error.name() == "_PARTITION_EOF":
                offset = end
            elif not (error.retriable() or error.code() < 0):
                raise KafkaException(error)


def _offset(message: Any) -> int:
    return int(message.offset())


def _is_wanted(message: Any, stamp: bytes) -> bool:
    headers = read_headers(message)
    at = find_id(headers)
    return at is not None and headers[at][1] == stamp


def read_headers(message: Any) -> Headers:
    """The headers of a record that was consumed, whoever produced it."""
    try:
        return _headers_of(message) or ()
    except SystemError:
        # For a name that is not UTF-8 confluent_kafka has made a pair with a null pointer in front, which
        # Python must not touch, and the next call gives it without an error. The pair itself tells how many
        # objects it has.
        headers = [
            pair if len(get_referents(pair)) == len(pair) else (NAMELESS, pair[-1])
            for pair in message.headers()
        ]
        message.set_headers(headers)
        return headers


def is_id(value: bytes | None) -> bool:
    """Whether the value of a header `bruce-id` is one: sequences never use the highest bit."""
    return value is not None and len(value) == HEADER_BYTES and value[_SEQUENCE_AT] < _HIGHEST_BIT


def find_id(headers: Headers) -> int | None:
    """Which of a record's headers names its message; None: it has no id."""
    for at, (name, value) in enumerate(headers):
        if name == _ID_NAME:
            return at if is_id(value) else None
    return None
