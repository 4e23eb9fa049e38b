"""The columns in which messages travel through bruce, and the view of one message."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from spool.digest import digest


class Topics:
    """Topic names seen so far, numbered from 0: a hash table that kernels can search.

    `slots` int64[capacity, 2]: the name's digest and its number + 1 (0: free), probed linearly.
    Names are told apart by their 64-bit digest alone. Who knows its `seed` can make a name with the digest of
    another's, and write to a topic that [access] keeps from him: so each table has a seed by chance.
    """

    def __init__(self, capacity: int = 4096) -> None:
        self.seed = secrets.randbits(63)
        self.slots = np.zeros((capacity, 2), np.int64)
        self.names: list[bytes] = []

    def add(self, name: bytes) -> int:
        """The number of `name`, which is new or already there."""
        hashed = int(np.uint64(digest(name, self.seed)).astype(np.int64))
        at = self._slot(hashed)
        if not self.slots[at, 1]:
            self.names.append(name)
            self.slots[at] = (hashed, len(self.names))
            if 2 * len(self.names) > len(self.slots):
                self._grow()
                at = self._slot(hashed)
        return int(self.slots[at, 1]) - 1

    def _slot(self, hashed: int) -> int:
        """Where `hashed` stands, or the free slot where it belongs."""
        mask = len(self.slots) - 1
        at = hashed & mask
        while self.slots[at, 1] and self.slots[at, 0] != hashed:
            at = (at + 1) & mask
        return at

    def _grow(self) -> None:
        rows = self.slots[self.slots[:, 1] > 0]
        self.slots = np.zeros((2 * len(self.slots), 2), np.int64)
        for row in rows:
            self.slots[self._slot(int(row[0]))] = row


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages in log order, as columns over the bytes they were read from.

    Offsets count from the start of `data`. All columns have the same length.
    """

    data: npt.NDArray[np.uint8]
    topics: Topics
    sequence: npt.NDArray[np.int64]
    topic: npt.NDArray[np.int32]
    """Number in `topics`."""
    keyed: npt.NDArray[np.bool_]
    """True for PartitionKey messages."""
    partition_key: npt.NDArray[np.int32]
    timestamp: npt.NDArray[np.int64]
    """As sent: milliseconds since the epoch."""
    key_at: npt.NDArray[np.int64]
    key_bytes: npt.NDArray[np.int32]
    value_at: npt.NDArray[np.int64]
    value_bytes: npt.NDArray[np.int32]
    datagram_at: npt.NDArray[np.int64]
    datagram_bytes: npt.NDArray[np.int32]
    received_ns: npt.NDArray[np.int64]
    uid: npt.NDArray[np.uint32]
    pid: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.sequence)

    def key(self, row: int) -> bytes | None:
        """The key of one message; None when it is empty."""
        at = int(self.key_at[row])
        return self.data[at : at + int(self.key_bytes[row])].tobytes() or None

    def value(self, row: int) -> bytes:
        """The value of one message."""
        at = int(self.value_at[row])
        return self.data[at : at + int(self.value_bytes[row])].tobytes()

    def datagram(self, row: int) -> bytes:
        """One message as it was received."""
        at = int(self.datagram_at[row])
        return self.data[at : at + int(self.datagram_bytes[row])].tobytes()

    def kept(self) -> Batch:
        """The same, over a copy of its bytes: those it was read from may be used for others now."""
        end = int(self.datagram_at[-1] + self.datagram_bytes[-1]) if len(self) else 0
        return replace(self, data=self.data[:end].copy())

    def after(self, rows: int) -> Batch:
        """The same without its first `rows` messages."""
        if rows == 0:
            return self
        cut = {f.name: getattr(self, f.name) for f in fields(self)}
        columns = {name: value[rows:] for name, value in cut.items() if name not in ("data", "topics")}
        return Batch(data=self.data, topics=self.topics, **columns)


def by_topic(topics: npt.NDArray[np.int32]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """(number of a topic, its rows in order) of each topic in a column."""
    order = np.argsort(topics, kind="stable")
    starts = np.flatnonzero(np.diff(topics[order], prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=False):
        yield int(topics[order[start]]), order[start:end]
