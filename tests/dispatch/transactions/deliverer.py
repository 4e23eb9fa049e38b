"""One who delivers exactly once, and a book that keeps everything."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dispatch import timing
from dispatch.client import KafkaClient
from dispatch.embedded import EmbeddedKafka
from dispatch.options import DispatchOptions
from dispatch.pool import HandedOver
from dispatch.transactions.exactly_once import ExactlyOnce, Phase
from dispatch.transactions.progress import (
    DeadLetterRuns,
    Deliverer,
    Progress,
    Runs,
    runs_of,
    transactional_id,
)
from dispatch.transactions.progress_topic import ProgressPosition
from dispatch.transactions.runner import Begun
from spool.marks.task_files import TransactionalTasks
from tests.dispatch.batches import Message, build_batch, name_topics
from tests.dispatch.fixture import UUID, await_true

TOPIC = b"t"


class Notebook:
    """A book that keeps everything."""

    def __init__(self) -> None:
        self.place: ProgressPosition | None = None
        self.begun: list[Begun] = []
        self.tasks: TransactionalTasks | None = None
        self.epoch: int | None = None
        self.generation = 0
        self.committed_ones: list[int] = []
        self.committed_letters: list[int] = []
        self.objection = ""

    def recover(self, begun: Begun) -> str:
        self.begun.append(begun)
        self.place = begun.place
        return self.objection

    def progress(
        self, number: int, by: Deliverer, sequences: npt.NDArray[np.int64], letters: Sequence[DeadLetterRuns]
    ) -> Progress:
        delivered = [Runs(1, 2, *runs_of(sequences))] if len(sequences) else []
        return Progress(number, self.generation, by, delivered, letters)

    def committed(
        self, sequences: npt.NDArray[np.int64], letters: Sequence[DeadLetterRuns], offset: int
    ) -> None:
        self.committed_ones += sequences.tolist()
        self.committed_letters += [s for one in letters for s in one.sequences().tolist()]
        assert self.place
        self.place = self.place._replace(offset=offset)


class ExactlyOnceFixture:
    """One process's pool, and the outcomes it has reported."""

    def __init__(
        self,
        kafka: EmbeddedKafka,
        book: Notebook,
        *,
        keep_s: float = timing.KEEP_S,
        still_s: float = timing.STILL_S,
        **properties: str,
    ) -> None:
        self.kafka, self.topics, self.book = kafka, name_topics(TOPIC), book
        options = DispatchOptions(
            kafka={"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": "5", **properties},
            mode="exactly_once",
        )
        wake = os.eventfd(0, os.EFD_NONBLOCK)
        self.client = KafkaClient(options, wake, transactional_id=transactional_id(UUID))
        self.pool = ExactlyOnce(
            self.client,
            self.topics,
            options,
            book,
            spool_uuid=UUID,
            wake=lambda: os.eventfd_write(wake, 1),
            keep_s=keep_s,
            still_s=still_s,
        )
        self.told: dict[int, int] = {}

    def look(self) -> None:
        """Collect; no message may succeed twice."""
        outcomes = self.pool.collect()
        for sequence, code in zip(outcomes.sequence.tolist(), outcomes.code.tolist(), strict=True):
            assert self.told.get(sequence) != 0
            self.told[sequence] = code

    def until(self, condition: Callable[[], bool]) -> None:
        """Collect until it is so."""

        def asked() -> bool:
            self.look()
            return condition()

        await_true(asked, 60)

    def ready(self) -> None:
        """Begun, claimed, and the leaders known."""
        self.until(lambda: self.pool.phase is Phase.READY)
        await_true(lambda: TOPIC in self.client.fetch_cluster([TOPIC], 5).topics, 20)
        self.pool.set_cluster(self.client.fetch_cluster([TOPIC], 5))

    def send(self, first: int, count: int, value: bytes = b"v", *, catching_up: bool = False) -> HandedOver:
        """Messages from `first` on, to partition 0."""
        messages = [Message(topic=0, sequence=s, value=value) for s in range(first, first + count)]
        flat = np.full(count, self.pool.partitions.flats[0, 0], np.int32)
        return self.pool.send(build_batch(self.topics, messages), flat, catching_up=catching_up)

    def close(self) -> None:
        if self.pool.close():
            self.client.close()
