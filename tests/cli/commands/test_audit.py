"""`brucectl audit`: its report and its exit code."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer

from cli.commands.audit import _rows
from dispatch.embedded import EmbeddedKafka
from pipeline.audit import COUNTS
from pipeline.audit_report import Report
from spool.format.wire import encode
from tests.cli.program import run
from tests.spool.fixture import SpoolFixture


@pytest.fixture
def spool(tmp_path_factory: pytest.TempPathFactory) -> SpoolFixture:
    """Three messages of the topic `orders`."""
    made = SpoolFixture(tmp_path_factory.mktemp("audit"))
    made.append([encode(b"orders", b"%d" % i, timestamp=1000) for i in range(3)])
    made.step()
    made.crash()
    return made


def deliver(spool: SpoolFixture, kafka: EmbeddedKafka, *numbers: int) -> None:
    """As the daemon does."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for i in numbers:
        id_ = spool.identity.spool + i.to_bytes(8, "big")
        producer.produce("orders", b"%d" % i, timestamp=1000, headers=[("bruce-id", id_)])
    assert producer.flush(30) == 0


def test_a_loss(spool: SpoolFixture) -> None:
    """It exits 1 until the message is there; a Kafka that is away is exit code 3, and no verdict."""
    path = str(spool.options.directory)
    with EmbeddedKafka(brokers=1, topics=[("orders", 1)]) as kafka:
        to = ("--bootstrap-servers", kafka.bootstrap_servers)
        deliver(spool, kafka, 0, 2)
        code, out, err = run("audit", path, *to, "--json")
        assert (code, err) == (1, "")
        report = json.loads(out)
        assert (report["version"], report["sound"], report["total"]["lost"]) == (1, False, 1)
        deliver(spool, kafka, 1)
        code, out, err = run("audit", path, *to, "--by", "host")
        assert (code, err) == (0, "")
        assert "3 of 3 stored messages are in Kafka: nothing is missing." in out
    code, out, err = run("audit", path, *to)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert f"Kafka at {to[1]} does not answer" in err


def test_topics_that_are_shown_alike() -> None:
    """They are one row for each dimension, text stays on its line, and the last row is the sum."""

    def counts(stored: int) -> dict[str, int]:
        return {**dict.fromkeys(COUNTS, 0), "stored": stored}

    long, longer, odd = "t" * 300, "t" * 301, "a\x1b[31m\tb"
    groups = [
        {"topic": long, "hour": "h", **counts(1)},
        {"topic": longer, "hour": "h", **counts(2)},
        {"topic": longer, "hour": None, **counts(4)},
        {"topic": odd, "hour": "h", **counts(8)},
    ]
    report = Report([], {long: counts(1), longer: counts(6), odd: counts(8)}, by=("hour",), groups=groups)
    assert COUNTS[0] == "stored"
    assert [row[:3] for row in _rows(report)] == [
        ["t" * 248 + "…", "h", 3],
        ["t" * 248 + "…", "-", 4],
        [r"a\x1b[31m\tb", "h", 8],
        ["all", "-", 15],
    ]
