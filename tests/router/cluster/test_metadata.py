"""Asking for metadata, again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from dispatch.client import Cluster, Inquiry
from dispatch.errors import Unreachable
from dispatch.topic_settings import Lateness
from router.cluster import metadata as module
from router.cluster.metadata import (
    IN_VAIN,
    IN_VAIN_EVER,
    MADE_PER_S,
    STRANGERS_AT_ONCE,
    LatenessWatch,
    Metadata,
)


@pytest.mark.parametrize("error", [Unreachable(-1, "no broker is there"), IndexError("-1"), ValueError("-5")])
def test_attempts_are_counted(error: Exception) -> None:
    """Those without an answer, or with one that cannot be used, apart from the others; each once."""
    fails, answered = [True, True, False], threading.Event()

    def fetch(_topics: list[bytes], _timeout_s: float) -> Cluster:
        if fails.pop(0):
            raise error
        return Cluster()

    metadata = Metadata(fetch, answered.set)
    try:
        metadata.want([b"t"])
        assert answered.wait(60)
        assert metadata.take_counts() == (1, 2)
        assert metadata.take_counts() == (0, 0)
    finally:
        metadata.stop()


class Asked(Inquiry):
    """An inquiry that has some topics, and notes what it is asked for."""

    def __init__(self, *has: bytes) -> None:
        self.has, self.asked, self.closed = has, list[list[bytes]](), 0
        self.makes, self.on_demand, self.made = True, False, list[bytes]()

    def ask(self, names: Collection[bytes], timeout_s: float) -> Cluster:
        self.asked.append(sorted(names))
        leaders = np.array([1], np.int32)
        return Cluster(
            {}, {n: leaders for n in self.has if n in names}, {n: 3 for n in names if n not in self.has}
        )

    def make(self, names: Collection[bytes], timeout_s: float) -> None:
        self.made.extend(names)
        self.has = (*self.has, *(names if self.on_demand else ()))

    def close(self) -> None:
        self.closed += 1


def test_strangers_are_asked_for_elsewhere() -> None:
    """The producer is asked for what Kafka has, and for few others; the rest is asked for in turns."""
    fetched: list[list[bytes]] = []
    leaders = np.array([1], np.int32)
    has = (b"late", b"ours", b"t")

    def fetch(topics: list[bytes], _timeout_s: float) -> Cluster:
        fetched.append(topics)
        return Cluster(
            {1: "b"}, {n: leaders for n in topics if n in has}, {n: 3 for n in topics if n not in has}
        )

    inquiry, answers = Asked(b"late"), threading.Semaphore(0)
    inquiry.makes = False
    metadata = Metadata(
        fetch, answers.release, inquiry, lambda _: Cluster({}, {b"all": leaders}), ours=[b"ours"]
    )
    try:
        strangers = [b"s%04d" % n for n in range(2500)]
        metadata.look_for([b"t", *strangers, b"late"])
        metadata.want([b"ours"])
        told: dict[bytes, int] = {}
        while len(told) < 2500 or b"late" not in metadata._topics:
            assert answers.acquire(timeout=60)
            cluster = metadata.take()
            told |= cluster.errors if cluster else {}
            metadata.want([])
        assert all(len(names) <= STRANGERS_AT_ONCE for names in inquiry.asked)
        assert {b"ours", b"late", b"t"} <= metadata._topics
        assert len(metadata._topics - set(has)) < IN_VAIN
        assert not set(fetched[0]).intersection(*inquiry.asked)
        # No message is waiting for them any more.
        metadata.look_for([])
        while not inquiry.closed:
            metadata.want([])
            assert answers.acquire(timeout=60)
        metadata.list_all()
        while (names := metadata.take_names()) is None:
            assert answers.acquire(timeout=60)
        assert names == {b"all"}
    finally:
        metadata.stop()


def test_few_topics_are_made_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many names come: IN_VAIN are asked for so that Kafka makes them, then MADE_PER_S a second."""
    now, leaders = [1000.0], np.array([1], np.int32)
    monkeypatch.setattr(
        "router.cluster.metadata.time", SimpleNamespace(**vars(time) | {"monotonic": lambda: now[0]})
    )
    inquiry, answers = Asked(), threading.Semaphore(0)
    inquiry.on_demand = True
    metadata = Metadata(
        lambda topics, _: Cluster({}, dict.fromkeys(topics, leaders)), answers.release, inquiry
    )

    def rounds(count: int) -> None:
        for _ in range(count):
            metadata.want([])
            assert answers.acquire(timeout=60)

    try:
        names = [b"s%04d" % n for n in range(2000)]
        metadata.look_for(names)
        rounds(6)
        assert metadata._topics == set(names[:IN_VAIN])
        assert inquiry.made == []
        now[0] += 2
        rounds(6)
        assert len(inquiry.made) == len(set(inquiry.made)) == 2 * MADE_PER_S
        # A topic that was made is found by the next question, and sent to like all others.
        assert metadata._topics == {*names[:IN_VAIN], *inquiry.made}
        # A long quiet time saves up no more than the initial number.
        now[0] += 3600
        rounds(6)
        assert len(inquiry.made) == 2 * MADE_PER_S + IN_VAIN
    finally:
        metadata.stop()


def test_a_name_is_unknown_once_kafka_was_to_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the router sees no error: of a thousand new topics none is given up unasked."""
    now = [1000.0]
    monkeypatch.setattr(
        "router.cluster.metadata.time", SimpleNamespace(**vars(time) | {"monotonic": lambda: now[0]})
    )
    inquiry, answers, told = Asked(), threading.Semaphore(0), set[bytes]()
    metadata = Metadata(lambda *_: Cluster(), answers.release, inquiry)

    def rounds(count: int) -> None:
        for _ in range(count):
            metadata.want([])
            assert answers.acquire(timeout=60)
            cluster = metadata.take()
            told.update(cluster.errors if cluster else ())

    try:
        metadata.look_for([b"s%04d" % n for n in range(1000)])
        rounds(4)
        assert not told
        now[0] += 3
        rounds(4)
        assert told == set(inquiry.made)
        assert len(told) == 3 * MADE_PER_S
    finally:
        metadata.stop()


def test_each_name_is_made_once() -> None:
    """Each name that Kafka does not make has its turn before any has another."""
    inquiry, answers = Asked(), threading.Semaphore(0)
    metadata = Metadata(lambda *_: Cluster(), answers.release, inquiry)
    names = [b"s%04d" % n for n in range(IN_VAIN + 8)]
    try:
        metadata.look_for(names)
        while len(inquiry.made) < 8:
            metadata.look_for(names)
            assert answers.acquire(timeout=60)
        for _ in range(4):
            metadata.look_for(names)
            assert answers.acquire(timeout=60)
        assert sorted(inquiry.made) == names[IN_VAIN:]
    finally:
        metadata.stop()


def test_names_that_are_forgotten_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that Kafka has stays. However many come over time, the producer is asked for IN_VAIN_EVER."""
    now, leaders = [1000.0], np.array([1], np.int32)
    monkeypatch.setattr(module, "time", SimpleNamespace(**vars(time) | {"monotonic": lambda: now[0]}))
    inquiry, answers, fetched = Asked(), threading.Semaphore(0), set[bytes]()
    inquiry.makes = False

    def fetch(topics: list[bytes], _timeout_s: float) -> Cluster:
        fetched.update(topics)
        return Cluster({}, {b"t": leaders}, {name: 3 for name in topics if name != b"t"})

    metadata = Metadata(fetch, answers.release, inquiry)
    try:
        metadata.want([b"t"])
        assert answers.acquire(timeout=60)
        for turn in range(3 * IN_VAIN_EVER // IN_VAIN):
            now[0] += IN_VAIN / MADE_PER_S
            names = [b"s%04d-%d" % (turn, n) for n in range(IN_VAIN)]
            metadata.want(names)
            assert len(metadata._topics) == (1 if turn >= IN_VAIN_EVER // IN_VAIN else 1 + IN_VAIN)
            metadata.forget([b"t", *names])
            assert metadata._topics == {b"t"}
        metadata.want([b"last"])
        metadata.look_for([b"last"])
        while [b"last"] not in inquiry.asked:
            assert answers.acquire(timeout=60)
        assert len(fetched) <= IN_VAIN_EVER + 1
    finally:
        metadata.stop()


def test_a_topic_that_is_found_while_its_name_is_forgotten_is_asked_for_again() -> None:
    """The router learns of its leaders, and would never hear of others."""
    begun, go_on, answers = threading.Event(), threading.Event(), threading.Semaphore(0)

    def fetch(topics: list[bytes], _timeout_s: float) -> Cluster:
        begun.set()
        assert go_on.wait(60)
        return Cluster({}, dict.fromkeys(topics, np.array([1], np.int32)))

    metadata = Metadata(fetch, answers.release)
    try:
        metadata.want([b"t"])
        assert begun.wait(60)
        metadata.forget([b"t"])
        go_on.set()
        assert answers.acquire(timeout=60)
        assert metadata._topics == {b"t"}
    finally:
        metadata.stop()


class Settings:
    """A Kafka that has settings for topics, and a file for them."""

    def __init__(self, **has: Lateness) -> None:
        self.has = {name.encode(): lateness for name, lateness in has.items()}
        self.asked: list[list[bytes]] = []
        self.kept: list[dict[bytes, Lateness]] = []

    def fetch(self, topics: Sequence[bytes], _timeout_s: float) -> dict[bytes, Lateness]:
        """Those of these topics that it has."""
        self.asked.append(list(topics))
        return {name: self.has[name] for name in topics if name in self.has}

    def keep(self, found: Mapping[bytes, Lateness]) -> None:
        """Note them."""
        self.kept.append(dict(found))


HOUR, DAY = Lateness(3600.0, None), Lateness(86400.0, None)


def test_settings_are_asked_for_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic when it is new, and after LATENESS_S; kept when they change, with those from before."""
    kafka, now = Settings(a=HOUR, b=DAY), [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(**vars(time) | {"monotonic": lambda: now[0]}))
    watch = LatenessWatch(kafka.fetch, {b"old": DAY}, kafka.keep)
    watch.look([b"a"])
    watch.look([b"a", b"b"])
    watch.look([b"a", b"b", b"denied"])
    assert kafka.asked == [[b"a"], [b"b"], [b"denied"]]
    assert kafka.kept == [{b"old": DAY, b"a": HOUR}, {b"old": DAY, b"a": HOUR, b"b": DAY}]
    now[0] += module.LATENESS_S
    watch.look([b"a", b"b", b"denied"])
    assert (len(kafka.asked), len(kafka.kept)) == (4, 2)
    kafka.has[b"a"] = DAY
    now[0] += module.LATENESS_S
    watch.look([b"a", b"b"])
    assert kafka.kept[2:] == [{b"old": DAY, b"a": DAY, b"b": DAY}]


def test_settings_of_many_topics() -> None:
    """No question is about more than MOST_SETTINGS; those of unused topics go when there are too many."""
    names = [b"t%d" % n for n in range(module.MOST_SETTINGS + 1)]
    kafka = Settings(**dict.fromkeys(map(bytes.decode, names), HOUR))
    old = {b"old%d" % n: DAY for n in range(module.MOST_REMEMBERED - module.MOST_SETTINGS)}
    watch = LatenessWatch(kafka.fetch, old, kafka.keep)
    for _ in range(3):
        watch.look(names)
    assert kafka.asked == [names[:-1], names[-1:]]
    assert kafka.kept == [old | dict.fromkeys(names[:-1], HOUR), dict.fromkeys(names, HOUR)]


def test_a_disk_that_refuses_the_settings(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so, and metadata are fetched on."""

    def refuse(_found: Mapping[bytes, Lateness]) -> None:
        raise OSError(28, "No space left on device")

    LatenessWatch(Settings(a=HOUR).fetch, {}, refuse).look([b"a"])
    assert "brucectl does not know them: [Errno 28] No space left on device" in caplog.text


def test_names_of_clients_take_the_place_of_those_before() -> None:
    """Any client of the Kafka input may make names up, for ever; one that Kafka has is found among them."""
    inquiry, answered = Asked(b"there"), threading.Event()
    metadata = Metadata(
        lambda names, _s: Cluster({}, {n: np.array([1], np.int32) for n in names}),
        answered.set,
        inquiry=inquiry,
    )
    try:
        for number in range(50):
            metadata.want_for_clients([b"%d-%d" % (number, one) for one in range(100)])
        assert len(metadata._of_clients) + len(metadata._strangers) <= 100
        metadata.want_for_clients([b"there", b"not"])
        end = time.monotonic() + 60
        while b"there" not in metadata._known:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert not metadata._topics - {b"there"}
        assert len(metadata._tried) <= 2
    finally:
        metadata.stop()
