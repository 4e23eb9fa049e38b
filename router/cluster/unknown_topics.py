"""Topics that Kafka does not know: their messages wait for a grace time, by themselves.

Names beyond the bound of the deliverer's table (spool.format.topic_table) are looked at twice before their
messages are discarded. Any program may send any name, but topics that Kafka has must not go short for it.
Half of the table is theirs: a name that Kafka has is no *stranger*, and takes a place in either half. To know
which it has, the router asks Kafka for all its topics when strangers fill a quarter of their half, and again
every LIST_S while they do. When they fill all of it before the first answer, the router waits for that.

A message may name a partition that its topic did not have when Kafka was asked last. It waits for the answer
to a question that is asked when it is read.

Names that were given up are forgotten FORGET_S later, once nothing of them is open, and at once when others
need their place. A name that comes again waits for the grace time again: its topic may have been created.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.errors import Code
from dispatch.options import UNKNOWN_TOPIC_S
from router.timing import ASK_NAMES_S, FORGET_EVERY_S, FORGET_S, LIST_S
from spool.format.batch import Batch, Topics
from spool.format.topic_table import legal

if TYPE_CHECKING:  # they bring librdkafka along, and a reader of bruce.toml needs none
    from dispatch.client import Cluster
    from router.cluster.metadata import Metadata

log = logging.getLogger("bruce.router")

FEW = 100
"""With more unknown topics, Kafka is asked for them every ASK_NAMES_S only."""
_DENIALS = (Code.UNKNOWN_TOPIC_OR_PART, Code.INVALID_TOPIC, Code.UNKNOWN_TOPIC_ID)
"""Errors that say: there is no such topic. Others (no leader yet, no right to see it) may pass."""


class Learnt(NamedTuple):
    """A topic whose messages need not wait any longer."""

    topic: int
    first: int | None
    """The first of those that waited here; None: none did."""
    known: bool
    """It has partitions now; otherwise it was given up."""


class UnknownTopics:
    """Topics without partitions, by number, and the first of their messages that waits."""

    def __init__(
        self, *, grace_s: float = UNKNOWN_TOPIC_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._grace_s, self._clock = grace_s, clock
        self.waiting: dict[int, int] = {}
        """Topic -> lowest sequence that waits."""
        self._denied: dict[int, tuple[float, int]] = {}
        """Topic -> when Kafka first said that there is no such topic; the same in ms since the epoch."""
        self.gone: dict[int, float] = {}
        """Topic -> when it was given up: its messages are discarded when a reader reaches them."""
        self.deleted: set[int] = set()
        """Of these, those that are no strangers: they alone may have partitions."""
        self._doubts: dict[int, list[tuple[int, float]]] = {}
        """Topic -> (the last message that waits for a partition of its number, when it was read): of those
        that Kafka was asked for, and of later ones."""
        self._certain: dict[int, int] = {}
        """Topic -> the last message that was read before Kafka was asked for its partitions."""

    def wait(self, topic: int, sequence: int) -> bool:
        """A message waits; True when it is the first of its topic."""
        first = topic not in self.waiting
        self.waiting[topic] = min(sequence, self.waiting.get(topic, sequence))
        return first

    def is_certain(self, batch: Batch, absent: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which of the rows `absent` Kafka has no partition for, though it was asked after they were read."""
        known = np.zeros(len(batch), np.int64)
        for topic in np.unique(batch.topic[absent]).tolist():
            known[batch.topic == topic] = self._certain.get(topic, -1)
        return np.asarray(absent & (batch.sequence <= known))

    def doubt(self, batch: Batch, rows: npt.NDArray[np.bool_]) -> list[int]:
        """Let these rows wait for a partition of their number; the topics that Kafka is to be asked for."""
        topics = np.unique(batch.topic[rows]).tolist()
        for topic in topics:
            sequences = batch.sequence[rows & (batch.topic == topic)]
            self.wait(topic, int(sequences[0]))
            doubts = self._doubts.setdefault(topic, [])
            if not doubts or int(sequences[-1]) > doubts[-1][0]:
                doubts[1:] = []
                doubts.append((int(sequences[-1]), self._clock()))
        return topics

    def _settle(self, topic: int, asked_at: float) -> None:
        """Kafka has said which partitions a topic has, when asked at that time."""
        doubts = self._doubts.pop(topic, [])
        while doubts and doubts[0][1] <= asked_at:
            self._certain[topic] = doubts.pop(0)[0]
        if doubts:
            self._doubts[topic] = doubts

    def given_up(self, topic: int, name: bytes) -> bool:
        """Whether the grace time is over, or cannot help: its messages are discarded when read."""
        return topic in self.gone or not legal(name)

    def denied_ms(self, topic: int) -> int:
        """When Kafka first said that there is no such topic, or now, in ms since the epoch."""
        return self._denied[topic][1] if topic in self._denied else time.time_ns() // 1_000_000

    def learn(self, cluster: Cluster, topics: Topics) -> list[Learnt]:
        """Take note of what Kafka says; whose messages are due now."""
        due = []
        for topic in [topics.admit(name) for name in cluster.topics]:
            self._let_wait(topic)
            self._settle(topic, cluster.asked_at)
            if topic in self.waiting:
                due.append(Learnt(topic, self.waiting.pop(topic), known=True))
        for name, code in cluster.errors.items():
            topic = topics.find(name)
            if topic < 0:
                # It was forgotten meanwhile.
                continue
            if code not in _DENIALS:
                self._denied.pop(topic, None)
                continue
            since = self._since(topic, name)
            if topic not in self.gone and self._clock() - since >= self._grace_s:
                self.gone[topic] = self._clock()
                if not topics.is_strange(topic):
                    self.deleted.add(topic)
                due.append(Learnt(topic, self.waiting.pop(topic, None), known=False))
        return due

    def _since(self, topic: int, name: bytes) -> float:
        """When Kafka first said that there is no such topic, which is now if it did not before."""
        if topic not in self._denied:
            self._denied[topic] = self._clock(), time.time_ns() // 1_000_000
            if topic in self.waiting:
                shown = name.decode("utf-8", "backslashreplace")
                log.info(
                    "Kafka does not have the topic %s yet; its messages are held for up to %.0f s",
                    shown,
                    self._grace_s,
                )
        return self._denied[topic][0]

    def denies(self, cluster: Cluster, topics: Topics) -> list[int]:
        """The topics that Kafka says it does not have, or does not have any more."""
        named = [topics.find(name) for name, code in cluster.errors.items() if code in _DENIALS]
        return [topic for topic in named if topic >= 0]

    def forget(self, topics: Topics) -> list[bytes]:
        """Forget those that were given up FORGET_S ago, of which nothing may be open.

        Returns the names that have no number any more.
        """
        before = self._clock() - FORGET_S
        gone = [topic for topic, at in self.gone.items() if at <= before]
        for topic in gone:
            self._let_wait(topic)
        return topics.forget(gone)

    def make_room(self, topics: Topics, in_use: Collection[int]) -> list[bytes]:
        """Forget strangers that were given up, however lately, but for those `in_use`; their names."""
        strangers = self.gone.keys() - self.deleted - set(in_use)
        for topic in strangers:
            self._let_wait(topic)
        return topics.forget(strangers)

    def forget_idle(self, topics: Topics) -> None:
        """Free the numbers of strangers of which no message waits, or is to be discarded.

        A pass of the catch-up reader gives one to each name that it comes by again.
        """
        idle = topics.strangers().difference(self.waiting, self.gone)
        for topic in idle:
            self._let_wait(topic)
        topics.forget(idle)

    def _let_wait(self, topic: int) -> None:
        """The next message of a topic waits."""
        self.gone.pop(topic, None)
        self.deleted.discard(topic)
        self._denied.pop(topic, None)

    def lowest(self) -> list[int]:
        """Sequences below which nothing waits for a topic."""
        return list(self.waiting.values())


class Strangers:
    """The names without a number of one router: whether Kafka has them is asked before they are given up."""

    def __init__(
        self,
        topics: Topics,
        unknown: UnknownTopics,
        metadata: Metadata,
        swept: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`swept`: whether nothing is open of topics that were given up."""
        self._topics, self.unknown, self._metadata = topics, unknown, metadata
        self._swept, self._clock = swept, clock
        self._listed_at = self._forgot_at = -LIST_S
        self._asked, self._asked_at = False, 0.0
        self.lists = self.waits = False
        """Whether Kafka was asked for the list; whether nothing is to be read before it is there."""

    def may_have_room(self, in_use: npt.NDArray[np.int32]) -> bool:
        """Whether a message whose topic has no number is to be read once more before it is discarded.

        `in_use`: numbers of topics that rows before it have.
        """
        if self.unknown.gone and self._swept():
            names = self.unknown.make_room(self._topics, np.unique(in_use).tolist())
            self._metadata.forget(names)
            if names:
                return True
        if self._clock() - self._listed_at >= LIST_S:
            self.waits = True
            self._list()
        return self.waits

    def ask(self) -> None:
        """Have Kafka asked for all topics that messages wait for, and for no others any more.

        Forget names now and then. No batch may be in use: its messages have numbers of topics.
        """
        if self._clock() - self._forgot_at >= FORGET_EVERY_S and self._swept():
            self._forgot_at = self._clock()
            self._metadata.forget(self.unknown.forget(self._topics))
            self.unknown.forget_idle(self._topics)
        if self._topics.has_many_strangers and self._clock() - self._listed_at >= LIST_S:
            self._list()
        waiting = self.unknown.waiting
        if len(waiting) > FEW and self._clock() - self._asked_at < ASK_NAMES_S:
            return
        if waiting or self._asked:
            names = self._topics.names
            self._metadata.look_for([names[topic] for topic in waiting])
        self._asked, self._asked_at = bool(waiting), self._clock()

    def step(self) -> None:
        """Take over the list when it is there."""
        if (names := self._metadata.take_names()) is not None:
            self._topics.welcome(names)
            self._listed_at, self.lists, self.waits = self._clock(), False, False
        else:
            # It may have failed.
            self._metadata.list_all()

    def _list(self) -> None:
        if not self.lists:
            self.lists = True
            self._metadata.list_all()
