"""Half-open connections to real brokers: bytes stop, one end goes, or no process is behind it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemon import RunningBruce, consume
from tests.proxy import Proxy, Side
from tests.real_kafka.test_bruce import PARTITIONS, check_all_there, check_totals, create, leaders
from tests.real_kafka.test_network import pids
from tests.router.outlet import keyed
from tools.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.real_kafka, pytest.mark.long]

PATIENCE_S = 120.0
LASTING: dict[str, Callable[[Proxy], None]] = {
    "nothing goes to the brokers": lambda proxy: proxy.hold(Side.CLIENT),
    "nothing comes back": lambda proxy: proxy.hold(Side.BROKER),
    "accepted, and not answered": Proxy.fall_silent,
}
"""The faults that last until they are mended."""


@pytest.fixture
def topic(kafka3: KafkaCluster) -> bytes:
    """A new one."""
    name = f"half-{uuid.uuid4().hex}".encode()
    create(kafka3, name)
    return name


@pytest.fixture
def proxy(kafka3: KafkaCluster) -> Iterator[Proxy]:
    """Before all brokers."""
    with Proxy(kafka3) as made:
        yield made


def check_all(cluster: KafkaCluster, topic: bytes, sent: int) -> None:
    """Every message is in Kafka, asked without the proxy; first appearances are in order."""
    check_all_there(consume(cluster.bootstrap, topic.decode(), PARTITIONS, sent, PATIENCE_S), sent)


@pytest.mark.parametrize("fault", LASTING)
def test_all_brokers(kafka3: KafkaCluster, proxy: Proxy, tmp_path: Path, topic: bytes, fault: str) -> None:
    """Messages wait, no worker ends, status says in one sentence what is wrong; mended, all is delivered."""
    with RunningBruce(tmp_path, kafka3.proxy_bootstrap) as bruce:
        sent = bruce.send(keyed(600, topic=topic))
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        before = pids(bruce)
        LASTING[fault](proxy)
        sent += bruce.send(keyed(3000, topic=topic, first=sent))
        words = "nothing comes back from 127.0.0.1:", "answer"
        seen = bruce.await_status(
            lambda s: s.received == sent and any(said in str(s.trouble) for said in words), PATIENCE_S
        )
        check_totals(seen)
        assert seen.backlog > 0
        assert "\n" not in str(seen.trouble)
        proxy.mend()
        seen = bruce.await_status(lambda s: s.delivered == sent and s.trouble is None, PATIENCE_S)
        check_totals(seen)
        assert seen.discarded == {}
        assert pids(bruce) == before
    check_all(kafka3, topic, sent)


@pytest.mark.parametrize("side", Side)
def test_one_end_is_gone(
    kafka3: KafkaCluster, proxy: Proxy, tmp_path: Path, topic: bytes, side: Side
) -> None:
    """In the middle of traffic, three times; the other end does not notice. The test mends nothing."""
    with RunningBruce(tmp_path, kafka3.proxy_bootstrap) as bruce:
        sent, before = bruce.send(keyed(600, topic=topic)), pids(bruce)
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        for _ in range(3):
            sent += bruce.send(keyed(600, topic=topic, first=sent))
            proxy.kill(side)
            sent += bruce.send(keyed(600, topic=topic, first=sent))
            seen = bruce.await_status(lambda s, sent=sent: s.delivered == sent, PATIENCE_S)
            check_totals(seen)
        assert seen.discarded == {}
        assert pids(bruce) == before
        bruce.await_status(lambda s: s.trouble is None, PATIENCE_S)
    check_all(kafka3, topic, sent)


def test_one_broker_of_three(kafka3: KafkaCluster, proxy: Proxy, tmp_path: Path, topic: bytes) -> None:
    """Partitions of the other two are delivered while one broker is silent; its own when that is mended."""
    led = leaders(kafka3, topic)
    away = led[0]
    with RunningBruce(tmp_path, kafka3.proxy_bootstrap) as bruce:
        sent = bruce.send(keyed(600, topic=topic))
        bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        before = pids(bruce)
        proxy.hold(Side.BROKER, [away])
        more = keyed(1200, topic=topic, first=sent)
        sent += bruce.send(more)
        # Twelve keys, in turn: a partition has those that are its number modulo the partitions.
        waiting = sum(led[i % 12 % PARTITIONS] == away for i in range(len(more)))
        seen = bruce.await_status(lambda s: s.delivered == sent - waiting and s.received == sent, PATIENCE_S)
        assert seen.backlog == waiting
        bruce.await_status(lambda s: all(b.state != "healthy" for b in s.brokers if b.id == away), PATIENCE_S)
        proxy.mend()
        seen = bruce.await_status(lambda s: s.delivered == sent, PATIENCE_S)
        check_totals(seen)
        assert seen.discarded == {}
        assert pids(bruce) == before
    check_all(kafka3, topic, sent)
