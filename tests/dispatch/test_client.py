"""The client: metadata, events, wake-ups, and closing."""

from __future__ import annotations

import os
import select
import threading
import time

import pytest

from dispatch.client import KafkaClient
from dispatch.codes import Code
from dispatch.embedded import EmbeddedKafka
from dispatch.errors import BadProperty, Unreachable
from dispatch.options import DispatchOptions
from tests.dispatch.batches import Message
from tests.dispatch.rig import PATIENCE_S, await_true, connected


def test_unknown_topics_are_errors_when_creating_them_is_forbidden(kafka: EmbeddedKafka) -> None:
    """allow.auto.create.topics passes through: with it a topic appears, without it there is an error."""
    options = {"bootstrap.servers": kafka.bootstrap_servers}
    client = KafkaClient(DispatchOptions(kafka={**options, "allow.auto.create.topics": "false"}))
    cluster = client.fetch_cluster([b"t", b"never"], 5)
    assert cluster.errors == {b"never": Code.UNKNOWN_TOPIC_OR_PART}
    assert list(cluster.topics) == [b"t"]
    client.close()
    client = KafkaClient(DispatchOptions(kafka=options))
    assert b"made" in client.fetch_cluster([b"made"], 5).topics
    client.close()


def test_metadata_is_fetched_beside_sending(kafka: EmbeddedKafka) -> None:
    """A helper thread asks for metadata while this one sends and collects."""
    with connected(kafka) as rig:
        ended = threading.Event()
        fetched = []

        def fetch() -> None:
            while not ended.is_set():
                fetched.append(rig.client.fetch_cluster([b"t"], 5))

        helper = threading.Thread(target=fetch)
        helper.start()
        for first in range(0, 20_000, 1000):
            rig.send([Message(first + i, 0, b"v") for i in range(1000)], partition=first // 1000 % 6)
            rig.collect(1000)
        ended.set()
        helper.join(PATIENCE_S)
        assert fetched
        assert all(len(cluster.topics[b"t"]) == 6 for cluster in fetched)


def test_no_answer_is_unreachable_with_a_code(kafka: EmbeddedKafka) -> None:
    """With all brokers down the call ends after its timeout."""
    kafka.down()
    client = KafkaClient(DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers}))
    started = time.monotonic()
    with pytest.raises(Unreachable) as caught:
        client.fetch_cluster([b"t"], 0.3)
    assert caught.value.code < 0
    # Or else librdkafka waits for a minute.
    assert time.monotonic() - started < 30
    client.close()


def test_reports_wake_the_eventfd(kafka: EmbeddedKafka) -> None:
    """poll() on the eventfd returns when a report is there, and stays quiet when none is."""
    wake = os.eventfd(0, os.EFD_NONBLOCK)
    with connected(kafka, kafka={"statistics.interval.ms": "0"}) as rig:
        rig.client.library.queue_io_event_enable(rig.client.queue, wake, (1).to_bytes(8, "little"), 8)
        assert not select.select([wake], [], [], 0.2)[0]
        rig.send([Message(0, 0, b"v")], partition=0)
        assert select.select([wake], [], [], PATIENCE_S)[0]
        assert os.eventfd_read(wake) >= 1
        rig.collect(1)
    os.close(wake)


def test_the_wake_fd_is_given_at_the_start(kafka: EmbeddedKafka) -> None:
    """Statistics arrive unasked and wake whoever waits."""
    wake = os.eventfd(0, os.EFD_NONBLOCK)
    options = {"bootstrap.servers": kafka.bootstrap_servers, "statistics.interval.ms": "50"}
    client = KafkaClient(DispatchOptions(kafka=options), wake)
    assert select.select([wake], [], [], PATIENCE_S)[0]
    client.close()
    os.close(wake)


def test_statistics_say_how_brokers_are(kafka: EmbeddedKafka) -> None:
    """By broker id, UP while they are, with a round-trip time; DOWN or left out after they went."""
    with connected(kafka, kafka={"statistics.interval.ms": "50"}) as rig:
        for partition in range(3):
            rig.send([Message(partition, 0, b"v")], partition=partition)

        def states() -> dict[int, str]:
            rig.pool.collect()
            return rig.client.broker_states()

        await_true(lambda: states() == dict.fromkeys((1, 2, 3), "UP"))
        kafka.down(2)
        await_true(lambda: states().get(2, "DOWN") == "DOWN")
        assert states()[1] == "UP"


def test_errors_without_a_message_are_kept(kafka: EmbeddedKafka) -> None:
    """Losing every broker leaves a dated error with its name; the list is bounded."""
    with connected(kafka) as rig:
        kafka.down()

        def named() -> bool:
            rig.pool.collect()
            return any(error.name == "_ALL_BROKERS_DOWN" for error in rig.client.last_errors)

        await_true(named)
        assert rig.client.fatal is None
        assert rig.client.last_errors.maxlen


def test_a_fatal_error_is_remembered_and_refuses_messages(kafka: EmbeddedKafka) -> None:
    """After it `fatal` says why, and what is sent is held back with the code FATAL."""
    with connected(kafka) as rig:
        rig.client.library.test_fatal_error(rig.client.handle, Code.OUT_OF_ORDER_SEQUENCE, b"made up")
        handed = rig.send([Message(5, 0, b"v")], partition=0)
        assert (handed.held, handed.error) == (1, Code.FATAL)
        await_true(lambda: rig.pool.collect().more or rig.client.fatal is not None)
        assert rig.client.fatal is not None
        assert "made up" in rig.client.fatal.text


def test_a_topics_own_bad_property_shows_at_its_handle(kafka: EmbeddedKafka) -> None:
    """BadProperty, and the client goes on."""
    options = DispatchOptions(
        kafka={"bootstrap.servers": kafka.bootstrap_servers}, topics={"odd": {"compression.type": "lzma"}}
    )
    client = KafkaClient(options)
    with pytest.raises(BadProperty, match="lzma"):
        client.topic_handle(b"odd")
    assert client.topic_handle(b"t") == client.topic_handle(b"t") != 0
    client.close()


def test_closing_waits_for_no_broker(kafka: EmbeddedKafka) -> None:
    """1,000 messages queued for brokers that are down are not waited for, for minutes; twice is harmless."""
    with connected(kafka) as rig:
        kafka.down()
        rig.send([Message(i, 0, b"v") for i in range(1000)], partition=0)
        started = time.monotonic()
        rig.client.close()
        assert time.monotonic() - started < 60
        rig.client.close()


def test_flush_sends_without_lingering(kafka: EmbeddedKafka) -> None:
    """Between two collections it empties a client whose linger would last a minute."""
    with connected(kafka, kafka={"linger.ms": "60000"}) as rig:
        rig.send([Message(i, 0, b"v") for i in range(10)], partition=0)
        found: dict[int, int] = {}

        def flushed() -> bool:
            done = rig.client.flush(0.01)
            found.update(zip(*(column.tolist() for column in rig.pool.collect()[:2]), strict=True))
            return done

        await_true(flushed)
        assert found == dict.fromkeys(range(10), 0)
