"""From a real spool to the embedded Kafka: outages, refusals, restarts; nothing lost, and in order."""

from __future__ import annotations

import time

import numpy as np
import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import Reason
from tests.router.conftest import PARTITIONS
from tests.router.outlet import NO_AUTO, anywhere, check_order, duplicates, keyed, numbers, outlet
from tests.spool import plain
from tests.spool.stored import lost_of


def interleave(*parts: list[bytes]) -> list[bytes]:
    """One of each in turn."""
    return [message for row in zip(*parts, strict=True) for message in row]


def test_everything_once(kafka: EmbeddedKafka) -> None:
    """Two topics, keyed and not, over several segments: each message once, marked, its segment retirable."""
    count = 20_000
    with outlet(kafka) as bruce:
        messages = interleave(keyed(count), anywhere(count), anywhere(count, topic=b"u"))
        bruce.send(messages[:30_000])
        bruce.run(lambda: bruce.resolved > 10_000)
        bruce.send(messages[30_000:])
        outcomes = bruce.finish()
        assert outcomes == (3 * count, 3 * count, [])
        records = bruce.consume("t", PARTITIONS, 2 * count)
        assert len(records) == 2 * count
        assert duplicates([r for r in records if not r.value().startswith(b"any")]) == 0
        check_order(records)
        assert sorted(numbers(bruce.consume("u", 2, count))) == list(range(count))


def test_a_broker_that_is_down_holds_back_its_own(kafka: EmbeddedKafka) -> None:
    """Keyed messages of the others go on, and so does what may go anywhere; up again, all comes in order."""
    with outlet(kafka, window_messages=500) as bruce:
        bruce.send(keyed(60))
        bruce.finish()
        kafka.down(2)
        bruce.run_for(1.5)
        bruce.send(interleave(keyed(6000, first=60), anywhere(6000)))
        # A third of the keyed ones is of broker 2, and what was in its window.
        bruce.run(lambda: bruce.resolved >= 60 + 6000 + 4000 - 500)

        def offset(broker: int) -> int:
            return next(view.offset for view in bruce.router.brokers() if view.id == broker)

        bruce.run(lambda: min(offset(1), offset(3)) >= 60 + 11_000)
        assert bruce.resolved < 60 + 12_000 - 1000
        assert offset(2) < 200
        kafka.up(2)
        bruce.finish()
        records = bruce.consume("t", PARTITIONS, 12_060)
        assert len(records) == 12_060
        check_order(records)


def test_the_only_partition_keeps_the_order(kafka: EmbeddedKafka) -> None:
    """Messages without a key stay in order through an outage and a small window, if there is no choice."""
    kafka.topic("one", 1)
    with outlet(kafka, window_messages=200, kafka_properties={"request.timeout.ms": "2000"}) as bruce:
        messages = anywhere(9000, topic=b"one")
        bruce.send(messages[:1000])
        bruce.run(lambda: bruce.resolved >= 100)
        for broker in (1, 2, 3):
            kafka.down(broker)
        bruce.send(messages[1000:4000])
        bruce.run_for(1)
        for broker in (1, 2, 3):
            kafka.up(broker)
        for first in range(4000, 9000, 100):
            bruce.send(messages[first : first + 100])
            bruce.run_for(0.002)
        bruce.finish()
        records = bruce.consume("one", 1, 9000)
        first_seen = list(dict.fromkeys(numbers(records)))
        assert first_seen == list(range(9000))


def test_a_frozen_broker_holds_back_its_own(kafka: EmbeddedKafka) -> None:
    """It takes connections and answers none. Its messages in flight may come twice, in order."""
    with outlet(kafka, window_messages=200, kafka_properties={"request.timeout.ms": "2000"}) as bruce:
        bruce.send(keyed(60))
        bruce.finish()
        kafka.rtt(1, 600_000)
        bruce.send(keyed(6000, first=60))
        bruce.run(lambda: bruce.resolved >= 60 + 4000)
        assert bruce.resolved < 60 + 4000 + 300
        kafka.rtt(1, 0)
        bruce.finish(60)
        records = bruce.consume("t", PARTITIONS, 6060)
        assert set(numbers(records)) == set(range(6060))
        check_order(records)


@pytest.mark.sample(one_of=2)
@pytest.mark.parametrize(("messages", "size"), [(1, 1 << 20), (7, 1 << 20), (1000, 3000), (50, 500)])
def test_the_window_is_kept(kafka: EmbeddedKafka, messages: int, size: int) -> None:
    """In messages and in bytes, however small it is; and everything arrives in order."""
    count = 150
    with outlet(kafka, window_messages=messages, window_bytes=size) as bruce:
        bruce.send(interleave(keyed(count), anywhere(count)))
        bruce.finish(60)
        assert bruce.most[0] <= messages
        assert bruce.most[1] <= size
        records = bruce.consume("t", PARTITIONS, 2 * count)
        assert len(records) == 2 * count
        check_order(records)


def test_a_message_larger_than_the_window_goes_alone(kafka: EmbeddedKafka) -> None:
    """It waits until nothing else is in flight, and holds no other message up for ever."""
    with outlet(kafka, window_bytes=2000) as bruce:
        bruce.send(keyed(30, first=0) + keyed(3, first=30, bytes_each=5000) + keyed(30, first=33))
        bruce.finish()
        records = bruce.consume("t", PARTITIONS, 63)
        assert len(records) == 63
        check_order(records)


def test_an_unknown_topic_waits_until_it_is_there(kafka: EmbeddedKafka) -> None:
    """By itself: the others go on. Created, its old messages go before its new ones."""
    with outlet(kafka, kafka_properties=NO_AUTO) as bruce:
        bruce.send(interleave(keyed(2000, topic=b"later"), keyed(2000)))
        bruce.run(lambda: bruce.resolved == 2000)
        bruce.run_for(0.5)
        assert bruce.resolved == 2000
        kafka.topic("later", 4)
        bruce.send(interleave(keyed(2000, topic=b"later", first=2000), keyed(2000, first=2000)))
        assert bruce.finish().discarded == []
        records = bruce.consume("later", 4, 4000)
        assert len(records) == 4000
        check_order(records)


def test_an_unknown_topic_is_given_up(kafka: EmbeddedKafka) -> None:
    """After its grace time, counted by topic and reason; names that Kafka never takes need none."""
    with outlet(kafka, kafka_properties=NO_AUTO, grace_s=1.0) as bruce:
        began = time.monotonic()
        bruce.send(interleave(keyed(1500, topic=b"never"), keyed(1500), anywhere(1500, topic=b"no/name")))
        bruce.run(lambda: bruce.resolved >= 3000)
        assert bruce.resolved == 3000 or time.monotonic() - began >= 1.0
        outcomes = bruce.finish()
        bruce.send(keyed(10, topic=b"never"))
        outcomes = bruce.finish()
        assert {(d.topic, d.reason, d.count) for d in outcomes.discarded} == {
            (b"never", Reason.UNKNOWN_TOPIC, 1510),
            (b"no/name", Reason.UNKNOWN_TOPIC, 1500),
        }
        assert outcomes.resolved == 4510
        # Created after all: what comes from now on is delivered.
        kafka.topic("never", 2)
        bruce.graph.kafka.metadata.want([])
        bruce.run_for(1.0)
        bruce.send(keyed(10, topic=b"never"))
        bruce.finish()
        assert len(bruce.consume("never", 2, 10)) == 10


def test_a_damaged_frame(kafka: EmbeddedKafka) -> None:
    """Its messages are discarded, each once, though both readers come by; the rest is delivered."""
    with outlet(kafka, segment_bytes=64 << 10) as bruce:
        kafka.down(2)
        bruce.send(keyed(5000))
        path = bruce.spool.layout.segment(0)
        frame = plain.read_segment(path.read_bytes()).frames[7]
        data = bytearray(path.read_bytes())
        data[frame.offset + 100] ^= 1
        path.write_bytes(data)
        bruce.run(lambda: bruce.resolved >= 2500)
        bruce.router.commit()
        bruce.restart()
        bruce.run_for(0.3)
        kafka.up(2)
        outcomes = bruce.finish()
        assert [(d.reason, d.count) for d in outcomes.discarded] == [(Reason.DAMAGED, 50)]
        assert set(lost_of(bruce.marks)) == set(range(350, 400))
        assert outcomes.resolved == 5000
        records = bruce.consume("t", PARTITIONS, 4950)
        assert set(numbers(records)) == set(range(5000)) - set(range(350, 400))
        check_order(records)


def test_a_restart_sends_what_is_not_marked(kafka: EmbeddedKafka) -> None:
    """And nothing else: a message is in Kafka again only if a kill met it handed over and not marked."""
    count = 20_000
    for partition in range(PARTITIONS):
        kafka.leader("t", partition, 1)
    kafka.rtt(1, 20)
    with outlet(kafka, window_messages=1000) as bruce:
        bruce.send(keyed(count))
        times = np.ones(count, np.int64)
        everything = np.arange(count)
        for _ in range(4):
            before = bruce.resolved
            bruce.run(lambda before=before: bruce.resolved > before + 1500)  # type: ignore[misc]
            bruce.router.commit()
            marked = bruce.resolved
            bruce.run(lambda before=before: bruce.resolved > before + 2500)  # type: ignore[misc]
            handed_over = ~bruce.acks.open(everything)
            bruce.restart()
            assert bruce.resolved >= marked
            times[bruce.acks.open(everything) & handed_over] += 1
        assert times.max() > 1
        assert (times == 1).sum() > 8000
        bruce.finish()
        records = bruce.consume("t", PARTITIONS, count)
        found = np.bincount(numbers(records), minlength=count)
        assert (found >= 1).all()
        assert (found <= times).all()
        check_order(records)


def test_without_a_kill_between_commits_nothing_comes_twice(kafka: EmbeddedKafka) -> None:
    """Stopped in order and started again, over and over."""
    with outlet(kafka, window_messages=300) as bruce:
        bruce.send(keyed(8000))
        for part in (2000, 4000, 6000):
            bruce.run(lambda part=part: bruce.resolved > part)  # type: ignore[misc]
            for _left in bruce.router.drained():
                time.sleep(0.001)
            bruce.router.commit()
            bruce.restart()
        bruce.finish()
        records = bruce.consume("t", PARTITIONS, 8000)
        assert len(records) == 8000
        check_order(records)


def test_leaders_that_move_between_kill_and_restart(kafka: EmbeddedKafka) -> None:
    """A message routed to one broker, not acknowledged, is routed to another: none lost, order kept."""
    with outlet(kafka, window_messages=300) as bruce:
        bruce.send(keyed(60))
        bruce.finish()
        kafka.down(2)
        bruce.send(keyed(6000, first=60))
        bruce.run(lambda: bruce.resolved > 3500)
        bruce.router.commit()
        bruce.kill()
        for partition in (1, 4):
            kafka.leader("t", partition, 3)
        kafka.leader("t", 0, 3)
        bruce.start()
        # Broker 2 stays down: it leads nothing any more.
        bruce.finish()
        kafka.up(2)
        records = bruce.consume("t", PARTITIONS, 6060)
        assert set(numbers(records)) == set(range(6060))
        check_order(records)


def test_leaders_that_move_while_messages_wait(kafka: EmbeddedKafka) -> None:
    """Messages held back for a broker go to the next leader, older messages first."""
    with outlet(kafka, window_messages=300) as bruce:
        bruce.send(keyed(60))
        bruce.finish()
        kafka.down(2)
        bruce.send(keyed(6000, first=60))
        bruce.run(lambda: bruce.resolved > 3500)
        for partition in (1, 4):
            kafka.leader("t", partition, 1)
        bruce.graph.kafka.metadata.want([])
        bruce.send(keyed(3000, first=6060))
        bruce.finish(60)
        kafka.up(2)
        records = bruce.consume("t", PARTITIONS, 9060)
        assert set(numbers(records)) == set(range(9060))
        check_order(records)


def test_a_broker_that_is_away_from_the_start(kafka: EmbeddedKafka) -> None:
    """Its partitions have no leader that is known; soon after it is there they are sent to."""
    with outlet(kafka) as bruce:
        kafka.down(2)
        bruce.send(keyed(600))
        bruce.run(lambda: bruce.resolved == 400)
        bruce.run_for(0.3)
        kafka.up(2)
        bruce.finish()
        check_order(bruce.consume("t", PARTITIONS, 600))


def test_catching_up_does_not_hold_up_the_others(kafka: EmbeddedKafka) -> None:
    """A broker comes back and is slow: new messages of the others arrive while it still catches up."""
    with outlet(kafka, window_messages=100) as bruce:
        bruce.send(keyed(60))
        bruce.finish()
        kafka.down(2)
        bruce.send(keyed(9000, first=60))
        bruce.run(lambda: bruce.resolved > 5500)
        kafka.rtt(2, 1500)
        kafka.up(2)
        bruce.run(lambda: bruce.resolved > 60 + 6200)
        before = bruce.resolved
        bruce.send(keyed(1200, first=9060))
        bruce.run(lambda: bruce.resolved >= before + 800)
        # A hundred messages each 1.5 s: broker 2 is far from done.
        assert bruce.acks.low_watermark < 6000
        kafka.rtt(2, 0)
        bruce.finish()
        records = bruce.consume("t", PARTITIONS, 10_260)
        check_order(records)


def test_a_topic_that_grows(kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture) -> None:
    """The log says from which message on the new count holds; a restart delivers everything."""
    with outlet(kafka, window_messages=300) as bruce:
        bruce.send(keyed(3000))
        bruce.run(lambda: bruce.resolved > 100)
        grown = bruce.router.read_position
        cluster = bruce.client.fetch_cluster([b"t"], 5)
        bruce.acks.partitions[b"t"] = [(0, 3)]
        bruce.router._history.note(bruce.pool.partitions.partitions_of, bruce.readers[0])
        assert f"instead of 3; that holds from message {grown} on" in caplog.text
        assert len(cluster.topics[b"t"]) == PARTITIONS
        bruce.restart()
        bruce.finish()
        assert set(numbers(bruce.consume("t", PARTITIONS, 3000))) == set(range(3000))
