"""TLS, certificates of our own, and SCRAM on a real broker; what is set wrong is one sentence, and passes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
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
from tests.router.outlet import keyed
from tools import kafka_certificates
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics

pytestmark = pytest.mark.real_kafka

PATIENCE_S = 90.0
PASSWORD = "s3cr3t-of-scram"
COUNT = 20
PARTITIONS = 2
USER = "sender"


@pytest.fixture(scope="module")
def kafka(kafka_secured: KafkaCluster) -> KafkaCluster:
    """A cluster with a user for both kinds of SCRAM, who may do everything."""
    admin = AdminClient({"bootstrap.servers": kafka_secured.bootstrap, "log_level": 0})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        change = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        admin.alter_user_scram_credentials([change])[USER].result(60)
    return kafka_secured


def topic_for(kafka: KafkaCluster, name: str) -> bytes:
    """A topic that every user may write to, newly made."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    make_topics(kafka.bootstrap, [NewTopic(name, PARTITIONS)])
    allow_everybody(admin, name)
    return name.encode()


def allow_everybody(admin: AdminClient, topic: str) -> None:
    """Rights are the subject of test_rights."""
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    bindings = [
        AclBinding(ResourceType.TOPIC, topic, literal, "User:*", "*", operation, allow)
        for operation in (AclOperation.WRITE, AclOperation.DESCRIBE)
    ]
    for done in admin.create_acls(bindings).values():
        done.result(60)


def tls(kafka: KafkaCluster, **more: str) -> dict[str, str]:
    """TLS, with the authority of the brokers; `ca_location` and so on for ssl.ca.location."""
    named = {f"ssl.{key.replace('_', '.')}": value for key, value in more.items()}
    return {"security.protocol": "SSL", "ssl.ca.location": str(kafka.certificates / "ca.pem"), **named}


def mutual(kafka: KafkaCluster, name: str = "client", **more: str) -> dict[str, str]:
    """The same, with a certificate of ours."""
    pair = {"certificate_location": f"{name}.pem", "key_location": f"{name}.key"}
    return tls(kafka, **{key: str(kafka.certificates / file) for key, file in pair.items()} | more)


def scram(kafka: KafkaCluster, mechanism: str = "SCRAM-SHA-512", password: str = PASSWORD) -> dict[str, str]:
    """A password, over TLS."""
    user = {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": password}
    return {**tls(kafka), **user, "security.protocol": "SASL_SSL"}


GOOD = ["SCRAM-SHA-256", "SCRAM-SHA-512", "mutual", "mutual, with an encrypted key"]


@pytest.mark.sample("SCRAM-SHA-512")
@pytest.mark.parametrize("way", GOOD)
def test_messages_arrive(kafka: KafkaCluster, tmp_path: Path, way: str) -> None:
    """By SASL_SSL with either SCRAM, and by TLS where the broker demands a certificate; doctor agrees."""
    topic = topic_for(kafka, "secured-" + "".join(c for c in way if c.isalnum()))
    if way.startswith("SCRAM"):
        servers, settings = kafka.tls_bootstrap("SASL_SSL"), scram(kafka, way)
    else:
        servers, settings = kafka.tls_bootstrap("MTLS"), mutual(kafka)
        if "encrypted" in way:
            settings["ssl.key.location"] = str(kafka.certificates / "client-encrypted.key")
            settings["ssl.key.password"] = kafka_certificates.PASSWORD
    with RunningBruce(tmp_path, servers, settings={"kafka": settings}) as bruce:
        bruce.send(keyed(COUNT, topic=topic))
        seen = bruce.await_status(lambda s: s.delivered == COUNT, PATIENCE_S)
        assert (seen.trouble, seen.discarded) == (None, {})
        assert f"brokers answer: {servers}" in bruce.brucectl("doctor").stdout.decode()
    assert len(consume(kafka.bootstrap, topic.decode(), PARTITIONS, COUNT, PATIENCE_S)) == COUNT


def wrong_ways(kafka: KafkaCluster) -> Mapping[str, tuple[str, dict[str, str], str]]:
    """Each fault with its servers, its properties, and the sentence's words: where, what, and what to do."""
    certificates = kafka.certificates
    ssl, sasl_ssl = kafka.tls_bootstrap("MTLS"), kafka.tls_bootstrap("SASL_SSL")
    expired, elsewhere = kafka.tls_bootstrap("EXPIRED"), kafka.tls_bootstrap("ELSEWHERE")
    other = str(certificates / "other-ca.pem")
    plaintext = {"security.protocol": "PLAINTEXT"}
    return {
        "plaintext to TLS": (
            ssl,
            plaintext,
            f"{ssl} ends every connection before it answers, as a TLS listener does to plaintext: "
            "security.protocol in [kafka] is PLAINTEXT; set it to what is spoken there and restart bruce",
        ),
        "TLS to plaintext": (
            kafka.bootstrap,
            tls(kafka),
            f"the listener at {kafka.bootstrap} ends the TLS handshake, as one without TLS does: set "
            "security.protocol to PLAINTEXT or SASL_PLAINTEXT, or correct the port",
        ),
        "no user to users": (
            kafka.sasl_bootstrap,
            plaintext,
            f"{kafka.sasl_bootstrap} answers once and ends every connection, as a listener does that wants a "
            "user: security.protocol in [kafka] is PLAINTEXT; set it to SASL_PLAINTEXT or SASL_SSL",
        ),
        "a user to no user": (
            ssl,
            {**mutual(kafka), **scram(kafka)},
            f"the listener at {ssl} knows no passwords: set security.protocol to PLAINTEXT or SSL",
        ),
        "another authority": (
            ssl,
            mutual(kafka, ca_location=other),
            f"the certificate of Kafka at {ssl} is of an authority that bruce does not know: set "
            "ssl.ca.location to that authority's certificate in [kafka] and restart bruce",
        ),
        "an expired certificate": (
            expired,
            tls(kafka),
            f"the certificate of Kafka at {expired}, or of its authority, has expired: renew it on the",
        ),
        "another host's certificate": (
            elsewhere,
            tls(kafka),
            f"the certificate of Kafka at {elsewhere} is for another name: use the name that it has in "
            "bootstrap.servers in [kafka] and restart bruce, or give the broker one with this name",
        ),
        "no certificate of ours": (
            ssl,
            tls(kafka),
            f"Kafka at {ssl} wants a certificate of ours that it trusts: correct ssl.certificate.location",
        ),
        "a certificate of a stranger": (
            ssl,
            mutual(kafka, "stranger"),
            f"Kafka at {ssl} wants a certificate of ours that it trusts: correct ssl.certificate.location",
        ),
        "a wrong password": (
            sasl_ssl,
            scram(kafka, password="an0ther-s3cr3t"),
            f"Kafka refuses who we are ({sasl_ssl}: SASL authentication error: Authentication failed during "
            "authentication due to invalid credentials with SASL mechanism SCRAM-SHA-512): correct "
            "sasl.username, sasl.password or sasl.mechanism in [kafka] and restart bruce",
        ),
        "another mechanism": (
            sasl_ssl,
            scram(kafka, "PLAIN"),
            f"Kafka at {sasl_ssl} does not take this sasl.mechanism: set it to one of SCRAM-SHA-",
        ),
        "a key's wrong password": (
            ssl,
            mutual(
                kafka, key_location=str(certificates / "client-encrypted.key"), key_password="wr0ng-s3cr3t"
            ),
            "no producer can be made: ssl.key.location has no key, or ssl.key.password does not open it: "
            "correct it in [kafka] and restart bruce",
        ),
        "another's key": (
            ssl,
            mutual(kafka, key_location=str(certificates / "stranger.key")),
            "no producer can be made: the key in ssl.key.location is not that of ssl.certificate.location: ",
        ),
        "no such file": (
            ssl,
            tls(kafka, ca_location="/nowhere/ca.pem"),
            "no producer can be made: the file that ssl.ca.location names cannot be read, or is not",
        ),
    }


WRONG = [
    "plaintext to TLS",
    "TLS to plaintext",
    "no user to users",
    "a user to no user",
    "another authority",
    "an expired certificate",
    "another host's certificate",
    "no certificate of ours",
    "a certificate of a stranger",
    "a wrong password",
    "another mechanism",
    "a key's wrong password",
    "another's key",
    "no such file",
]


@pytest.mark.long
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_set_wrong_is_one_sentence(kafka: KafkaCluster, tmp_path: Path, wrong: str) -> None:
    """In status and doctor: what, where, what to do. Nothing is lost, no worker ends, no secret is shown."""
    servers, settings, words = wrong_ways(kafka)[wrong]
    with RunningBruce(tmp_path, servers, settings={"kafka": settings}) as bruce:
        bruce.send(keyed(COUNT))
        seen = bruce.await_status(
            lambda s: (s.trouble or "").startswith(words) and s.received == COUNT, PATIENCE_S
        )
        assert seen.trouble is not None
        assert "\n" not in seen.trouble
        assert (seen.delivered, seen.discarded, seen.backlog) == (0, {}, COUNT)
        assert [worker.role for worker in seen.workers if worker.restarts] == []
        doctor = bruce.brucectl("doctor", "--json", timeout_s=120)
        said = [found["sentence"] for found in json.loads(doctor.stdout)["findings"]]
        assert [line for line in said if line.startswith(words)], said
        shown = bruce.log.read_text() + doctor.stdout.decode() + bruce.brucectl("status").stdout.decode()
        assert "s3cr3t" not in shown
        assert "Traceback" not in shown


@pytest.mark.long
def test_a_file_that_comes_later(kafka: KafkaCluster, tmp_path: Path) -> None:
    """The authority's certificate was not there at the start: when it is, delivery begins by itself."""
    topic = topic_for(kafka, "secured-later")
    late = tmp_path / "ca.pem"
    settings = mutual(kafka, ca_location=str(late))
    with RunningBruce(tmp_path, kafka.tls_bootstrap("MTLS"), settings={"kafka": settings}) as bruce:
        bruce.send(keyed(COUNT, topic=topic))
        bruce.await_status(lambda s: "ssl.ca.location" in (s.trouble or ""), PATIENCE_S)
        shutil.copy(kafka.certificates / "ca.pem", late)
        bruce.await_status(lambda s: s.delivered == COUNT and s.trouble is None, PATIENCE_S)
