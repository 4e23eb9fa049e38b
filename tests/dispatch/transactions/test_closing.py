"""Closing transactional tasks over the embedded Kafka: their deliveries are known, the last record is ours.

Only real brokers show that a fenced producer cannot commit (tests/real_kafka/test_transactional_tasks.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from confluent_kafka import Producer

from dispatch.client import KafkaClient
from dispatch.embedded import EmbeddedKafka
from dispatch.errors import Unreachable
from dispatch.options import DispatchOptions
from dispatch.transactions.closing import Closing, epoch_of
from dispatch.transactions.progress import (
    Deliverer,
    Progress,
    Runs,
    deliverer,
    encode,
    runs_of,
    task_transactional_id,
    transactional_id,
)
from dispatch.transactions.progress_topic import Found, ProgressTopic
from spool.marks.task_files import TransactionalTasks
from tests.dispatch.fixture import UUID

OWN = transactional_id(UUID)
TASK = Deliverer(bytes(16), "executor", 1)
FRESH, USED, BEYOND, FOREIGN = (
    task_transactional_id(UUID, 0),
    task_transactional_id(UUID, 1),
    task_transactional_id(UUID, 9),
    task_transactional_id(bytes(16), 1),
)


class ClosingFixture:
    """A progress topic with records of others, and one who closes transactional tasks."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        properties = {"bootstrap.servers": kafka.bootstrap_servers}
        self.options = DispatchOptions(kafka=properties, mode="exactly_once")
        self.client = KafkaClient(self.options)
        self.topic = ProgressTopic(
            self.options.kafka, self.options.progress_topic, OWN.encode(), self.client.fetch_cluster
        )
        self.by = deliverer()
        self._others = Producer({**properties, "log_level": "0"})

    def write(self, key: str, number: int, generation: int, *sequences: int) -> None:
        """A record that another program wrote."""
        delivered = [Runs(1, 2, *runs_of(np.array(sequences, np.int64)))] if sequences else []
        record = encode(Progress(number, generation, TASK, delivered))
        self._others.produce("bruce-progress", record, key)
        assert self._others.flush(30) == 0

    def close_tasks(self, names: int, epoch: int) -> dict[str, Found]:
        return Closing(self.options, self.topic, UUID, self.by, TransactionalTasks(names, epoch)).run()

    def last(self) -> dict[str, Progress]:
        """The last record of each, as the next one finds it."""
        return {key: found.progress for key, found in self.topic.read_family()[0].items()}


@pytest.fixture
def fixture() -> Iterator[ClosingFixture]:
    """A topic of two partitions; records in it of the daemon, a transactional task, and another spool."""
    with EmbeddedKafka(brokers=1, topics=[("bruce-progress", 2)]) as kafka:
        made = ClosingFixture(kafka)
        with closing(made.client):
            made.write(OWN, 7, 40, 1, 2)
            made.write(USED, 3, 5, 10, 11)
            made.write(FOREIGN, 3, 77, 12)
            yield made


def told(progress: Progress) -> list[int]:
    """Every sequence that a record names."""
    return sorted(int(s) for block in progress.delivered for s in block.sequences())


def test_each_task_ends_with_a_record_of_ours(fixture: ClosingFixture) -> None:
    """Used or not, of the next epoch, and with all that it had delivered; the daemon's own stays as it is."""
    fixture.write(BEYOND, 1, 6, 20)
    found = fixture.close_tasks(2, 5)
    assert {key: told(one.progress) for key, one in found.items()} == {
        OWN: [1, 2],
        FRESH: [],
        USED: [10, 11],
        BEYOND: [20],
    }
    last = fixture.last()
    assert {key: (one.number, one.generation, told(one)) for key, one in last.items()} == {
        OWN: (7, 40, [1, 2]),
        FRESH: (1, 7, []),
        USED: (4, 7, [10, 11]),
        BEYOND: (2, 7, [20]),
    }
    assert {one.by for key, one in last.items() if key != OWN} == {fixture.by}
    assert epoch_of(found.values(), OWN, TransactionalTasks(2, 5)) == 7


def test_closing_twice_changes_nothing(fixture: ClosingFixture) -> None:
    """A task that dies after the closing leaves its successor everything."""
    fixture.close_tasks(2, 5)
    again = ClosingFixture.__new__(ClosingFixture)
    again.__dict__ |= fixture.__dict__ | {"by": deliverer()}
    found = again.close_tasks(2, 5)
    assert (told(found[USED].progress), told(found[FRESH].progress)) == ([10, 11], [])
    assert again.last()[USED].by == again.by


def test_a_task_that_slips_in_is_closed_again(
    fixture: ClosingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It committed between our look and our record: what it delivered is known, our record is the last."""
    write = Closing._write
    strangers = [(4, (12,)), (5, (13, 14))]

    def late(self: Closing, record: Found) -> None:
        if record.key == USED and strangers:
            number, sequences = strangers.pop(0)
            fixture.write(USED, number, 5, *sequences)
        write(self, record)

    monkeypatch.setattr(Closing, "_write", late)
    found = fixture.close_tasks(2, 5)
    assert told(found[USED].progress) == [10, 11, 12, 13, 14]
    last = fixture.last()[USED]
    assert (last.by, last.number, last.generation) == (fixture.by, 6, 6)


def test_it_ends_when_told_to(fixture: ClosingFixture) -> None:
    """A daemon that is stopped does not wait for hundreds of transactional tasks."""
    closing = Closing(fixture.options, fixture.topic, UUID, fixture.by, TransactionalTasks(2, 5))
    with pytest.raises(Unreachable, match="asked to stop"):
        closing.run(lambda: True)
