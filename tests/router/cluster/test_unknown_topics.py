"""Names that Kafka cannot have, names that it does not have, and more of them than there is room for."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from router.outcomes.rejects import Rejection
from router.timing import LIST_S
from spool.format.topic_table import OTHERS
from spool.format.wire import DEAD_LETTERED, Reason
from tests.router.bench import Bench


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
        assert [(r.levelname, r.message) for r in caplog.records] == [
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
