"""Messages that somebody wants, told by more than their place: a span, and whose they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spool.files import Span
from spool.record import Batch


@dataclass(frozen=True, slots=True)
class Wanted(Span):
    """A span of which only some messages are asked for. What is empty asks for all."""

    keys: frozenset[bytes] = frozenset()
    partition_keys: frozenset[int] = frozenset()
    """As they were sent, -2^31 to 2^31 - 1; messages without one are not asked for then."""
    uids: frozenset[int] = frozenset()
    """Of the senders."""

    def rows(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """Which rows of a batch are asked for."""
        wanted = Span.rows(self, batch)
        if self.partition_keys:
            wanted &= batch.keyed & np.isin(batch.partition_key, list(self.partition_keys))
        if self.uids:
            wanted &= np.isin(batch.uid, list(self.uids))
        if self.keys:
            wanted &= _have_key(batch, self.keys)
        return wanted


def _have_key(batch: Batch, keys: Iterable[bytes]) -> npt.NDArray[np.bool_]:
    """Which rows have one of these keys."""
    found = np.zeros(len(batch), np.bool_)
    for key in keys:
        alike = np.flatnonzero(batch.key_bytes == len(key))
        for at, byte in enumerate(key):
            alike = alike[batch.data[batch.key_at[alike] + at] == byte]
        found[alike] = True
    return found
