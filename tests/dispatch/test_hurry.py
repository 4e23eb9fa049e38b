"""Sending without lingering, by a thread that may hang."""

from __future__ import annotations

import threading

import pytest

from dispatch.embedded import EmbeddedKafka
from tests.dispatch.batches import Message
from tests.dispatch.fixture import PATIENCE_S, await_true, connected, pairs


def test_in_a_hurry_it_does_not_linger(kafka: EmbeddedKafka) -> None:
    """Between two collections a client whose linger would last a minute is emptied."""
    with connected(kafka, kafka={"linger.ms": "60000"}) as producer:
        producer.send([Message(i, 0, b"v") for i in range(10)], partition=0)
        found: dict[int, int] = {}

        def sent() -> bool:
            producer.client.hurry()
            found.update(pairs(producer.pool.collect()))
            return len(found) == 10

        await_true(sent)
        assert found == dict.fromkeys(range(10), 0)


def test_a_flush_that_hangs_holds_up_nothing(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the time of day is set back: messages are sent, reports are read, and the client is closed."""
    begun, over = threading.Event(), threading.Event()

    def hang(*_: object) -> int:
        begun.set()
        return int(over.wait(PATIENCE_S))

    with connected(kafka) as producer:
        monkeypatch.setattr(producer.client.library, "flush", hang)
        producer.client.hurry()
        assert begun.wait(PATIENCE_S)
        producer.send([Message(i, 0, b"v") for i in range(10)], partition=0)
        producer.client.hurry()
        found: dict[int, int] = {}

        def reported() -> bool:
            found.update(pairs(producer.pool.collect()))
            return len(found) == 10

        await_true(reported)
        producer.client.close()
    over.set()
