"""Delivery mode at_most_once: marked before it is sent, so that no crash sends a message twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from dispatch.embedded import EmbeddedKafka
from dispatch.librdkafka import PURGE_ALL
from dispatch.pool import HandedOver
from spool.format.batch import Batch
from spool.format.wire import Reason
from tests.router.outlet import keyed, numbers, outlet

PARTITIONS = 3
COUNT = 900


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One topic."""
    with EmbeddedKafka(brokers=3, topics=[("t", PARTITIONS)]) as running:
        yield running


def test_each_message_arrives_once(kafka: EmbeddedKafka) -> None:
    """Without trouble nothing is missing either."""
    with outlet(kafka, mode="at_most_once") as running:
        running.send(keyed(COUNT))
        outcomes = running.finish()
        assert (outcomes.resolved, outcomes.discarded) == (COUNT, [])
        assert sorted(numbers(running.consume("t", PARTITIONS, COUNT))) == list(range(COUNT))


def test_no_crash_sends_a_message_twice(kafka: EmbeddedKafka) -> None:
    """Killed again and again as soon as something was handed over, before any report is written down."""
    with outlet(kafka, mode="at_most_once", window_messages=40) as running:
        running.send(keyed(COUNT))
        for _ in range(12):
            running.run(lambda: running.router.in_flight() > 0 or running.resolved >= COUNT)
            running.restart()
        running.finish()
        found = Counter(numbers(running.consume("t", PARTITIONS, 1)))
        assert set(found.values()) == {1}


def test_marks_are_there_before_librdkafka_has_the_message(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each hand-over, its messages are resolved for a successor after a crash."""
    with outlet(kafka, mode="at_most_once") as running:
        unmarked = []
        send = running.pool.send

        def watched(batch: Batch, flat: npt.NDArray[np.int32], *, catching_up: bool = False) -> HandedOver:
            going = batch.sequence[flat >= 0]
            marked: set[int] = set()
            for info, chunk, bits in running.marks.chunks():
                first = info.first_sequence + chunk * 8 * len(bits)
                marked.update((first + np.flatnonzero(np.unpackbits(bits, bitorder="little"))).tolist())
            unmarked.extend(set(going.tolist()) - marked)
            return send(batch, flat, catching_up=catching_up)

        monkeypatch.setattr(running.pool, "send", watched)
        running.send(keyed(COUNT))
        running.finish()
        assert unmarked == []


def test_what_may_be_lost_is_counted(kafka: EmbeddedKafka) -> None:
    """A message that was handed over and comes back with an error is discarded as unconfirmed."""
    with outlet(kafka, mode="at_most_once", kafka_properties={"linger.ms": "2000"}) as running:
        running.send(keyed(60))
        running.run(lambda: running.router.in_flight() == 60)
        running.client.library.purge(running.client.handle, PURGE_ALL)
        outcomes = running.finish()
        assert outcomes.resolved == 60
        assert [(d.reason, d.count) for d in outcomes.discarded] == [(Reason.UNCONFIRMED, 60)]
