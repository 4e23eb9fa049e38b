"""Topics are made whatever becomes of one request."""

from __future__ import annotations

import threading
import uuid

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tools.kafka_cluster import KafkaCluster, KafkaError
from tools.kafka_topics import make_topics
from tools.waiting import wait_until

pytestmark = pytest.mark.real_kafka

ANSWER_S = 6.0


def test_a_request_without_an_answer_is_repeated(kafka1: KafkaCluster) -> None:
    """The broker is frozen for longer than an attempt takes: the topic is made, with its partitions.

    While it stays frozen the error names topic and reason; a topic that was there before is an error, too.
    """
    name = f"topics-{uuid.uuid4().hex}"
    wanted = [NewTopic(name, 3)]
    kafka1.freeze(1)
    with pytest.raises(KafkaError, match=f"did not make {name} in 3 x 1 s: .*"):
        make_topics(kafka1.bootstrap, [NewTopic(name, 3)], answer_s=1)
    thaw = threading.Timer(1.5 * ANSWER_S, kafka1.thaw, [1])
    thaw.start()
    make_topics(kafka1.bootstrap, wanted, answer_s=ANSWER_S)
    thaw.join()
    admin = AdminClient({"bootstrap.servers": kafka1.bootstrap})
    # A broker learns of a topic after its controller has made it.
    wait_until(lambda: len(admin.list_topics(name, 30).topics[name].partitions) == 3, 60, "the topic")
    with pytest.raises(KafkaError, match=f"topic {name} was not made: .*exists"):
        make_topics(kafka1.bootstrap, wanted)
