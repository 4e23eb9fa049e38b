"""Real brokers, started once a session: `kafka1` alone, `kafka3` a cluster, `kafka_secured` with users.

Without java, Maven or the jars these tests are skipped; on CI (the variable CI is set) they fail.
"""

import os
from collections.abc import Iterator

import pytest

from tools.kafka_cluster import KafkaCluster, KafkaMissing


@pytest.fixture(scope="session")
def kafka1(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One broker; `min.insync.replicas` is 1."""
    yield from running(KafkaCluster(tmp_path_factory.mktemp("kafka1"), 1))


@pytest.fixture(scope="session")
def kafka3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers, for a proxy too; three copies of each partition, and `min.insync.replicas` is 2."""
    yield from running(KafkaCluster(tmp_path_factory.mktemp("kafka3"), 3, proxied=True))


@pytest.fixture(scope="session")
def kafka_secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One broker; clients of `sasl_bootstrap` need a password and rights, those of `bootstrap` do not.

    `tls_bootstrap` has those by TLS; needs openssl.
    """
    yield from running(KafkaCluster(tmp_path_factory.mktemp("kafka-secured"), 1, secured=True))


def running(cluster: KafkaCluster) -> Iterator[KafkaCluster]:
    """The cluster, up during the whole session."""
    try:
        cluster.up()
    except KafkaMissing as error:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse(f"no real Kafka: {error}")
    try:
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(autouse=True)
def healed(request: pytest.FixtureRequest) -> Iterator[None]:
    """All brokers run for the next test, whatever this one did to them."""
    used = {"kafka1", "kafka3", "kafka_secured"} & set(request.fixturenames)
    clusters = [request.getfixturevalue(name) for name in sorted(used)]
    yield
    for cluster in clusters:
        cluster.heal()
