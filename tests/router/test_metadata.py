"""Asking for metadata, again and again."""

from __future__ import annotations

import threading
from collections.abc import Collection

import numpy as np

from dispatch.cluster import Cluster
from dispatch.errors import Unreachable
from dispatch.inquiry import Inquiry
from router.metadata import IN_VAIN, STRANGERS_AT_ONCE, Metadata


def test_attempts_are_counted() -> None:
    """Those without an answer apart from those with one; told of once."""
    fails, answered = [True, True, False], threading.Event()

    def fetch(_topics: list[bytes], _timeout_s: float) -> Cluster:
        if fails.pop(0):
            raise Unreachable(-1, "nobody is there")
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

    def ask(self, names: Collection[bytes], timeout_s: float) -> Cluster:
        self.asked.append(sorted(names))
        leaders = np.array([1], np.int32)
        return Cluster(
            {}, {n: leaders for n in self.has if n in names}, {n: 3 for n in names if n not in self.has}
        )

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
        # Nobody looks for them any more.
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
