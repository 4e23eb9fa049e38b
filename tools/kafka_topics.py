"""Topics of a cluster under test."""

from __future__ import annotations

import time

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import KafkaError as ClientError
from confluent_kafka.cimpl import NewTopic

from tools.kafka_install import KafkaError

ATTEMPTS = 3
ANSWER_S = 30.0
"""The timeout of an attempt, in seconds."""
UNFENCED_S = 3.0
"""A broker that was frozen counts as away until its next heartbeat, every 2 s."""
_UNANSWERED = (ClientError._TIMED_OUT, ClientError.REQUEST_TIMED_OUT)  # noqa: SLF001  (librdkafka's own code)
_REPEATED = (*_UNANSWERED, ClientError.INVALID_REPLICATION_FACTOR)


def make_topics(bootstrap: str, wanted: list[NewTopic], *, answer_s: float = ANSWER_S) -> None:
    """Make topics; return when the controller has made them. Raises KafkaError.

    A request without an answer is repeated on a new connection, as an operator would; so is one that came
    while brokers counted as away, which Kafka calls too few of them.
    """
    left = wanted
    failures: dict[str, ClientError] = {}
    for attempt in range(ATTEMPTS):
        failures = _attempt(bootstrap, left, answer_s)
        refused = {name: error for name, error in failures.items() if error.code() not in _REPEATED}
        # The request before this one may have been carried out, and only its answer was lost.
        exists = ClientError.TOPIC_ALREADY_EXISTS
        there = {name for name, error in refused.items() if attempt and error.code() == exists}
        if refused.keys() - there:
            raise KafkaError("; ".join(f"topic {n} was not made: {e.str()}" for n, e in refused.items()))
        left = [topic for topic in left if topic.topic in failures.keys() - there]
        if not left:
            return
        if any(error.code() == ClientError.INVALID_REPLICATION_FACTOR for error in failures.values()):
            time.sleep(UNFENCED_S)
    names = ", ".join(sorted(topic.topic for topic in left))
    last = "; ".join(sorted({error.str() for error in failures.values()}))
    raise KafkaError(f"{bootstrap} did not make {names} in {ATTEMPTS} x {answer_s:.0f} s: {last}")


def _attempt(bootstrap: str, topics: list[NewTopic], answer_s: float) -> dict[str, ClientError]:
    """Request topics once; the errors, by topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    failures = {}
    made = admin.create_topics(topics, operation_timeout=answer_s, request_timeout=answer_s) if topics else {}
    for name, future in made.items():
        try:
            future.result(2 * answer_s)
        except KafkaException as error:
            failures[name] = error.args[0]
        except TimeoutError:
            failures[name] = ClientError(_UNANSWERED[0], "the client gave no result")
    return failures
