"""Dead letters of one task, by the rules of `router.rejects`.

Where the router reads the log again there are the batches under way: a message stays in its own until it is
settled. A datagram is made anew from its columns, as it was: it has nothing that they do not have. A letter
that nobody takes for PATIENCE_S ends the task: a job says what is wrong by its end.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.options import DispatchOptions
from dispatch.pool import Outcomes
from pipeline.errors import JobFailed
from pipeline.segments import topic_bytes
from router.contents import Content
from router.ends import Kafka
from router.rejects import MOST, Rejection, Rejects
from router.trouble import Trouble
from spool.record import Batch, Topics
from spool.wire import encode

PATIENCE_S = 60.0
Sequences = npt.NDArray[np.int64]


class Loads(NamedTuple):
    """What a task knows of the messages that it has under way."""

    topics: Topics
    find: Callable[[int], tuple[Batch, int]]
    """The batch of a sequence, and its row there."""
    take: Callable[[Sequences], None]
    settle: Callable[[Sequences, int], None]
    """Note a reason for which these are done with."""


class DeadLetters:
    """All of a task that are not settled."""

    def __init__(self, options: DispatchOptions, loads: Loads, kafka: Kafka, trouble: Trouble) -> None:
        self._loads, self._trouble = loads, trouble
        topic = options.dead_letter_topic.encode()
        self._rejects = Rejects(_Contents(loads), kafka, _Fates(loads), trouble, Rejection(topic))
        self._well_at = time.monotonic()

    @property
    def room(self) -> int:
        """How many more can be kept in mind."""
        return MOST - len(self._rejects)

    def add(self, sequences: Sequences, reason: int, first_ms: list[int]) -> None:
        """Give these up, not more than there is room for; `first_ms`: when each was refused first."""
        found = map(self._loads.find, sequences.tolist())
        topics = [topic_bytes(batch.topics.names[batch.topic[row]].decode()) for batch, row in found]
        self._rejects.add(sequences, reason, topics, first_ms)

    def take_out(self, outcomes: Outcomes) -> Outcomes:
        """Take note of what became of letters; the outcomes of messages."""
        return outcomes.only(~self._rejects.settle(outcomes))

    def step(self) -> bool:
        """Send what can be sent; False when there was nothing. Raises JobFailed when nobody takes them."""
        complaint = self._trouble.noted.get("dead letters")
        if complaint is None:
            self._well_at = time.monotonic()
        elif time.monotonic() - self._well_at > PATIENCE_S:
            raise JobFailed(complaint)
        return self._rejects.step()

    def close(self) -> None:
        """Let go."""
        self._rejects.close()


class _Contents:
    """Their contents, from the batches."""

    def __init__(self, loads: Loads) -> None:
        self.topics, self._find = loads.topics, loads.find

    def read(self, wanted: Collection[int], most: int) -> dict[int, Content]:
        return {sequence: original(*self._find(sequence)) for sequence in heapq.nsmallest(most, wanted)}


class _Fates:
    """What becomes of them, for the batches; samples are made by who takes the outcomes over."""

    def __init__(self, loads: Loads) -> None:
        self.take, self._settle = loads.take, loads.settle

    def give_back(self, sequences: Sequences) -> None:
        assert not len(sequences), "no more are added than there is room for"

    def unresolved(self, sequences: Sequences) -> npt.NDArray[np.bool_]:
        return np.ones(len(sequences), np.bool_)

    def discard(self, sequences: Sequences, reason: int, topic: bytes | Mapping[bytes, int]) -> int:  # noqa: ARG002
        self._settle(sequences, reason)
        return len(sequences)

    def keep_sample(self, sequence: int, reason: int, topic: bytes, datagram: bytes) -> None:
        pass


def original(batch: Batch, row: int) -> Content:
    """A message as it was received."""
    key = batch.key(row)
    datagram = encode(
        topic_bytes(batch.topics.names[batch.topic[row]].decode()),
        batch.value(row),
        key=key or b"",
        timestamp=int(batch.timestamp[row]),
        partition_key=int(batch.partition_key[row]) if batch.keyed[row] else None,
    )
    return Content(datagram, key)
