"""/metrics on real Kafka, of a producer that a broker throttles."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import pytest

from spool.format.wire import encode
from tests.daemon import RunningBruce, free_port
from tests.real_kafka.client_quota import limit_producer
from tests.real_kafka.test_bruce import PATIENCE_S, create
from tests.status.promql import Labels, holds, read
from tests.status.test_metrics import ALERTS
from tools.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.real_kafka

MESSAGES, VALUE_BYTES = 3000, 1000
ALLOWED = 250_000.0
"""Bytes a second. A broker looks at ten seconds and has more then: it wants a pause of three, which is
shorter than our client waits for an answer."""
TIMES = ("round_trip", "queue", "throttle")


def test_a_broker_that_throttles(kafka1: KafkaCluster, tmp_path: Path) -> None:
    """Size, latency, round trip and queue match the traffic; throttle time is shown, and wakes the worker."""
    topic, client = (f"{kind}-{uuid.uuid4().hex}" for kind in ("metrics", "client"))
    create(kafka1, topic.encode())
    limit_producer(kafka1.bootstrap, client, ALLOWED)
    port = free_port()
    settings = {"kafka": {"client.id": client}, "status": {"port": port}}
    sent = [encode(topic.encode(), random.randbytes(VALUE_BYTES), partition_key=n) for n in range(MESSAGES)]
    with RunningBruce(tmp_path, kafka1.bootstrap, settings=settings) as bruce:

        def scrape() -> dict[str, dict[Labels, float]]:
            return read(bruce.metrics().encode(), instance="h", job="bruce")

        def total(name: str) -> float:
            return sum(scrape()[f"bruce_{name}"].values())

        # A series grows from nothing only if it is there before.
        bruce.send(sent[:1])
        bruce.await_true(lambda: total("broker_queue_seconds_count") > 0, PATIENCE_S)
        before = scrape()
        bruce.send(sent[1:])
        bruce.await_true(lambda: total("broker_throttle_seconds_sum") > 0, PATIENCE_S)
        bruce.await_status(lambda s: s.delivered == MESSAGES, PATIENCE_S)
        # Once for each request that a message went into.
        bruce.await_true(lambda: total("broker_queue_seconds_count") >= MESSAGES, PATIENCE_S)
        # The page may be of a moment ago: a throttled request that went twice counts before it has ended.
        bruce.await_true(lambda: total("delivery_latency_seconds_count") >= MESSAGES, PATIENCE_S)
        now = scrape()
    found = {name: sum(values.values()) for name, values in now.items()}
    assert found["bruce_message_size_bytes_count"] == MESSAGES
    assert found["bruce_message_size_bytes_sum"] == sum(map(len, sent))
    assert found["bruce_delivery_latency_seconds_count"] == MESSAGES
    assert all(found[f"bruce_broker_{name}_seconds_count"] > 0 for name in TIMES)
    assert all(found[f"bruce_broker_{name}_seconds_sum"] > 0 for name in TIMES)
    assert found["bruce_delivery_latency_seconds_sum"] > 0
    assert [dict(labels)["broker"] for labels in now["bruce_broker_throttle_seconds_sum"]] == ["1"]
    assert [labels["broker"] for labels in holds(ALERTS["BruceThrottled"]["expr"], before, now)] == ["1"]
