"""The identity of a cluster, and of its topics: a topic that is deleted and made again is another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from dispatch.errors import BadProperty, Unreachable
from dispatch.options import demand_credentials

_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Sixteen bytes of 0 in base64: topics of brokers before Kafka 2.8 have no id."""
_PASSING = frozenset(
    (
        KafkaError._TIMED_OUT,  # noqa: SLF001  (its public name)
        KafkaError._TRANSPORT,  # noqa: SLF001  (its public name)
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001  (its public name)
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
    )
)
"""Codes of errors that say nothing of a topic."""


class Identity(NamedTuple):
    """Names that Kafka gives once."""

    cluster: str
    """Empty: Kafka does not tell."""
    topics: Mapping[str, str]
    """The id of each topic that has one."""


def identity_of(properties: Mapping[str, str], topics: Iterable[str], timeout_s: float) -> Identity:
    """The identity of a cluster and of these topics in it.

    `properties`: librdkafka's, for the way to the brokers. `timeout_s`: for each of two requests. Raises
    BadProperty, and Unreachable when no broker answers in time.
    """
    demand_credentials(properties)
    wanted = sorted(set(topics))
    try:
        admin = AdminClient({**properties, "log_level": "2"})
    except KafkaException as error:
        raise BadProperty("", f"librdkafka refuses the [kafka] properties: {error.args[0].str()}") from error
    try:
        metadata = admin.list_topics(timeout=timeout_s)
    except KafkaException as error:
        said = error.args[0]
        raise Unreachable(said.code(), f"Kafka does not tell its id: {said.str()}") from None
    # A cluster without a controller, as the embedded one is, would be asked in vain.
    is_told = bool(wanted) and metadata.controller_id in metadata.brokers
    found = _topic_ids(admin, wanted, timeout_s) if is_told else {}
    return Identity(str(metadata.cluster_id or ""), found)


def _topic_ids(admin: AdminClient, topics: list[str], timeout_s: float) -> dict[str, str]:
    found: dict[str, str] = {}
    for topic, answer in admin.describe_topics(TopicCollection(topics), request_timeout=timeout_s).items():
        try:
            found[topic] = str(answer.result().topic_id)
        except KafkaException as error:
            said = error.args[0]
            if said.code() in _PASSING:
                raise Unreachable(
                    said.code(), f"Kafka does not tell the ids of topics: {said.str()}"
                ) from None
            # It is gone, or we may not ask: then it is taken for the one that it was.
    return {topic: one for topic, one in found.items() if one != _NO_ID}
