"""The client: metadata, events, wake-ups, and closing."""

from __future__ import annotations

import fcntl
import gc
import os
import select
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from dispatch.client import (
    MOST_ASKED,
    BrokerLatency,
    Inquiry,
    KafkaClient,
    Wakeup,
    _read_cluster,
    parse_statistics,
)
from dispatch.embedded import EmbeddedKafka
from dispatch.errors import BadProperty, Code, Unreachable
from dispatch.librdkafka import MetadataStruct
from dispatch.options import DispatchOptions
from tests.dispatch.batches import Message
from tests.dispatch.fixture import PATIENCE_S, await_true, connected


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
    with connected(kafka) as producer:
        ended = threading.Event()
        fetched = []

        def fetch() -> None:
            while not ended.is_set():
                fetched.append(producer.client.fetch_cluster([b"t"], 5))

        helper = threading.Thread(target=fetch)
        helper.start()
        for first in range(0, 20_000, 1000):
            producer.send([Message(first + i, 0, b"v") for i in range(1000)], partition=first // 1000 % 6)
            producer.collect(1000)
        ended.set()
        helper.join(PATIENCE_S)
        assert fetched
        assert all(len(cluster.topics[b"t"]) == 6 for cluster in fetched)


def test_a_list_waits_for_no_other_answer(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read while the list of all topics is waited for: an unanswered question delays none."""
    begun, over = threading.Event(), threading.Event()

    def hang(*_: object) -> dict[bytes, object]:
        begun.set()
        over.wait(PATIENCE_S)
        return {}

    monkeypatch.setattr("dispatch.client.ask_lateness", hang)
    with connected(kafka) as producer:
        asking = threading.Thread(target=producer.client.fetch_lateness, args=([b"t"], PATIENCE_S))
        asking.start()
        assert begun.wait(PATIENCE_S)
        assert b"t" in producer.client.fetch_all(PATIENCE_S).topics
        assert asking.is_alive()
        over.set()
        asking.join()


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
    with connected(kafka, kafka={"statistics.interval.ms": "0"}) as producer:
        producer.client.library.queue_io_event_enable(
            producer.client.queue, wake, (1).to_bytes(8, "little"), 8
        )
        assert not select.select([wake], [], [], 0.2)[0]
        producer.send([Message(0, 0, b"v")], partition=0)
        assert select.select([wake], [], [], PATIENCE_S)[0]
        assert os.eventfd_read(wake) >= 1
        producer.collect(1)
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
    with connected(kafka, kafka={"statistics.interval.ms": "50"}) as producer:
        for partition in range(3):
            producer.send([Message(partition, 0, b"v")], partition=partition)

        def states() -> dict[int, str]:
            producer.pool.collect()
            return producer.client.broker_states()

        await_true(lambda: states() == dict.fromkeys((1, 2, 3), "UP"))
        kafka.down(2)
        await_true(lambda: states().get(2, "DOWN") == "DOWN")
        assert states()[1] == "UP"


def test_statistics_do_not_grow_with_the_topics(kafka: EmbeddedKafka) -> None:
    """Statistics name the brokers alone, whatever topics are called and however many there are."""
    options = DispatchOptions(
        kafka={"bootstrap.servers": kafka.bootstrap_servers, "statistics.interval.ms": "50"}
    )
    client = KafkaClient(options)
    names = [b"topics", b"brokers", b"toppars", b"a.b_c-d", *(b"t%d" % n for n in range(300))]
    client.fetch_cluster(names, 10)

    def settled() -> bool:
        client.note_events()
        brokers = client.statistics().get("brokers", {}).values()
        return sorted(b["nodeid"] for b in brokers if b["state"] == "UP" and b["rx"]) == [1, 2, 3]

    await_true(settled)
    since_us = client.statistics()["ts"]

    def newer() -> bool:
        client.note_events()
        return bool(client.statistics()["ts"] > since_us + 500_000)

    await_true(newer)
    statistics = client.statistics()
    assert all(broker["toppars"] == {} and "rtt" in broker for broker in statistics["brokers"].values())
    assert "topics" not in statistics
    client.close()


def test_statistics_are_read_whole_or_cut() -> None:
    """Statistics of a client without topics, with them, and of one that says less."""
    broker = b'"b/1": { "nodeid":1, "toppars":{ %s} } '
    lists = b"", b'"t-0": { "topic":"t", "partition":0} , "t-1": { "topic":"t", "partition":1} '
    for listed in lists:
        brokers = b'{ "ts":1, "brokers":{ ' + broker % listed + b"}, "
        for rest in (b"", b'"topics":{ "t": 1 } }'):
            found = parse_statistics(brokers + rest)
            assert found == {"ts": 1, "brokers": {"b/1": {"nodeid": 1, "toppars": {}}}}
    assert parse_statistics(b'{ "ts":1 }') == {"ts": 1}
    # A broker that gives itself a name with a quote in it breaks no process.
    assert parse_statistics(brokers.replace(b"b/1", b'b"/1') + b"} }") == {}


def test_errors_without_a_message_are_kept(kafka: EmbeddedKafka) -> None:
    """Losing every broker leaves a dated error with its name; the list is bounded."""
    # librdkafka says that all are down only when the last one to go had been connected.
    names = {"_ALL_BROKERS_DOWN", "_TRANSPORT"}
    with connected(kafka) as producer:
        kafka.down()

        def named() -> bool:
            producer.pool.collect()
            return any(error.name in names for error in producer.client.last_errors)

        await_true(named)
        assert producer.client.fatal is None
        assert producer.client.last_errors.maxlen


def test_a_fatal_error_is_remembered_and_refuses_messages(kafka: EmbeddedKafka) -> None:
    """After it `fatal` says why, and what is sent is held back with the code FATAL."""
    with connected(kafka) as producer:
        producer.client.library.test_fatal_error(
            producer.client.handle, Code.OUT_OF_ORDER_SEQUENCE, b"made up"
        )
        handed = producer.send([Message(5, 0, b"v")], partition=0)
        assert (handed.held, handed.error) == (1, Code.FATAL)
        await_true(lambda: producer.pool.collect().more or producer.client.fatal is not None)
        assert producer.client.fatal is not None
        assert "made up" in producer.client.fatal.text


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
    with connected(kafka) as producer:
        kafka.down()
        producer.send([Message(i, 0, b"v") for i in range(1000)], partition=0)
        started = time.monotonic()
        producer.client.close()
        assert time.monotonic() - started < 60
        producer.client.close()


MIB = 1 << 20


def options(kafka: EmbeddedKafka) -> DispatchOptions:
    """Kafka makes topics on demand."""
    return DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers})


def test_its_memory_has_a_bound() -> None:
    """The producer goes, and with it all that librdkafka keeps; each answer is about what was asked."""
    with EmbeddedKafka(topics=[("there", 3)]) as kafka:
        inquiry = Inquiry(options(kafka))
        memory = []
        for turn in range(12):
            names = [b"name-%d-%d" % (turn, n) for n in range(MOST_ASKED - 1)] + [b"there"]
            found = inquiry.ask(names, 10)
            assert found.topics.keys() == {b"there"}
            assert len(found.topics[b"there"]) == 3
            assert found.errors == dict.fromkeys(names[:-1], Code.UNKNOWN_TOPIC_OR_PART)
            gc.collect()
            memory.append(psutil.Process().memory_info().rss)
        inquiry.close()
        # A producer that is not thrown away takes 25 MiB each time.
        assert memory[-1] - memory[2] < 100 * MIB


def test_it_makes_no_topic_unless_it_is_to() -> None:
    """With a Kafka that makes topics on demand, asking for a name makes none; `make` does, `ask` finds it."""
    with EmbeddedKafka(topics=[("there", 3)]) as kafka:
        inquiry = Inquiry(options(kafka))
        assert inquiry.makes
        for _ in range(2):
            found = inquiry.ask([b"there", b"new", b"other"], 10)
            assert found.topics.keys() == {b"there"}
        inquiry.make([b"new"], 10)
        assert inquiry.ask([b"there", b"new", b"other"], 10).topics.keys() == {b"there", b"new"}
        inquiry.close()


def window(count: int, total: int, quantile: int) -> dict[str, int]:
    """One of the windows of STATISTICS.md."""
    return {"cnt": count, "sum": total, "p50": quantile, "p99": 2 * quantile}


def test_sums_and_quantiles() -> None:
    """Round trip and queue come in µs, throttle in ms; an empty window adds nothing, and has no quantile."""
    timings = BrokerLatency()
    seen: dict[str, Any] = {"nodeid": 7, "rtt": window(2, 300, 100), "int_latency": window(5, 50, 10)}
    timings.note({"brokers": {"b": {**seen, "throttle": window(1, 20, 20)}}})
    timings.note({"brokers": {"b": {**seen, "throttle": window(0, 0, 0)}, "boot": {"nodeid": -1}}})
    assert timings.table([7]).tolist() == [[4, 600, 100, 200, 10, 100, 10, 20, 1, 20_000, -1, -1]]
    assert timings.table([8, 7]).tolist()[0] == [0, 0, -1, -1] * 3
    assert timings.table([]).shape == (0, 12)


def test_each_window_counts_once(kafka: EmbeddedKafka) -> None:
    """Each message waited in one broker's queue once, however often the statistics are read."""
    with connected(kafka, kafka={"statistics.interval.ms": "50"}) as producer:
        producer.deliver({1: [Message(number, 0, b"v") for number in range(40)]})

        def counted() -> int:
            producer.pool.collect()
            for _ in range(3):
                producer.pool.observe()
            return int(producer.client.latency.table([1, 2, 3])[:, 4].sum())

        await_true(lambda: counted() > 0)
        since_us = producer.client.statistics()["ts"]
        await_true(lambda: counted() == 40 and producer.client.statistics()["ts"] > since_us + 200_000)


def test_a_ring_ends_the_wait() -> None:
    """From another thread, before the time is over; and once only."""
    wakeup = Wakeup()
    try:
        threading.Timer(0.05, wakeup.ring).start()
        began = time.monotonic()
        wakeup.wait(30)
        assert time.monotonic() - began < 10
        with pytest.raises(BlockingIOError):
            os.eventfd_read(wakeup.fd)
    finally:
        wakeup.close()


def test_a_late_ring_writes_nowhere() -> None:
    """A thread that ends behind `close` does not write into the file that has the number by then."""
    other, taken = os.eventfd(0, os.EFD_NONBLOCK), -1
    try:
        while True:
            wakeup = Wakeup()
            wakeup.close()
            taken = fcntl.fcntl(other, fcntl.F_DUPFD_CLOEXEC, wakeup.fd)
            if taken == wakeup.fd:
                break
            # Another thread of this process was faster.
            os.close(taken)
        wakeup.ring()
        with pytest.raises(BlockingIOError):
            os.eventfd_read(other)
    finally:
        os.close(other)
        os.close(taken)


def answered(*topics: tuple[bytes, list[int]]) -> MetadataStruct:
    """The metadata of topics with partitions of these ids, all led by broker 1."""
    found = [
        SimpleNamespace(
            error=0,
            name=name,
            partitions=[SimpleNamespace(id=one, leader=1) for one in ids],
            partition_count=len(ids),
        )
        for name, ids in topics
    ]
    told = SimpleNamespace(brokers=[], broker_count=0, topics=found, topic_count=len(found))
    return cast(MetadataStruct, told)


@pytest.mark.parametrize("name", [None, b"", b".", b"t" * 250, b"a b", b"\xff"])
def test_names_that_cannot_be(name: bytes) -> None:
    """A hostile broker's: librdkafka passes on topics that it was not asked for, and names of any length."""
    cluster = _read_cluster(answered((b"good", [0]), (name, [0])))
    assert list(cluster.topics) == [b"good"]
    assert cluster.errors == {}


@pytest.mark.parametrize("ids", [[], [-1], [1], [0, 2], [0, 0], [0, 2**31 - 1], [-5, 0]])
def test_partitions_that_cannot_be(ids: list[int]) -> None:
    """A topic has all from 0 on, and one at least: else it is as if it had no leader yet."""
    cluster = _read_cluster(answered((b"good", [1, 0]), (b"bad", ids)))
    assert list(cluster.topics) == [b"good"]
    assert cluster.topics[b"good"].tolist() == [1, 1]
    assert cluster.errors == {b"bad": Code.LEADER_NOT_AVAILABLE}
