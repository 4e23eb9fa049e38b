"""`brucectl status` says why nothing can be sent; nothing is lost meanwhile, and it goes on by itself."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from dispatch.errors import Code
from tests.cli.program import run
from tests.daemon import RunningBruce, consume
from tests.router.outlet import check_order, keyed, numbers

PRODUCE, METADATA, INIT_PRODUCER_ID = 0, 3, 22
COUNT = 40


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker and a topic of two partitions."""
    with EmbeddedKafka(brokers=1, topics=[("t", 2)]) as running:
        yield running


def closed_port() -> int:
    """A port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.sample(one_of=2)
@pytest.mark.parametrize(
    ("servers", "words"),
    [
        ("127.0.0.1:{port}", "no broker can be reached (127.0.0.1:{port}: Connect to "),
        ("missing.invalid:9092", "a broker's name does not resolve (missing.invalid:9092: "),
    ],
)
def test_no_broker(tmp_path: Path, servers: str, words: str) -> None:
    """No listener, or no such name: the status says what, where and what to do, in text and JSON."""
    port = closed_port()
    with RunningBruce(tmp_path, servers.format(port=port)) as bruce:
        bruce.send(keyed(3))
        seen = bruce.await_status(lambda s: (s.trouble or "").startswith(words.format(port=port)))
        assert seen.trouble is not None
        assert "bootstrap.servers in [kafka]" in seen.trouble
        assert json.loads(bruce.brucectl("status", "--json").stdout)["trouble"].startswith(
            words.format(port=port)
        )
        assert b"\nunhealthy\ttrouble\t" + words.format(port=port).encode() in bruce.brucectl("status").stdout
        bruce.kill9()
        assert bruce.status().trouble is None


@pytest.mark.sample(one_of=3)
@pytest.mark.parametrize(
    ("api", "code", "words"),
    [
        (PRODUCE, Code.TOPIC_AUTHORIZATION_FAILED, "no right to write to t: "),
        (PRODUCE, Code.CLUSTER_AUTHORIZATION_FAILED, "messages to t come back with cluster_authorization"),
        (INIT_PRODUCER_ID, Code.CLUSTER_AUTHORIZATION_FAILED, "Kafka gives bruce's user no right to write ("),
    ],
)
def test_no_right(kafka: EmbeddedKafka, tmp_path: Path, api: int, code: Code, words: str) -> None:
    """Messages wait until the right is granted, then go without a restart, in order, none discarded.

    The trouble can still be read afterwards.
    """
    kafka.errors(api, [code] * 1000)
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        bruce.send(keyed(COUNT))
        seen = bruce.await_status(
            lambda s: s.trouble is not None and s.trouble.startswith(words) and s.received == COUNT
        )
        assert (seen.delivered, seen.discarded, seen.backlog) == (0, {}, COUNT)
        kafka.clear(api)
        after = bruce.await_status(lambda s: s.delivered == COUNT and s.trouble is None, 60)
        assert after.discarded == {}
        last = json.loads(run("status", "--json", environ=bruce.environ).stdout)["last_trouble"]
        assert last["sentence"].startswith(words)
        records = consume(kafka.bootstrap_servers, "t", 2, COUNT)
    assert set(numbers(records)) == set(range(COUNT))
    check_order(records)
