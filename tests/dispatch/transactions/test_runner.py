"""The thread of a transactional task, beside one who leaves it."""

from __future__ import annotations

import threading
from typing import Any

from dispatch.transactions.runner import Begun, TransactionRunner


class SlowTopic:
    """A progress topic whose answer comes when it is let go."""

    def __init__(self) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()

    def read(self, _place: object) -> tuple[None, None]:
        """The reads that a transactional task makes when it begins."""
        self.asked.set()
        assert self.answer.wait(30)
        return None, None


class Client:
    """A producer that is granted all."""

    def transact(self, *_: object) -> None:
        """It has worked."""


def begun(woken: list[int]) -> tuple[TransactionRunner, SlowTopic]:
    """A transactional task whose thread waits for Kafka."""
    topic: Any = SlowTopic()
    client: Any = Client()
    runner = TransactionRunner(client, topic, lambda: woken.append(1))
    by: Any = None
    runner.begin(None, by, None)
    assert topic.asked.wait(30)
    return runner, topic


def test_it_wakes_who_waits() -> None:
    """Once, when there is a result."""
    woken: list[int] = []
    runner, topic = begun(woken)
    topic.answer.set()
    runner._thread.shutdown(wait=True)
    assert woken == [1]
    assert isinstance(runner.take(), Begun)


def test_who_has_left_is_not_woken() -> None:
    """An answer after `close` writes to no descriptor: its number may be that of another file by then."""
    woken: list[int] = []
    runner, topic = begun(woken)
    assert not runner.close(timeout_s=0.0)
    topic.answer.set()
    runner._thread.shutdown(wait=True)
    assert woken == []
