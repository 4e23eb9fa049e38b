"""The columns in which messages travel through bruce, and the view of one message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from spool.topics import Topics

__all__ = ["Batch", "Topics", "by_topic"]


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

    def topic_name(self, row: int) -> bytes:
        """The topic of one message, also where it has no number of its own."""
        at = int(self.datagram_at[row]) + 10 + 4 * int(self.keyed[row])
        length = int.from_bytes(self.data[at : at + 2].tobytes(), "big")
        return self.data[at + 2 : at + 2 + length].tobytes()

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
        return self._cut(slice(rows, None)) if rows else self

    def before(self, rows: int) -> Batch:
        """The first `rows` messages of it."""
        return self._cut(slice(rows))

    def _cut(self, part: slice) -> Batch:
        cut = {f.name: getattr(self, f.name) for f in fields(self)}
        columns = {name: value[part] for name, value in cut.items() if name not in ("data", "topics")}
        return Batch(data=self.data, topics=self.topics, **columns)


def by_topic(topics: npt.NDArray[np.int32]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """(number of a topic, its rows in order) of each topic in a column."""
    order = np.argsort(topics, kind="stable")
    starts = np.flatnonzero(np.diff(topics[order], prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=False):
        yield int(topics[order[start]]), order[start:end]
