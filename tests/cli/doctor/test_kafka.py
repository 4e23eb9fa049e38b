"""The doctor's findings on Kafka: present, absent, silent, or something else."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from cli.config.config import Config, load_config
from cli.doctor import Finding, Level
from cli.doctor import kafka as doctor
from cli.doctor.kafka import judge
from dispatch.client import NO_LEADER, Cluster
from dispatch.embedded import EmbeddedKafka
from dispatch.topic_settings import Lateness

HOUR = 3600.0


def test_what_waits_longer_than_a_topic_keeps_it() -> None:
    """A problem of topics whose oldest messages are too old, and of none that keeps them for longer."""
    found = {
        b"orders": Lateness(HOUR, None),
        b"idle": Lateness(HOUR, None),
        b"days": Lateness(72 * HOUR, None),
        b"strict": Lateness(None, 2 * HOUR),
        b"any": Lateness(None, None),
    }
    oldest = dict.fromkeys((b"orders", b"days", b"strict", b"any", b"unknown"), 3 * HOUR)
    orders, strict = judge(found, {**oldest, b"idle": HOUR / 2}, None)
    assert orders[1:] == (
        Level.PROBLEM,
        "topic orders keeps messages for 1 h 0 min from their own timestamps, and the oldest of it that "
        "waits in the spool is 3 h 0 min old: Kafka deletes such messages soon after they are delivered",
        "raise retention.ms of the topic, or set its message.timestamp.type to LogAppendTime",
    )
    assert strict.level is Level.PROBLEM
    assert "3 h 0 min old: Kafka refuses such messages" in strict.sentence
    assert "before.max.ms of the topic" in strict.remedy


def test_a_spool_that_outlasts_a_topic() -> None:
    """The plan says ahead which outage is longer than a topic keeps messages."""
    found = {b"orders": Lateness(HOUR, None), b"days": Lateness(72 * HOUR, None)}
    (orders,) = judge(found, {}, 30 * HOUR)
    assert orders.level is Level.ADVICE
    assert "after a longer outage, for which the spool has room (1 d 6 h), Kafka deletes" in orders.sentence
    assert list(judge(found, {}, HOUR / 2)) == list(judge(found, {b"orders": 60.0}, None)) == []


METADATA = 3


def config(servers: str, properties: Mapping[str, str] | None = None, **dispatch: str) -> Config:
    """A configuration for these brokers."""
    loaded = load_config(Path("/dev/null"), environ={"BRUCE_KAFKA_BOOTSTRAP_SERVERS": servers})
    kafka = {**loaded.dispatch.kafka, **(properties or {})}
    return dataclasses.replace(loaded, dispatch=dataclasses.replace(loaded.dispatch, kafka=kafka, **dispatch))


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedKafka]:
    """Brokers that answer, for all tests here."""
    with EmbeddedKafka(brokers=3, topics=[("t", 4)]) as running:
        yield running


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a port that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed() -> str:
    """The address of a port on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def trouble(found: Iterator[Finding]) -> str:
    """The sentence of the one problem."""
    (wrong,) = (one for one in found if one.level is Level.PROBLEM)
    assert wrong.check == "kafka"
    return wrong.sentence


def test_no_line_of_librdkafka(closed: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its lines about a broker that cannot be reached are not printed beside the finding."""
    assert "no broker can be reached" in trouble(doctor.look(config(closed), 5.0))
    assert caplog.messages == []


def test_brokers_that_answer(cluster: EmbeddedKafka) -> None:
    """They are named, with the library and its features."""
    library, brokers = list(doctor.look(config(cluster.bootstrap_servers)))
    assert (library.level, brokers.level) == (Level.OK, Level.OK)
    assert "zstd" in library.sentence
    assert all(server in brokers.sentence for server in cluster.bootstrap_servers.split(","))


def test_topics_that_are_not_there(cluster: EmbeddedKafka) -> None:
    """Without a dead-letter topic, dead letters wait; and the check does not create a topic."""
    wanted = config(
        cluster.bootstrap_servers,
        dead_letter_topic="dead",
        mode="exactly_once",
        progress_topic="p",
    )
    for _ in range(2):
        dead, progress = (one for one in doctor.look(wanted) if one.check == "topic")
        assert (dead.level, "no topic dead" in dead.sentence) == (Level.PROBLEM, True)
        assert (progress.level, "bruce makes it" in progress.sentence) == (Level.OK, True)
    (found,) = (
        one
        for one in doctor.look(config(cluster.bootstrap_servers, dead_letter_topic="t"))
        if one.check == "topic"
    )
    assert found.level is Level.OK


def test_a_partition_that_nobody_leads() -> None:
    """The partition is named: its messages wait."""
    leaders = np.array([1, NO_LEADER, 2, NO_LEADER], np.int32)
    found = doctor.check_topics(
        config("localhost:9", dead_letter_topic="t"), Cluster({1: "a:1"}, {b"t": leaders})
    )
    (wrong,) = (one for one in found if one.level is Level.PROBLEM)
    assert "partition 1, 3" in wrong.sentence


def test_a_port_where_nobody_listens(closed: str) -> None:
    """The reason comes when it is known, not at the timeout (which would exceed that of the test)."""
    said = trouble(doctor.look(config(closed), seconds=3000))
    assert "Connection refused" in said
    assert "start Kafka" in said


@pytest.mark.long
def test_a_port_that_says_nothing(silent: str) -> None:
    """The check ends at the timeout, and says that no answer came (statistics come each second)."""
    assert f"nothing comes back from {silent}" in trouble(doctor.look(config(silent), seconds=5))


def test_a_name_that_does_not_resolve() -> None:
    """The finding differs from that of an absent broker. No server is asked for a label of 64 letters."""
    said = trouble(doctor.look(config("x" * 64 + ".invalid:9092"), seconds=3000))
    assert "does not resolve" in said


def test_tls_where_there_is_none(cluster: EmbeddedKafka) -> None:
    """The finding differs from that of an absent broker."""
    said = trouble(doctor.look(config(cluster.bootstrap_servers, {"security.protocol": "ssl"}), seconds=3000))
    assert "TLS handshake" in said


def test_the_embedded_kafka_is_not_asked() -> None:
    """It starts with the daemon."""
    found = list(doctor.look(config("embedded")))
    assert [one.level for one in found] == [Level.OK, Level.OK]
