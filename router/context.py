"""The context of a router: the log as it reads it, the rules for topics. Kafka is in `cluster.brokers`.

`Log` is all that the router knows of where messages come from. `SpoolLog` reads those of a spool, for the
daemon and a replay; `pipeline.delivery.task_log` has those of a Spark task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dispatch.pool import Outcomes
from router.limits import Limits
from router.outcomes.counts import OpenCounts
from router.outcomes.outcome_table import Eviction
from router.outcomes.rejects import Contents, LogContents
from spool.format.batch import Batch, Topics
from spool.index.segment_list import SegmentList
from spool.read.reader import Damage, OpenSegment, Reader, Unread
from spool.shared.state import split_place

if TYPE_CHECKING:  # it brings the marks along, and a task on Spark needs none
    from router.outcomes.acks import SegmentBits

Committed = Callable[[], tuple[int, int]]
"""Up to where the log may be read: segment number and offset."""


class CommittedEnd:
    """The same, by a word that another process moves: of the shared state, for compiled loops as well."""

    def __init__(self, word: npt.NDArray[np.int64]) -> None:
        """`word` int64[1]: as spool.shared.state.place makes it."""
        self.word = word

    def __call__(self) -> tuple[int, int]:
        """Segment number and offset."""
        return split_place(int(self.word[0]))


class Delivered(NamedTuple):
    """The work that the fast path has done, and the rest that it leaves to the router."""

    settled: int
    """Reports of messages that are resolved by them."""
    sent: int
    refused: npt.NDArray[Any]
    """dispatch.records.ROW[n]: messages that librdkafka will never take."""
    held: bool
    """Whether partitions are held back, since not all could go."""
    error: int
    """Why librdkafka itself took no more; 0."""
    reports: Outcomes
    """Outcomes that are not taken note of."""
    event: int
    """The address of an event of librdkafka that is no report; 0."""


Flats = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Sequences = npt.NDArray[np.int64]


class LogReader(Protocol):
    """A position in the log."""

    topics: Topics
    sequence: int
    """All messages below it were returned, are damaged, or were skipped."""

    @property
    def position(self) -> tuple[int, int]:
        """Segment number and offset of what is read next; (0, 0) before anything was opened."""

    def take_damage(self) -> list[Damage]:
        """Messages that are lost, found since the last call."""

    def take_unread(self) -> list[Unread]:
        """Ranges that were skipped since the last call, to be read later."""

    def allow(self, number: int, position: int) -> None:
        """Read up to this committed position: segment number and offset."""

    def seek(self, sequence: int) -> None:
        """Go to `sequence`, or to the first message behind it."""

    def next(self) -> Batch | None:
        """Messages from `sequence` on, valid until the next call; None when no more are committed."""

    def pass_over(self, topics: Collection[bytes]) -> bool:
        """Skip a part of the log that holds nothing but these topics; whether there was one."""

    def close(self) -> None:
        """Let go of what is open."""


class Log(Protocol):
    """The messages that a router delivers, in order, each to be read again until it is resolved."""

    @property
    def live(self) -> LogReader:
        """The reader that hands everything over once."""

    @property
    def catch_up(self) -> LogReader:
        """The reader that comes back for what the live one had to leave."""

    @property
    def committed(self) -> Committed:
        """Up to where the log may be read."""

    @property
    def eviction(self) -> Eviction | None:
        """Gives up the oldest messages when the spool asks for it."""

    @property
    def open_counts(self) -> OpenCounts | None:
        """Counts what is open of topics with a quota."""

    def contents(self) -> Contents:
        """Reads the contents of messages that are given up."""

    def probe(self) -> LogReader:
        """Another reader, to try unreadable ranges again."""


class SpoolLog(NamedTuple):
    """The log of a spool."""

    live: Reader
    catch_up: Reader
    committed: Committed
    eviction: Eviction | None = None
    open_counts: OpenCounts | None = None

    def contents(self) -> Contents:
        """Reads from the log, with a reader of its own."""
        return LogContents(self.probe(), self.committed)

    def probe(self) -> Reader:
        """A reader that no selection narrows."""
        return Reader(self.live.segment_list, self.live.topics)

    def close(self) -> None:
        """Let go of its segments, which may be removed ones."""
        self.live.close()
        self.catch_up.close()
        if self.eviction:
            self.eviction.close()


class Chooser(Protocol):
    """Chooses the partition of each message; see `router.partition`."""

    def assign(
        self, batch: Batch, wanted: Mask, partitions_of: Flats, flats: Flats, available: Mask
    ) -> Flats:
        """The flat partition of each row; -1 for rows not wanted, and where there is none to go to."""

    def place(
        self, batch: Batch, bits: SegmentBits | None, partitions_of: Flats, flats: Flats, available: Mask
    ) -> Flats | None:
        """Assign all rows that are open, and take them; -1 for others. `bits`: as the outcome table has them.

        None, and nothing changes, if one finds no partition, or `bits` are needed.
        """

    def free(self, batch: Batch) -> Mask:
        """Which rows may go to any partition of their topic."""

    def sentence(self) -> str:
        """Why it has refused messages lately; empty when it has not."""


class Bounds(NamedTuple):
    """How far apart the things are that a router does together."""

    near: int = 1 << 17
    """Messages. Partitions that are held no further ahead take part in a pass of the catch-up."""
    turn_batches: int = 8
    """Batches of a pass, while others wait for theirs."""
    behind_bytes: int = 1 << 20
    """Nothing is set aside while the live path is nearer to the end of the log: that much is soon read."""


BOUNDS = Bounds()


class Rules(NamedTuple):
    """The configuration of topics, and the bounds of a router."""

    partitioners: Chooser
    limits: Limits
    bounds: Bounds = BOUNDS


class TopicReader(Reader):
    """A reader for a router that delivers some topics only."""

    def __init__(
        self,
        segment_list: SegmentList,
        topics: Topics,
        only: frozenset[bytes],
        leave_out: Callable[[Sequences], None],
    ) -> None:
        """`only`: the topics to deliver. `leave_out`: Acks.leave_out; it gets the sequences of all others."""
        super().__init__(segment_list, topics)
        self._only, self._leave_out = [topics.add(name) for name in only], leave_out

    def opened(self) -> OpenSegment | None:
        """None: a loop would not leave out the others."""
        return None

    def next(self) -> Batch | None:
        """Messages from `sequence` on. Those of other topics are in the batch, and are left out."""
        batch = super().next()
        if batch is not None:
            self._leave_out(batch.sequence[~np.isin(batch.topic, self._only)])
        return batch
