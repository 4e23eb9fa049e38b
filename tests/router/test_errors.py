"""Errors that a cluster answers with for a while: nothing is lost, discarded or reordered by any of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatch.embedded import EmbeddedKafka
from dispatch.errors import Code
from dispatch.retry import Action, decide
from tests.router.outlet import check_order, keyed, numbers, outlet

PRODUCE = 0
PARTITIONS = 3
COUNT = 600

PASSING = {
    "retry": (-1, 2, 7, 13, 19, 20, 22, 42, 89),
    "refresh": (3, 5, 6, 8, 9, 29, 56, 74, 75, 100),
    "rebuild": (45, 47, 59),
    "stop": (31,),
    "refused as a batch": (10, 18, 32, 87),
}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A cluster of its own for each: some errors are remembered by brokers."""
    with EmbeddedKafka(brokers=3, topics=[("t", PARTITIONS)]) as running:
        yield running


@pytest.mark.sample(one_of=3)
@pytest.mark.parametrize("kind", PASSING)
def test_errors_that_pass(kafka: EmbeddedKafka, kind: str) -> None:
    """Produce requests fail one after the other, before and amid traffic: all is delivered, in order."""
    codes = [code for code in PASSING[kind] for _ in range(2)]
    # One batch a partition: the embedded Kafka takes the next one even where a real one misses the first.
    with outlet(kafka, kafka_properties={"linger.ms": "1000"}) as running:
        kafka.errors(PRODUCE, codes)
        running.send(keyed(COUNT // 2))
        running.run(lambda: running.resolved >= COUNT // 4)
        kafka.errors(PRODUCE, codes)
        running.send(keyed(COUNT // 2, first=COUNT // 2))
        outcomes = running.finish()
        assert (outcomes.resolved, outcomes.discarded) == (COUNT, [])
        records = running.consume("t", PARTITIONS, COUNT)
        assert set(numbers(records)) == set(range(COUNT))
        check_order(records)


def test_a_fatal_error_rebuilds_the_producer(kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture) -> None:
    """In the middle of traffic, twice: each time a new producer goes on, in order, in the same process."""
    with outlet(kafka, kafka_properties={"linger.ms": "50"}) as running:
        for first in (0, COUNT // 2):
            running.send(keyed(COUNT // 2, first=first))
            running.run(lambda: running.router.in_flight() > 0)
            finish = running.client.library.test_fatal_error
            finish(running.client.handle, Code.OUT_OF_ORDER_SEQUENCE, b"made up")
            running.run(lambda: "a new producer goes on" in caplog.text)
            caplog.clear()
        outcomes = running.finish()
        assert (outcomes.resolved, outcomes.discarded) == (COUNT, [])
        records = running.consume("t", PARTITIONS, COUNT)
        assert set(numbers(records)) == set(range(COUNT))
        check_order(records)


def test_every_class_of_the_table_is_injected() -> None:
    """No action without an error of its kind above."""
    found = {decide(code).action for codes in PASSING.values() for code in codes}
    assert found == set(Action)
