"""Messages that came back with an error: sent again, sent by themselves, or given up.

Kafka refuses a whole batch for one record in it, all with the same code. So what looks like a refusal for
good makes a message *suspect*: its partition goes on one message at a time until every suspect has had an
outcome of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.partitions import PartitionTable
from dispatch.retry import Action, decide

PAUSE_S = 0.5
"""Before a partition is tried again after an error."""


class Failed(NamedTuple):
    """Some of the failed messages."""

    sequence: npt.NDArray[np.int64]
    flat: npt.NDArray[np.int32]


class Verdict(NamedTuple):
    """What is to be done."""

    again: Failed
    discard: dict[int, Failed]
    """By reason."""
    refresh: bool
    """Ask for metadata first."""


class Failures:
    """Which partitions are to be treated with care, and until when."""

    def __init__(self, partitions: PartitionTable, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._partitions, self._clock = partitions, clock
        self._suspects: dict[int, set[int]] = {}
        """Flat number -> sequences that must go alone."""
        self._alone: dict[int, int] = {}
        """Flat number -> the sequence that is out by itself."""
        self._until: dict[int, float] = {}

    def judge(
        self,
        sequence: npt.NDArray[np.int64],
        code: npt.NDArray[np.int32],
        flat: npt.NDArray[np.int32],
    ) -> Verdict:
        """Decide about failed messages; columns of one length."""
        discard: dict[int, list[int]] = {}
        again: list[int] = []
        refresh = False
        for row, (s, c, f) in enumerate(zip(sequence.tolist(), code.tolist(), flat.tolist(), strict=True)):
            decision = decide(c)
            refresh |= decision.action is Action.REFRESH
            self._until[f] = self._clock() + PAUSE_S
            if decision.action is not Action.DISCARD:
                again.append(row)
            elif self._alone.get(f) == s:
                discard.setdefault(int(decision.reason), []).append(row)
                self._clear(f, s)
            else:
                again.append(row)
                self._suspects.setdefault(f, set()).add(s)
                self._until.pop(f, None)

        def rows(numbers: list[int]) -> Failed:
            return Failed(sequence[numbers], flat[numbers])

        return Verdict(rows(again), {reason: rows(n) for reason, n in discard.items()}, refresh)

    def _clear(self, flat: int, sequence: int) -> None:
        left = self._suspects.get(flat, set())
        left.discard(sequence)
        self._alone.pop(flat, None)
        if not left:
            self._suspects.pop(flat, None)

    def single_out(self, sequence: npt.NDArray[np.int64], flat: npt.NDArray[np.int32]) -> None:
        """Of partitions with suspects, leave one row in `flat`; the others become -1."""
        for partition in list(self._suspects):
            rows = np.flatnonzero(flat == partition)
            if len(rows) == 0:
                continue
            first = int(sequence[rows[0]])
            self._settle_before(partition, first)
            if partition in self._suspects:
                self._alone[partition] = first
                flat[rows[1:]] = -1

    def _settle_before(self, partition: int, first: int) -> None:
        """The partition's first open message is `first`: suspects before it were delivered after all."""
        left = {s for s in self._suspects[partition] if s >= first}
        self._alone.pop(partition, None)
        if left:
            self._suspects[partition] = left
        else:
            del self._suspects[partition]

    def suspected(self) -> npt.NDArray[np.int64]:
        """Flat numbers of the partitions that go one message at a time."""
        return np.array(sorted(self._suspects), np.int64)

    def patient(self, count: int, in_flight: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """By flat number: not in a pause, and, with suspects, nothing in flight."""
        out = np.ones(count, np.bool_)
        now = self._clock()
        self._until = {flat: until for flat, until in self._until.items() if until > now}
        out[list(self._until)] = False
        for flat in self._suspects:
            out[flat] &= in_flight[flat] == 0
        return out
