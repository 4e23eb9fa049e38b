"""What one task carries: batches under way, what became of their messages, the name it delivers under."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.task_book import TaskBook
from spool.record import Batch

OPEN, TAKEN, DONE = range(3)
"""A message that is to be sent, is in flight, or is done with."""


class Settled(NamedTuple):
    """What became of messages; columns of one length, each message once."""

    sequences: npt.NDArray[np.int64]
    reasons: npt.NDArray[np.int32]
    """0: Kafka has it; else a spool.wire.Reason for which it never will."""


def nothing_earlier(_spool: bytes) -> Settled:
    """What other attempts at a task have written down that nobody else tries."""
    return Settled(np.empty(0, np.int64), np.empty(0, np.int32))


class Lane(NamedTuple):
    """Delivery in transactions."""

    name: str
    """Its transactional id, and the key of its progress records."""
    book: TaskBook


class Load:
    """A batch under way."""

    def __init__(self, batch: Batch, flat: npt.NDArray[np.int32]) -> None:
        self.batch, self.flat = batch, flat
        self.state = np.full(len(batch), OPEN, np.uint8)
        """By row: open, handed over, or done with."""
        self.left = len(batch)
        """Rows that are not done with."""

    def rows(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where these stand."""
        return np.searchsorted(self.batch.sequence, sequences)
