"""The choice of the source by which an audit reads Kafka: the properties that Java's client has, or lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipeline.kafka.reader import has_connector, java_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVERS = {"bootstrap.servers": "kafka-1:9092,kafka-2:9092"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"linger.ms": "5", "compression.type": "zstd"}, {}),
        ({"security.protocol": "plaintext"}, {}),
        (
            {"security.protocol": "ssl", "ssl.ca.location": "/etc/ca.pem"},
            {
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "/etc/ca.pem",
            },
        ),
        (
            {
                "security.protocol": "sasl_ssl",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "bruce",
                "sasl.password": 'a"b\\c',
                "ssl.endpoint.identification.algorithm": "none",
            },
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
                'username="bruce" password="a\\"b\\\\c";',
                "ssl.endpoint.identification.algorithm": "",
            },
        ),
    ],
)
def test_the_way_to_the_brokers_in_javas_words(given: dict[str, str], told: dict[str, str]) -> None:
    """Address, TLS and a password; what concerns a producer only is left out."""
    assert java_properties({**SERVERS, **given}) == {**SERVERS, **told}
    renamed = {"metadata.broker.list": SERVERS["bootstrap.servers"], **given}
    assert java_properties(renamed) == {**SERVERS, **told}


@pytest.mark.parametrize(
    "given",
    [
        {"ssl.certificate.location": "/etc/bruce.pem", "ssl.key.location": "/etc/bruce.key"},
        {"security.protocol": "SASL_SSL", "sasl.mechanisms": "OAUTHBEARER"},
        {"security.protocol": "SASL_PLAINTEXT"},
        {"enable.ssl.certificate.verification": "false"},
    ],
)
def test_what_cannot_be_said_is_not_guessed(given: dict[str, str]) -> None:
    """Then librdkafka reads, which understands it."""
    assert java_properties({**SERVERS, **given}) is None


@pytest.mark.spark
def test_a_session_without_the_jar(spark: SparkSession) -> None:
    """It is asked of Spark itself."""
    assert not has_connector(spark)
