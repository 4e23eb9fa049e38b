"""Producer options: which can be set, which cannot, and which take effect."""

from __future__ import annotations

import time

import pytest

from dispatch.client import KafkaClient, check
from dispatch.embedded import EmbeddedKafka
from dispatch.errors import BadProperty, DispatchError
from dispatch.options import DispatchOptions, properties
from tests.dispatch.batches import Message
from tests.dispatch.fixture import ProducerFixture, await_true, connected

SERVERS = {"bootstrap.servers": "127.0.0.1:9"}


def test_defaults_keep_the_contract() -> None:
    """Idempotent, acknowledged by all, never timed out."""
    effective = properties(DispatchOptions(kafka=SERVERS))
    assert effective["enable.idempotence"] == "true"
    assert effective["acks"] == "all"
    assert effective["message.timeout.ms"] == "0"
    assert effective["linger.ms"] == "20"
    assert effective["client.id"] == "bruce"


@pytest.mark.parametrize("alias", ["queue.buffering.max.ms", "linger.ms"])
def test_an_alias_overrides_the_default(alias: str) -> None:
    """Whichever of librdkafka's two names is used, the default gives way."""
    effective = properties(DispatchOptions(kafka={**SERVERS, alias: "7"}))
    assert effective["linger.ms"] == "7"
    assert "queue.buffering.max.ms" not in effective


def test_options_that_are_printed_have_no_secret() -> None:
    """As a traceback, a log or a plan of Spark may have them; librdkafka's properties are left out."""
    assert "s3cr3t" not in repr(DispatchOptions(kafka={"sasl.password": "s3cr3t"}))


@pytest.mark.parametrize("settings", [{"acks": "1"}, {"acks": "0"}, {"request.required.acks": "1"}])
def test_weaker_acks_turn_idempotence_off_and_keep_order(settings: dict[str, str]) -> None:
    """Without idempotence one request at a time is what keeps a retry from being overtaken."""
    options = DispatchOptions(kafka={**SERVERS, **settings})
    effective = properties(options)
    assert effective["enable.idempotence"] == "false"
    assert effective["max.in.flight.requests.per.connection"] == "1"
    check(options)


def test_at_most_once_asks_for_no_acknowledgement() -> None:
    """The mode is another name for acks=0."""
    effective = properties(DispatchOptions(kafka=SERVERS, mode="at_most_once"))
    assert effective["acks"] == "0"
    assert effective["enable.idempotence"] == "false"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"message.timeout.ms": "1000"}, "message.timeout.ms"),
        ({"delivery.timeout.ms": "1000"}, "delivery.timeout.ms"),
        ({"transactional.id": "x"}, "transactional.id"),
        ({"delivery.report.only.error": "true"}, "delivery.report.only.error"),
        ({"enable.gapless.guarantee": "true"}, "enable.gapless.guarantee"),
        ({"no.such.thing": "1"}, "no.such.thing"),
        ({"compression.type": "lzma"}, "compression.type"),
        ({"linger.ms": "-3"}, "linger.ms"),
    ],
)
def test_a_bad_property_is_one_sentence_that_names_it(settings: dict[str, str], named: str) -> None:
    """Unknown, invalid or against the contract: BadProperty with the key, before anything starts."""
    with pytest.raises(BadProperty) as caught:
        check(DispatchOptions(kafka={**SERVERS, **settings}))
    assert caught.value.key == named
    assert repr(named) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_topic_has_properties_of_its_own() -> None:
    """They are checked as well, and the contract holds for them too."""
    check(DispatchOptions(kafka=SERVERS, topics={"t": {"compression.type": "zstd"}}))
    for bad in ({"compression.type": "lzma"}, {"message.timeout.ms": "5"}, {"bogus": "1"}):
        with pytest.raises(BadProperty):
            check(DispatchOptions(kafka=SERVERS, topics={"t": bad}))


@pytest.mark.parametrize("acks", ["0", "1"])
def test_a_topic_with_weaker_acks_can_be_sent_to(acks: str) -> None:
    """Idempotence is off for all then: with it librdkafka takes no message of the topic.

    If the configuration demands it, or transactions, `check` finds the contradiction.
    """
    with EmbeddedKafka(topics=[("t", 1)]) as kafka:
        servers = {"bootstrap.servers": kafka.bootstrap_servers}
        options = DispatchOptions(kafka=servers, topics={"t": {"acks": acks}})
        producer = ProducerFixture(kafka.bootstrap_servers, [b"t"], options)
        assert producer.deliver({0: [Message(7, 0, b"value")]}) == {7: 0}
    assert properties(options)["max.in.flight.requests.per.connection"] == "1"
    for contradiction in (
        DispatchOptions(kafka={**servers, "enable.idempotence": "true"}, topics={"t": {"acks": acks}}),
        DispatchOptions(kafka=servers, topics={"t": {"acks": acks}}, mode="exactly_once"),
    ):
        with pytest.raises(BadProperty, match=r"'acks' in \[topics.t\] must be 'all' with"):
            check(contradiction)


@pytest.mark.parametrize("options", [DispatchOptions(), DispatchOptions(kafka=SERVERS, mode="perhaps")])
def test_servers_and_a_known_mode_are_required(options: DispatchOptions) -> None:
    """Each is one sentence."""
    with pytest.raises(BadProperty):
        properties(options)


def test_a_contradiction_is_told_in_librdkafkas_words() -> None:
    """A contradiction that shows only when all properties are looked at together."""
    contradiction = {**SERVERS, "acks": "1", "enable.idempotence": "true"}
    with pytest.raises(DispatchError, match="must be set to `all`"):
        KafkaClient(DispatchOptions(kafka=contradiction))


def produce_requests(kafka: EmbeddedKafka, producer: ProducerFixture, count: int, first: int = 0) -> int:
    """Produce requests that `count` messages to one partition take, sent one by one."""
    before = kafka.requests().get(0, 0)
    for sequence in range(first, first + count):
        producer.send([Message(sequence, 0, bytes(100))], partition=0)
    producer.collect(count)
    return kafka.requests().get(0, 0) - before


def test_linger_gathers_messages(kafka: EmbeddedKafka) -> None:
    """linger.ms=500 gathers what comes within it into a request; with 0 no message waits for another."""
    with connected(kafka, kafka={"linger.ms": "500"}) as producer:
        produce_requests(kafka, producer, 1)
        began = time.monotonic()
        requests = produce_requests(kafka, producer, 20, 1)
        assert requests <= 1 + (time.monotonic() - began) / 0.5
    with connected(kafka, kafka={"linger.ms": "0"}) as producer:
        produce_requests(kafka, producer, 1)
        taken = []
        for sequence in range(1, 21):
            began = time.monotonic()
            assert produce_requests(kafka, producer, 1, sequence) == 1
            taken.append(time.monotonic() - began)
        assert min(taken) < 0.5, "something lingers"


def test_batch_size_bounds_a_request(kafka: EmbeddedKafka) -> None:
    """With batch.size=1000, 50 messages of 100 bytes need at least five requests."""
    with connected(kafka, kafka={"linger.ms": "200", "batch.size": "1000"}) as producer:
        produce_requests(kafka, producer, 1)
        assert produce_requests(kafka, producer, 50, 1) >= 5


def test_compression_is_applied_per_topic(kafka: EmbeddedKafka) -> None:
    """Bytes on the wire fall for the topic that asks for zstd, and for no other."""
    kafka.topic("plain", 1)
    kafka.topic("packed", 1)
    wire = {}
    for name in (b"plain", b"packed"):
        settings = {"packed": {"compression.type": "zstd"}}
        with connected(kafka, [name], topics=settings, kafka={"statistics.interval.ms": "100"}) as producer:
            producer.send([Message(i, 0, bytes(1000)) for i in range(500)], partition=0)
            producer.collect(500)
            wire[name] = wire_bytes(producer)
    assert wire[b"plain"] > 500_000
    assert wire[b"packed"] < 50_000


def wire_bytes(producer: ProducerFixture) -> int:
    """Bytes that went to brokers, when all is acknowledged, by librdkafka's next statistics."""
    seen: list[int] = []
    since_us = producer.client.statistics().get("ts", 0)

    def newest() -> bool:
        producer.pool.collect()
        statistics = producer.client.statistics()
        if statistics.get("ts", 0) > since_us + 200_000:
            seen.append(sum(broker["txbytes"] for broker in statistics["brokers"].values()))
        return bool(seen)

    await_true(newest)
    return seen[0]
