"""Wrong passwords and missing rights on a real broker: nothing is lost, and it goes on when mended."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic

from tests.daemon import RunningBruce, consume
from tests.router.outlet import check_order, keyed, numbers
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics

pytestmark = [pytest.mark.real_kafka, pytest.mark.long]

PARTITIONS = 2
PATIENCE_S = 90.0
PASSWORD = "as in bruce.toml"
COUNT = 60


class Users:
    """The work of the brokers' operator: passwords and rights of a user of our own."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.name = f"bruce-{uuid.uuid4().hex}"
        self._bootstrap = cluster.bootstrap
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        self.settings = {
            "kafka": {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": self.name,
                "sasl.password": PASSWORD,
            }
        }

    def set_password(self, password: str) -> None:
        """From now on this one counts."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        change = UserScramCredentialUpsertion(self.name, info, password.encode())
        self._admin.alter_user_scram_credentials([change])[self.name].result(60)

    def allow(self, topic: bytes, operations: Sequence[AclOperation]) -> None:
        """Give rights to a topic."""
        if not operations:
            return
        bindings = [
            AclBinding(
                ResourceType.TOPIC,
                topic.decode(),
                ResourcePatternType.LITERAL,
                f"User:{self.name}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
        for done in self._admin.create_acls(bindings).values():
            done.result(60)

    def create(self) -> bytes:
        """A topic without any rights yet."""
        name = f"rights-{uuid.uuid4().hex}"
        make_topics(self._bootstrap, [NewTopic(name, PARTITIONS)])
        return name.encode()


@pytest.fixture
def users(kafka_secured: KafkaCluster) -> Users:
    """A user without a password."""
    return Users(kafka_secured)


def check_all(cluster: KafkaCluster, topic: bytes) -> None:
    """Everything arrived, in order."""
    records = consume(cluster.bootstrap, topic.decode(), PARTITIONS, COUNT, PATIENCE_S)
    assert set(numbers(records)) == set(range(COUNT))
    check_order(records)


def test_a_wrong_password(kafka_secured: KafkaCluster, tmp_path: Path, users: Users) -> None:
    """The status names it; with the password mended on the broker everything is delivered."""
    topic = users.create()
    users.allow(topic, [AclOperation.WRITE, AclOperation.DESCRIBE])
    users.set_password("another")
    with RunningBruce(tmp_path, kafka_secured.sasl_bootstrap, settings=users.settings) as bruce:
        bruce.send(keyed(COUNT, topic=topic))
        words = f"Kafka refuses who we are ({kafka_secured.sasl_bootstrap}: "
        seen = bruce.await_status(
            lambda s: (s.trouble or "").startswith(words) and s.backlog == COUNT, PATIENCE_S
        )
        assert seen.trouble is not None
        assert "sasl.password" in seen.trouble
        assert PASSWORD not in seen.trouble
        assert (seen.delivered, seen.discarded) == (0, {})
        users.set_password(PASSWORD)
        seen = bruce.await_status(lambda s: s.delivered == COUNT and s.trouble is None, PATIENCE_S)
        assert seen.discarded == {}
    check_all(kafka_secured, topic)


@pytest.mark.parametrize("rights", [[], [AclOperation.DESCRIBE]])
def test_no_right_to_a_topic(
    kafka_secured: KafkaCluster, tmp_path: Path, users: Users, rights: list[AclOperation]
) -> None:
    """Its messages wait and the status names it, while another topic's are delivered; then they follow."""
    mine, theirs = users.create(), users.create()
    users.set_password(PASSWORD)
    users.allow(mine, [AclOperation.WRITE, AclOperation.DESCRIBE])
    users.allow(theirs, rights)
    with RunningBruce(tmp_path, kafka_secured.sasl_bootstrap, settings=users.settings) as bruce:
        bruce.send(keyed(COUNT, topic=theirs))
        bruce.send(keyed(COUNT, topic=mine))
        words = f"no right to write to {theirs.decode()}: grant it to bruce's user; its messages wait"
        seen = bruce.await_status(lambda s: s.delivered == COUNT and s.trouble == words, PATIENCE_S)
        assert (seen.discarded, seen.backlog) == ({}, COUNT)
        users.allow(theirs, [AclOperation.WRITE, AclOperation.DESCRIBE])
        seen = bruce.await_status(lambda s: s.delivered == 2 * COUNT and s.trouble is None, PATIENCE_S)
        assert seen.discarded == {}
    check_all(kafka_secured, mine)
    check_all(kafka_secured, theirs)


def test_no_right_to_anything(kafka_secured: KafkaCluster, tmp_path: Path, users: Users) -> None:
    """The broker does not even number the producer's messages; once it does, all are delivered."""
    topic = users.create()
    users.set_password(PASSWORD)
    with RunningBruce(tmp_path, kafka_secured.sasl_bootstrap, settings=users.settings) as bruce:
        bruce.send(keyed(COUNT, topic=topic))
        words = "Kafka gives bruce's user no right to write ("
        seen = bruce.await_status(lambda s: s.trouble is not None and s.trouble.startswith(words), PATIENCE_S)
        assert (seen.delivered, seen.discarded) == (0, {})
        users.allow(topic, [AclOperation.WRITE, AclOperation.DESCRIBE])
        seen = bruce.await_status(lambda s: s.delivered == COUNT and s.trouble is None, PATIENCE_S)
        assert seen.discarded == {}
    check_all(kafka_secured, topic)
