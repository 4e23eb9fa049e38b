"""The identity of a cluster, and of its topics: a topic that is deleted and made again is another one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from dispatch.errors import BadProperty, Unreachable
from dispatch.options import demand_credentials

_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Sixteen bytes of 0 in base64: topics of brokers before Kafka 2.8 have no id."""


class Identity(NamedTuple):
    """Names that Kafka gives once."""

    cluster: str
    """Empty: Kafka does not tell."""
    topics: Mapping[str, str]
    """The id of each topic that has one."""


def identity_of(properties: Mapping[str, str], topics: Iterable[str], timeout_s: float) -> Identity:
    """The identity of a cluster and of these topics in it.

    `properties`: librdkafka's, for the way to the brokers. Raises BadProperty, and Unreachable when no broker
    answers in time.
    """
    demand_credentials(properties)
    wanted, deadline = sorted(set(topics)), time.monotonic() + timeout_s
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
    found = _topic_ids(admin, wanted, max(0.1, deadline - time.monotonic())) if is_told else {}
    return Identity(str(metadata.cluster_id or ""), found)


def _topic_ids(admin: AdminClient, topics: list[str], timeout_s: float) -> dict[str, str]:
    found: dict[str, str] = {}
    for topic, answer in admin.describe_topics(TopicCollection(topics), request_timeout=timeout_s).items():
        try:
            found[topic] = str(answer.result().topic_id)
        except KafkaException:
            # It is gone, or we may not ask: then it is taken for the one that it was.
            continue
    return {topic: one for topic, one in found.items() if one != _NO_ID}
