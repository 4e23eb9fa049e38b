"""Kafka as the doctor finds it: there, not there, silent, or something else."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from cli.config import Config, load_config
from cli.doctor import kafka as doctor
from cli.doctor.finding import Finding, Level
from dispatch.cluster import NO_LEADER, Cluster
from dispatch.embedded import EmbeddedKafka

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
    """The address of a port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed() -> str:
    """The address of a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def trouble(found: Iterator[Finding]) -> str:
    """The sentence of the one problem."""
    (wrong,) = (one for one in found if one.level is Level.PROBLEM)
    assert wrong.check == "kafka"
    return wrong.sentence


def test_brokers_that_answer(cluster: EmbeddedKafka) -> None:
    """Are named, with the library and what it can do."""
    library, brokers = list(doctor.look(config(cluster.bootstrap_servers)))
    assert (library.level, brokers.level) == (Level.OK, Level.OK)
    assert "zstd" in library.sentence
    assert all(server in brokers.sentence for server in cluster.bootstrap_servers.split(","))


def test_topics_that_are_not_there(cluster: EmbeddedKafka) -> None:
    """Without a dead-letter topic, letters wait; and looking for a topic does not make it."""
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
    """Is named: its messages wait."""
    leaders = np.array([1, NO_LEADER, 2, NO_LEADER], np.int32)
    found = doctor.check_topics(
        config("localhost:9", dead_letter_topic="t"), Cluster({1: "a:1"}, {b"t": leaders})
    )
    (wrong,) = (one for one in found if one.level is Level.PROBLEM)
    assert "partition 1, 3" in wrong.sentence


def test_a_port_where_nobody_listens(closed: str) -> None:
    """The reason comes when it is known, and not when the time is over (before the test's would be)."""
    said = trouble(doctor.look(config(closed), seconds=3000))
    assert "Connection refused" in said
    assert "start Kafka" in said


def test_a_port_that_says_nothing(silent: str) -> None:
    """Ends when the time is over, and says that nothing comes back (statistics come each second)."""
    assert f"nothing comes back from {silent}" in trouble(doctor.look(config(silent), seconds=5))


def test_a_name_that_does_not_resolve() -> None:
    """Is told from a broker that is away. No server is asked for a label of 64 letters."""
    said = trouble(doctor.look(config("x" * 64 + ".invalid:9092"), seconds=3000))
    assert "does not resolve" in said


def test_tls_where_there_is_none(cluster: EmbeddedKafka) -> None:
    """Is told from a broker that is away."""
    said = trouble(doctor.look(config(cluster.bootstrap_servers, {"security.protocol": "ssl"}), seconds=3000))
    assert "TLS handshake" in said


def test_the_embedded_kafka_is_not_asked() -> None:
    """It starts with the daemon."""
    found = list(doctor.look(config("embedded")))
    assert [one.level for one in found] == [Level.OK, Level.OK]
