"""The ids of topics on a real broker."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dispatch.cluster_identity import identity_of
from tests.dispatch.fixture import await_true
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics

pytestmark = pytest.mark.real_kafka


def test_a_topic_that_was_made_again_is_another(kafka1: KafkaCluster) -> None:
    """Its id differs, and nothing else; one that is not there has none."""
    names = [f"identity-{uuid.uuid4().hex}" for _ in range(2)]
    properties = {"bootstrap.servers": kafka1.bootstrap}
    make_topics(kafka1.bootstrap, [NewTopic(name, 1) for name in names])
    before = identity_of(properties, [*names, "identity-none"], 30)
    assert before.cluster
    assert before.topics.keys() == set(names)
    admin = AdminClient(properties)
    admin.delete_topics(names[:1])[names[0]].result(30)
    await_true(lambda: names[0] not in identity_of(properties, names, 30).topics)
    make_topics(kafka1.bootstrap, [NewTopic(names[0], 1)])
    await_true(lambda: names[0] in identity_of(properties, names, 30).topics)
    after = identity_of(properties, names, 30)
    assert (after.cluster, after.topics[names[1]]) == (before.cluster, before.topics[names[1]])
    assert after.topics[names[0]] != before.topics[names[0]]
