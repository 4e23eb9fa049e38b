"""What messages hold that Kafka will never take: read again, since nobody keeps what is in flight."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

import numpy as np

from router.ends import Log
from spool.reader import Reader
from spool.record import Topics


class Content(NamedTuple):
    """One message."""

    datagram: bytes
    """As it was received."""
    key: bytes | None


UNREADABLE = Content(b"", None)
"""Of a message that is damaged or gone."""


class Contents(Protocol):
    """Where they are read."""

    @property
    def topics(self) -> Topics:
        """The names of their topics, as the pool numbers them."""

    def read(self, wanted: Collection[int], most: int) -> dict[int, Content]:
        """The lowest of these sequences, and those that one look brings along; `most` at most."""


class LogContents:
    """From the log, with a reader of its own."""

    def __init__(self, log: Log) -> None:
        self._reader, self._committed = Reader(log.live.catalogue, log.live.topics), log.committed

    @property
    def topics(self) -> Topics:
        return self._reader.topics

    def read(self, wanted: Collection[int], most: int) -> dict[int, Content]:
        sought = np.fromiter(wanted, np.int64, len(wanted))
        first = int(sought.min())
        self._reader.allow(*self._committed())
        try:
            self._reader.seek(first)
            batch = self._reader.next()
        except FileNotFoundError:
            batch = None
        self._reader.damage.clear()
        if batch is None or int(batch.sequence[0]) != first:
            return {first: UNREADABLE}
        chosen = np.sort(sought[sought <= batch.sequence[-1]])[:most]
        rows = np.flatnonzero(np.isin(batch.sequence, chosen)).tolist()
        return {int(batch.sequence[row]): Content(batch.datagram(row), batch.key(row)) for row in rows}
