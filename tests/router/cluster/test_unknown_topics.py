"""Names that Kafka cannot have, names that it does not have, and more of them than there is room for."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import pytest

from dispatch.client import Cluster, Inquiry
from router.cluster.metadata import IN_VAIN, Metadata
from router.outcomes.rejects import Rejection
from router.timing import FORGET_EVERY_S, FORGET_S, LIST_S
from spool.format.topic_table import OTHERS
from spool.format.wire import DEAD_LETTERED, Reason, encode_message
from tests.router.bench import Bench
from tests.router.fake import NO_ONE, FakeKafka


@contextmanager
def made(
    max_topics: int = 20, *, dead_letters: bytes = b"", grace_s: float = 5.0, **bounds: int
) -> Iterator[Bench]:
    """A bench with the topics `a` and `b`, where half of `max_topics` may be strangers.

    `bounds`: of Rejection.
    """
    bench = Bench(
        rejection=Rejection(dead_letters, None, bytes(16), grace_s, **bounds),
        max_topics=max_topics,
        chunk_bytes=600,
    )
    bench.kafka.leaders = {b"a": [1, 2, 3], b"b": [1, 2]}
    try:
        yield bench
    finally:
        bench.close()


def deny(bench: Bench, *topics: bytes) -> None:
    """Kafka says that it does not have these."""
    bench.kafka.denied |= dict.fromkeys(topics, 3)


def reasons(bench: Bench) -> dict[bytes, int]:
    """Topic -> the reason that its messages were discarded for."""
    return {bench.sent[sequence][0]: reason for sequence, reason in bench.discarded().items()}


def test_names_that_kafka_cannot_have_are_discarded_by_the_batch() -> None:
    """Kafka is asked for none of them, and they take no room; others go on."""
    with made() as bench:
        names = [b"no/name", b".", b"..", b"x" * 250, b"\0", *(b"no name %d" % n for n in range(40))]
        bench.send([(name, 1, b"") for name in names] + [(b"a", 1, b"")] * 3)
        bench.settle()
        bench.check_complete()
        assert reasons(bench) == dict.fromkeys(names, Reason.UNKNOWN_TOPIC)
        assert bench.metadata.wanted == {b"a"}
        assert not bench.metadata.was_listed
        assert {d.topic for d in bench.outcomes().discarded} == set(names)


def test_a_topic_that_is_not_there_yet_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """One line of INFO while its messages wait; an error when its grace time is over."""
    caplog.set_level(logging.INFO, "bruce.router")
    with made() as bench:
        deny(bench, b"c")
        bench.send([(b"c", 1, b"")] * 3)
        for _ in range(3):
            bench.step(20)
            bench.answer()
            bench.metadata.pending = True
            bench.clock.now += 1
        bench.step(20)
        assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
            ("INFO", "Kafka does not have the topic c yet; its messages are held for up to 5 s")
        ]
        bench.clock.now += 6
        bench.metadata.pending = True
        bench.settle()
        assert [r.levelname for r in caplog.records] == ["INFO", "ERROR"]


def test_strangers_take_half_of_the_table() -> None:
    """Names beyond are discarded at once, for a reason of their own; the others wait for their grace time."""
    with made() as bench:
        names = [b"bogus-%d" % n for n in range(40)]
        deny(bench, *names)
        for name in names:
            bench.send([(name, 1, b""), (b"a", 1, b"")])
        bench.step(60)
        bench.answer()
        bench.step(60)
        bench.router.commit()
        assert reasons(bench) == dict.fromkeys(names[10:], Reason.TOO_MANY_TOPICS)
        assert len(bench.kafka.logs[b"a", 1]) == 40
        bench.clock.now += 5
        bench.metadata.pending = True
        bench.settle()
        bench.check_complete()
        assert Counter(reasons(bench).values()) == {Reason.TOO_MANY_TOPICS: 30, Reason.UNKNOWN_TOPIC: 10}


@pytest.mark.parametrize("dead_letters", [b"", b"a"])
def test_topics_that_kafka_has_always_have_room(dead_letters: bytes) -> None:
    """However many strangers came before: Kafka is asked which topics it has before any is discarded."""
    with made(dead_letters=dead_letters) as bench:
        names = [b"bogus-%d" % n for n in range(60)]
        deny(bench, *names)
        bench.send([(name, 1, b"") for name in names[:30]])
        bench.step(60)
        # The first message of a topic that Kafka has, amid more of them.
        bench.kafka.leaders[b"late"] = [2, 3]
        bench.clock.now += LIST_S
        for name in names[30:]:
            bench.send([(name, 1, b""), (b"late", 1, b""), (b"b", 1, b"")])
        bench.step(60)
        bench.metadata.pending = True
        bench.clock.now += 6
        bench.settle()
        bench.check_complete()
        assert len(bench.kafka.logs[b"late", 1]) == len(bench.kafka.logs[b"b", 1]) == 30
        bench.check_order()
        counted = Counter(reasons(bench).values())
        flag = DEAD_LETTERED if dead_letters else 0
        assert counted.keys() == {Reason.TOO_MANY_TOPICS | flag, Reason.UNKNOWN_TOPIC | flag}
        assert counted.total() == 60


def test_the_list_is_there_before_strangers_fill_their_places() -> None:
    """Kafka is asked for it when they have a quarter of them: then others go on, though it is silent."""
    with made() as bench:
        names = [b"bogus-%d" % n for n in range(40)]
        deny(bench, *names)
        bench.send([(b"a", 1, b""), *((name, 1, b"") for name in names[:3])])
        for _ in range(3):
            bench.step(20)
            bench.answer()
            bench.clock.now += 0.2
        assert bench.metadata.was_listed
        bench.metadata.deaf = True
        bench.send([(name, 1, b"") for name in names[3:]])
        bench.send([(b"a", 1, b"")] * 5)
        bench.step(100)
        bench.answer()
        assert len(bench.kafka.logs[b"a", 1]) == 6


def test_nothing_is_discarded_before_kafka_says_what_it_has() -> None:
    """While it does not answer, all that follows waits in the log; then it goes on where it was."""
    with made() as bench:
        deny(bench, *(b"bogus-%d" % n for n in range(40)))
        bench.metadata.deaf = True
        bench.send([(b"bogus-%d" % n, 1, b"") for n in range(40)])
        bench.send([(b"a", 1, b"")] * 5)
        bench.step(100)
        assert bench.router.read_position == 10
        bench.router.commit()
        assert bench.discarded() == {}
        bench.metadata.deaf = False
        bench.step(60)
        bench.answer()
        assert bench.router.read_position == bench.end
        assert len(bench.kafka.logs[b"a", 1]) == 5


def test_strangers_that_were_given_up_make_room() -> None:
    """For ever new ones: each has its grace time, and a topic that is made meanwhile gets its messages."""
    with made() as bench:
        for turn in range(12):
            names = [b"bogus-%d-%d" % (turn, n) for n in range(10)]
            deny(bench, *names)
            bench.send([(name, 1, b"") for name in names] + [(b"a", 1, b"")])
            bench.step(30)
            if turn == 7:
                bench.kafka.leaders[names[3]] = [1]
            bench.clock.now += 6
            bench.metadata.pending = True
            bench.settle()
        bench.check_complete()
        assert set(reasons(bench).values()) == {Reason.UNKNOWN_TOPIC}
        assert len(reasons(bench)) == 119
        assert len(bench.kafka.logs[b"bogus-7-3", 0]) == 1
        assert len(bench.topics.names) == 2 + 10 + 3


def test_a_topic_waits_though_its_name_was_forgotten_before() -> None:
    """A name that comes again is a stranger like any other: it waits until the topic is there."""
    with made() as bench:
        names = [b"bogus-%d" % n for n in range(10)]
        deny(bench, b"again", *names)
        bench.send([(b"again", 1, b"")])
        bench.step(20)
        bench.clock.now += 6
        bench.metadata.pending = True
        bench.settle()
        bench.send([(name, 1, b"") for name in names])
        bench.step(20)
        assert bench.topics.find(b"again") == -1
        bench.clock.now += 6
        bench.metadata.pending = True
        bench.settle()
        first = bench.send([(b"again", 1, b"")])
        bench.step(20)
        bench.kafka.leaders[b"again"] = [1]
        bench.metadata.pending = True
        bench.settle()
        assert bench.kafka.logs[b"again", 0] == first
        bench.check_complete()


def test_discards_of_many_topics_are_summed_up() -> None:
    """The first names keep their own counts, over a restart, too; of each reason the sum is exact."""
    with made(names=20) as bench:
        for turn in range(3):
            names = [b"no name %d" % (30 * turn + n) for n in range(30)]
            bench.send([(name, 1, b"") for name in names] + [(b"no name 3", 1, b"")])
            bench.settle()
            bench.restart()
        found = {d.topic: d.count for d in bench.outcomes().discarded}
        assert found.pop(OTHERS) == 70
        assert found.pop(b"no name 3") == 4
        assert found == {b"no name %d" % n: 1 for n in range(20) if n != 3}
        bench.check_complete()


def test_what_waited_is_given_up_before_its_name_is_forgotten() -> None:
    """New strangers come in the moment in which the grace time of others ends."""
    with made() as bench:
        old, new = ([b"%s-%d" % (name, n) for n in range(10)] for name in (b"old", b"new"))
        deny(bench, *old, *new)
        bench.send([(name, 1, b"") for name in old])
        bench.step(20)
        bench.clock.now += 6
        bench.metadata.pending = True
        bench.send([(name, 1, b"") for name in new])
        # In less than another grace time.
        bench.step(60)
        bench.router.commit()
        assert {reasons(bench).get(name) for name in old} == {Reason.UNKNOWN_TOPIC}
        bench.clock.now += 6
        bench.metadata.pending = True
        bench.settle()
        bench.check_complete()


def let_forget(bench: Bench) -> None:
    """Time passes until names that were given up are forgotten."""
    bench.clock.now += FORGET_S + FORGET_EVERY_S
    bench.step(2)


def give_up(bench: Bench, *names: bytes) -> None:
    """Send a message of each of these names that Kafka does not have, and wait until they are given up."""
    deny(bench, *names)
    bench.send([(name, 1, b"") for name in names])
    bench.step(20)
    bench.clock.now += 6
    bench.metadata.pending = True
    bench.settle()


def asks_what_it_is_asked_for(bench: Bench) -> Metadata:
    """The metadata of the daemon over the bench's Kafka, which answers about the names in each question."""

    def answer(names: Collection[bytes], _timeout_s: float) -> Cluster:
        cluster = bench.kafka.cluster()
        topics = {name: leaders for name, leaders in cluster.topics.items() if name in names}
        return Cluster(cluster.brokers, topics, {name: 3 for name in names if name not in topics})

    class Asked(Inquiry):
        def __init__(self) -> None:
            self.makes = False

        def ask(self, names: Collection[bytes], timeout_s: float) -> Cluster:
            return answer(names, timeout_s)

        def close(self) -> None:
            """Nothing is open."""

    return Metadata(answer, lambda: None, Asked())


def until(bench: Bench, holds: Callable[[], object]) -> None:
    """Let the router and the thread of the metadata run."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        bench.step()
        bench.answer()
        bench.router.commit()
        time.sleep(0.01)


def test_a_topic_that_is_made_after_its_name_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next message is delivered, though Kafka was not asked for the name any more.

    The names that were given up before take nothing away from it.
    """
    made_by_bench = list[Metadata]()

    def metadata(kafka: FakeKafka) -> Metadata:
        del kafka
        made_by_bench.append(asks_what_it_is_asked_for(bench))
        return made_by_bench[-1]

    with made(max_topics=100) as bench:
        bench.crash()
        monkeypatch.setattr("tests.router.bench.FakeMetadata", metadata)
        bench.open()
        try:
            names = [b"bogus-%d" % n for n in range(IN_VAIN + 1)]
            bench.send([(b"a", 1, b""), *((name, 1, b"") for name in names)])
            until(bench, lambda: len(bench.router._unknown._denied) == len(names))
            bench.clock.now += 6
            until(bench, lambda: reasons(bench) == dict.fromkeys(names, Reason.UNKNOWN_TOPIC))
            let_forget(bench)
            assert not bench.router._unknown.gone
            assert made_by_bench[-1]._topics == {b"a"}
            bench.kafka.leaders[names[-1]] = [1]
            sent = bench.send([(names[-1], 1, b"")])
            until(bench, lambda: bench.kafka.logs[names[-1], 0] == sent)
            until(bench, lambda: bench.acks.low_watermark == bench.end)
            bench.check_complete()
        finally:
            for one in made_by_bench:
                one.stop()


def test_a_name_that_was_forgotten_waits_for_the_grace_time_again() -> None:
    """While its messages come: some are discarded at once, and later ones wait."""
    with made() as bench:
        for _ in range(3):
            give_up(bench, b"bogus")
            at_once = bench.send([(b"bogus", 1, b"")])
            bench.settle()
            let_forget(bench)
            assert bench.topics.find(b"bogus") == -1
            waits = bench.send([(b"bogus", 1, b""), (b"a", 1, b"")])
            bench.step(20)
            bench.router.commit()
            assert bench.discarded().keys().isdisjoint(waits)
            assert bench.discarded().keys() >= set(at_once)
        bench.clock.now += 6
        bench.metadata.pending = True
        bench.settle()
        bench.check_complete()


def test_a_topic_that_was_deleted_is_not_given_up_for_good() -> None:
    """A message that comes later waits for its grace time, and is delivered when the topic is there again."""
    with made() as bench:
        bench.send([(b"b", 1, b"")])
        bench.settle()
        del bench.kafka.leaders[b"b"]
        deny(bench, b"b")
        bench.metadata.pending = True
        bench.step()
        give_up(bench, b"b")
        assert bench.router._unknown.deleted
        let_forget(bench)
        assert not bench.router._unknown.gone
        assert not bench.router._unknown.deleted
        sent = bench.send([(b"b", 1, b"")])
        bench.step(20)
        bench.kafka.leaders[b"b"] = [1, 2]
        bench.metadata.pending = True
        bench.settle()
        assert bench.kafka.logs[b"b", 1][-1:] == sent
        bench.check_complete()


def test_a_name_that_was_given_up_costs_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch in which it is not goes the short way, without a look at each topic and partition."""
    with made() as bench:
        bench.send([(b"a", 1, b"")])
        bench.settle()
        give_up(bench, b"bogus")
        assert bench.router._unknown.gone
        long_way = list[int]()
        hand_over = bench.router._batches._hand_over
        monkeypatch.setattr(
            bench.router._batches, "_hand_over", lambda *a, **k: (long_way.append(1), hand_over(*a, **k))
        )
        bench.send([(b"a", 1, b"")] * 3)
        bench.settle()
        assert not long_way
        bench.send([(b"a", 1, b""), (b"bogus", 1, b"")])
        bench.settle()
        assert long_way
        bench.check_complete()


def test_names_that_a_pass_comes_by_again_take_no_place_for_good() -> None:
    """They have numbers again though nothing of them is open; these are for others, too."""
    with made() as bench:
        bench.kafka.leaders[b"a"] = [1, NO_ONE, 3]
        bench.send([(b"a", 1, b"")])
        names = [b"bogus-%d" % n for n in range(10)]
        give_up_while_held(bench, *names)
        let_forget(bench)
        assert bench.topics.find(names[0]) == -1
        bench.kafka.leaders[b"a"] = [1, 2, 3]
        bench.metadata.pending = True
        bench.settle()
        assert bench.topics.find(names[0]) >= 0
        bench.clock.now += FORGET_EVERY_S
        bench.step(2)
        assert {bench.topics.find(name) for name in names} == {-1}
        bench.check_complete()


def give_up_while_held(bench: Bench, *names: bytes) -> None:
    """The same while a partition is held, so that not everything is resolved."""
    deny(bench, *names)
    bench.send([(name, 1, b"") for name in names])
    bench.step(20)
    bench.clock.now += 6
    bench.metadata.pending = True
    bench.step(50)
    bench.router.commit()
    assert reasons(bench) == dict.fromkeys(names, Reason.UNKNOWN_TOPIC)


def test_a_message_before_one_without_a_place_is_given_up_with_its_name() -> None:
    """Others' names are forgotten for the later one, and not that of a message that is just being read."""
    with made() as bench:
        names = [b"bogus-%d" % n for n in range(10)]
        give_up(bench, *names)
        deny(bench, b"new")
        first, _, last = bench.send([(names[0], 1, b""), (b"new", 1, b""), (b"a", 1, b"")])
        bench.step(20)
        bench.answer()
        bench.router.commit()
        assert bench.discarded()[first] == Reason.UNKNOWN_TOPIC
        assert bench.router._unknown.waiting == {bench.topics.find(b"new"): first + 1}
        assert bench.kafka.logs[b"a", 1] == [last]
        bench.clock.now += 6
        bench.metadata.pending = True
        bench.settle()
        bench.check_complete()


def send_to(bench: Bench, topic: bytes, *partitions: int) -> list[int]:
    """A frame of messages that name these partitions, synced; their sequences."""
    first = bench.spool.append([encode_message(topic, b"v", partition=number) for number in partitions])
    sequences = list(range(first, first + len(partitions)))
    bench.sent.update(dict.fromkeys(sequences, (topic, None, b"v")))
    bench.spool.step()
    return sequences


def test_a_partition_that_a_topic_does_not_have() -> None:
    """Its messages are discarded for that reason, once Kafka was asked; those of other partitions go on."""
    with made() as bench:
        bench.send([(b"a", 1, b"")])
        bench.settle()
        bad = send_to(bench, b"a", len(bench.kafka.leaders[b"a"]), -1, 2**31 - 1)
        good = send_to(bench, b"a", 1, 0)
        bench.metadata.asked_at = 0.0
        bench.metadata.pending = True
        bench.step(20)
        bench.answer()
        assert not bench.discarded(), "the answer is older than the messages"
        assert set(good) <= set(bench.appended())
        bench.metadata.asked_at = math.inf
        bench.settle()
        assert bench.discarded() == dict.fromkeys(bad, Reason.PARTITION)
        bench.check_complete()


def test_a_partition_that_a_topic_has_by_now() -> None:
    """A message to a partition that was made after Kafka was asked last waits for the next answer."""
    with made() as bench:
        bench.send([(b"a", 1, b"")])
        bench.settle()
        count = len(bench.kafka.leaders[b"a"])
        (new,) = send_to(bench, b"a", count)
        bench.kafka.leaders[b"a"].append(1)
        bench.settle()
        assert bench.kafka.logs[b"a", count] == [new]
        assert not bench.discarded()
        bench.check_complete()


def test_a_flood_of_partitions_that_are_not_there() -> None:
    """Those that were read before Kafka was asked are discarded, while others come in without an end."""
    with made() as bench:
        bench.send([(b"a", 1, b"")])
        bench.settle()
        sent = []
        for _ in range(20):
            sent += send_to(bench, b"a", 77)
            bench.metadata.asked_at = bench.clock.now
            bench.step(2)
        bench.router.commit()
        lost = bench.discarded()
        assert set(lost) <= set(sent)
        assert len(lost) >= len(sent) - 3
        bench.metadata.asked_at = math.inf
        bench.settle()
        bench.check_complete()
