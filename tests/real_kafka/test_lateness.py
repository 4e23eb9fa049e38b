"""A topic that deletes what comes late, as real brokers describe it: known while they are away, too."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path

import pytest

from dispatch.client import KafkaClient
from dispatch.options import DispatchOptions
from dispatch.topic_settings import Lateness, read_lateness
from spool.format.wire import encode
from spool.layout import Layout
from tests.cli.program import run
from tests.daemon import RunningBruce
from tests.real_kafka.test_bad_records import PATIENCE_S, create
from tools.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.real_kafka

ORDINARY = {"retention.ms": "-1"}
SHORT = {"retention.ms": "3000", "message.timestamp.before.max.ms": "3600000"}


def test_settings_as_brokers_have_them(kafka1: KafkaCluster) -> None:
    """Of several topics at once; one that Kafka does not have is left out."""
    short, log_time, ordinary = (
        create(kafka1, config).encode()
        for config in (SHORT, {"message.timestamp.type": "LogAppendTime"}, ORDINARY)
    )
    options = DispatchOptions(kafka={"bootstrap.servers": kafka1.bootstrap})
    with closing(KafkaClient(options)) as client:
        found = client.fetch_lateness([short, log_time, ordinary, b"absent"], PATIENCE_S)
    assert found == {
        short: Lateness(3.0, 3600.0),
        log_time: Lateness(None, None),
        ordinary: Lateness(None, None),
    }


@pytest.mark.long
def test_the_status_says_it_while_kafka_is_away(kafka1: KafkaCluster, tmp_path: Path) -> None:
    """Of the topic that deletes such messages, not of the other; a restart in the outage forgets nothing."""
    short, ordinary = create(kafka1, SHORT, 1), create(kafka1, ORDINARY, 1)

    def send(value: bytes) -> None:
        now_ms = time.time_ns() // 1_000_000
        bruce.send(encode(topic.encode(), value, timestamp=now_ms) for topic in (short, ordinary))

    def late() -> list[str]:
        report = json.loads(run("status", "--json", environ=bruce.environ).stdout)
        return [one["sentence"] for one in report["unhealthy"] if one["condition"] == "late"]

    with RunningBruce(tmp_path, kafka1.bootstrap) as bruce:
        send(b"early")
        bruce.await_true(lambda: short.encode() in read_lateness(Layout(bruce.spool)), PATIENCE_S)
        bruce.await_status(lambda s: s.delivered == 2, PATIENCE_S)
        assert late() == []
        kafka1.freeze(1)
        send(b"late")
        bruce.await_status(lambda s: s.received == 4)
        bruce.kill9()
        bruce.start()
        bruce.await_true(late, PATIENCE_S)
        (sentence,) = late()
        assert sentence.startswith(
            f"topic {short} keeps messages for 3 s from their own timestamps, and the "
        )
        assert sentence.endswith(
            "raise retention.ms of the topic, or set its message.timestamp.type to LogAppendTime"
        )
        kafka1.thaw(1)
        bruce.await_status(lambda s: s.delivered == 4, PATIENCE_S)
        assert late() == []
