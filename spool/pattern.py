"""Searching the keys and values of messages, a batch at a time."""

from __future__ import annotations

import re
from typing import Protocol

import numpy as np
import numpy.typing as npt

from spool.record import Batch


class Pattern(Protocol):
    """What is searched for."""

    def rows(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """bool[rows]: which messages have it in their key or their value."""


class Plain:
    """Bytes as they stand there: the whole batch is searched at once."""

    def __init__(self, wanted: bytes) -> None:
        """`wanted` must not be empty."""
        self._wanted = wanted

    def rows(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """A hit counts when it lies within one key, or within one value."""
        found = np.zeros(len(batch), np.bool_)
        if not len(batch):
            return found
        start = int(batch.datagram_at[0])
        end = int(batch.datagram_at[-1] + batch.datagram_bytes[-1])
        data, size = batch.data[start:end].tobytes(), len(self._wanted)
        at = data.find(self._wanted)
        while at >= 0:
            place = start + at
            row = int(np.searchsorted(batch.datagram_at, place, side="right")) - 1
            if self._lies_in(batch.key_at, batch.key_bytes, row, place, size) or self._lies_in(
                batch.value_at, batch.value_bytes, row, place, size
            ):
                found[row] = True
                # One hit is enough; the value is the end of a datagram.
                at = int(batch.datagram_at[row] + batch.datagram_bytes[row]) - start - 1
            at = data.find(self._wanted, at + 1)
        return found

    @staticmethod
    def _lies_in(
        begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], row: int, place: int, size: int
    ) -> bool:
        begin = int(begins[row])
        return begin <= place and place + size <= begin + int(lengths[row])


class Regex:
    """A regular expression over bytes, tried on each key and each value."""

    def __init__(self, expression: bytes) -> None:
        """Raises re.error."""
        self._expression = re.compile(expression, re.DOTALL)

    def rows(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """One call a message: an anchor means the beginning or the end of a key or of a value."""
        search = self._expression.search
        hits = [bool(search(batch.key(row) or b"") or search(batch.value(row))) for row in range(len(batch))]
        return np.array(hits, np.bool_)
