"""How much may go now: the rates of topics, and the pace at which a backlog is sent.

A topic's rate is a token bucket that holds a second's worth. A message beyond it *waits* (its partitions are
held, and the catch-up reads it when tokens are there), or is *discarded*. The two are measured by different
clocks. A message that may wait is measured when it is handed over: Kafka is to get no more. One that may be
discarded is measured when it was received: after an outage a backlog goes out faster than it came in, and no
program sent too much.

The backlog has a bucket of bytes, for all topics together. After an outage it is closed for a while, by
chance, and filled at a rate that changes by chance: hosts that lost Kafka together do not come back together.
Backlog is what waits since an outage, and what comes in behind it, of the same topic, until that has caught
up. Messages that wait for another reason are none: a topic that is new, or that ran out of room for a moment.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from router.timing import BACKLOG_DELAY_S, BACKLOG_DRAW_S, WORTHWHILE_S
from spool.format.batch import Batch, Topics
from spool.native.kernel import kernel

if TYPE_CHECKING:
    from dispatch.pool import Pool  # it brings librdkafka along, and a reader of bruce.toml needs none

SLOWEST = 0.5
"""Share of the cap below which the rate of the backlog does not go."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rate:
    """How many messages of a topic may go."""

    messages: float
    """A second."""
    discard: bool = False
    """Beyond that they are discarded, and do not wait."""


@kernel
def thin(
    flat: npt.NDArray[np.int32],
    topic: npt.NDArray[np.int32],
    bytes_each: npt.NDArray[np.int32],
    tokens: npt.NDArray[np.float64],
    budget: float,
    blocked: npt.NDArray[np.bool_],
) -> None:
    """Set `flat` to -1 for rows beyond the `tokens` of their topic, or the `budget` of bytes.

    `bytes_each` is what a row takes of that; -1: the budget is not for it. `blocked` bool by flat number:
    behind a row that may not go, no other of its partition does.
    """
    for row in range(len(flat)):
        partition, number = flat[row], topic[row]
        if partition < 0:
            continue
        if blocked[partition] or tokens[number] < 1 or (bytes_each[row] >= 0 and budget <= 0):
            blocked[partition] = True
            flat[row] = -1
        else:
            tokens[number] -= 1
            budget -= max(bytes_each[row], 0)


@kernel
def judge(
    topic: npt.NDArray[np.int32],
    received_ns: npt.NDArray[np.int64],
    rates: npt.NDArray[np.float64],
    tokens: npt.NDArray[np.float64],
    seen_ns: npt.NDArray[np.int64],
    beyond: npt.NDArray[np.bool_],
) -> None:
    """Say in `beyond` which rows came in faster than the rate of their topic, 0 being none.

    `tokens` float64[topics] and `seen_ns` int64[topics], the last reception, move on.
    """
    for row in range(len(topic)):
        number = topic[row]
        rate = rates[number]
        if rate == 0:
            continue
        # A clock that was set back gives nothing, and takes nothing.
        passed = max(received_ns[row] - seen_ns[number], 0) * 1e-9
        seen_ns[number] = received_ns[row]
        tokens[number] = min(max(rate, 1.0), tokens[number] + passed * rate)
        if tokens[number] >= 1:
            tokens[number] -= 1
        else:
            beyond[row] = True


class Limits:
    """The buckets of one router."""

    def __init__(
        self,
        topics: Topics,
        rates: Mapping[str, Rate] | None = None,
        backlog_bytes_per_second: int = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        """`rates` by topic; `backlog_bytes_per_second`: 0 for as fast as it goes."""
        self._topics = topics
        self._named = {topic.encode(): rate for topic, rate in (rates or {}).items()}
        self._clock = clock
        self._chance = chance or random.Random()  # noqa: S311  (no secret)
        self._waits = np.zeros(0)
        """float64[topics]: messages a second; 0 for topics without a rate, or whose excess is discarded."""
        self._tokens = np.zeros(0)
        self._discards = np.zeros(0)
        """The same of topics whose excess is discarded."""
        self._received_tokens, self._received_ns = np.zeros(0), np.zeros(0, np.int64)
        self._behind = np.zeros(0, np.bool_)
        """bool[topics]: with messages that wait since an outage."""
        self._rated = self._late = False
        """Whether a topic has a rate; whether one is behind."""
        self._cap = float(backlog_bytes_per_second)
        self._budget = 0.0
        self._filled_at = self._drawn_at = clock()
        self._pace = self._cap
        self._closed_until = 0.0

    @property
    def discards(self) -> bool:
        """Whether the excess of any topic is discarded."""
        return any(rate.discard for rate in self._named.values())

    # -- what was received ------------------------------------------------------------------------------

    def beyond(self, batch: Batch) -> Mask:
        """Which rows are to be discarded. For the live path, which sees every message once, in order."""
        out = np.zeros(len(batch), np.bool_)
        self._learn()
        if self._discards.any():
            judge(
                batch.topic,
                batch.received_ns,
                self._discards,
                self._received_tokens,
                self._received_ns,
                out,
            )
        return out

    # -- what is handed over ----------------------------------------------------------------------------

    def thin(self, batch: Batch, flat: npt.NDArray[np.int32], partitions: int, *, backlog: bool) -> None:
        """Set `flat` to -1 for rows that may not go yet: of each partition, those from one on.

        `backlog`: of topics that are behind, these are.
        """
        self._refill()
        paced = self._behind & (backlog and self.paces)
        if not paced.any() and not self._waits.any():
            return
        tokens = np.where(self._waits > 0, self._tokens, np.inf)
        blocked = np.zeros(partitions, np.bool_)
        bytes_each = np.where(paced[batch.topic], batch.payload_bytes, np.int32(-1))
        thin(flat, batch.topic, bytes_each, tokens, self._budget, blocked)

    def charge(self, batch: Batch, sent: Mask, *, backlog: bool) -> None:
        """These rows went."""
        if self._waits.any():
            self._tokens -= np.bincount(batch.topic[sent], minlength=len(self._tokens))
        if backlog and self.paces:
            paced = sent & self._behind[batch.topic]
            self._budget -= float(batch.payload_bytes[paced].sum())

    @property
    def any(self) -> bool:
        """Whether any topic that is known has a rate, or messages that wait since an outage."""
        self._learn()
        return self._rated or self._late

    def spent(self) -> Mask:
        """By topic: whether nothing of its backlog may go now."""
        self._refill()
        out = (self._waits > 0) & (self._tokens < 1)
        return out | (self._behind & (self._budget <= 0))

    def worthwhile(self) -> Mask:
        """By topic: whether enough of its backlog may go to read for it."""
        self._refill()
        out = (self._waits == 0) | (self._tokens >= np.maximum(1, WORTHWHILE_S * self._waits))
        return out & (~self._behind | (self._budget >= WORTHWHILE_S * SLOWEST * self._cap))

    # -- what is backlog ---------------------------------------------------------------------------------

    @property
    def paces(self) -> bool:
        """Whether a backlog has a pace: without one it goes as all other messages do."""
        return self._cap > 0

    def fall_behind(self, topics: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """These topics, by number, have messages from before the end of an outage."""
        if not self.paces:
            return
        self._learn()
        self._behind[np.asarray(topics, np.int32)] = True
        self._late = bool(self._behind.any())

    def follow(self, waiting: Sequence[int]) -> None:
        """Only these topics have anything that waits: the others have caught up."""
        self._learn()
        if self._late:
            self._behind &= np.isin(np.arange(len(self._behind)), waiting)
            self._late = bool(self._behind.any())

    def kafka_came_back(self) -> None:
        """The backlog waits for a while that chance decides about."""
        self._budget = 0.0
        self._closed_until = self._clock() + self._chance.uniform(0, BACKLOG_DELAY_S)

    # -- what is in the buckets --------------------------------------------------------------------------

    def _refill(self) -> None:
        self._learn()
        now = self._clock()
        passed, self._filled_at = now - self._filled_at, now
        # One token at least, or what is slower than a message a second never goes.
        self._tokens = np.minimum(np.maximum(1, self._waits), self._tokens + passed * self._waits)
        if now - self._drawn_at >= BACKLOG_DRAW_S:
            self._drawn_at = now
            self._pace = self._cap * self._chance.uniform(SLOWEST, 1)
        if now >= self._closed_until:
            self._budget = min(self._cap, self._budget + passed * self._pace)

    def _learn(self) -> None:
        """Have buckets, full ones, for topics that are new."""
        known, names = len(self._waits), self._topics.names
        if known == len(names):
            return
        rates = [self._named.get(name, Rate(0)) for name in names[known:]]
        self._rated |= any(rate.messages for rate in rates)
        waits = np.array([0 if rate.discard else rate.messages for rate in rates], np.float64)
        discards = np.array([rate.messages if rate.discard else 0 for rate in rates], np.float64)
        self._waits, self._tokens = np.append(self._waits, waits), np.append(self._tokens, waits)
        self._discards = np.append(self._discards, discards)
        self._received_tokens = np.append(self._received_tokens, discards)
        self._received_ns = np.append(self._received_ns, np.zeros(len(rates), np.int64))
        self._behind = np.append(self._behind, np.zeros(len(rates), np.bool_))


def hot_topics(pool: Pool, roomy: Mask, free: Mask) -> npt.NDArray[np.int32]:
    """Numbers of the topics that are to be set aside, of those with partitions that are `free`.

    Of each healthy broker without room: those with no less in flight there than it would be if all with
    anything in flight there had the same. `roomy` bool by broker index, `free` bool by flat number.
    """
    rows, brokers = pool.partitions.in_use, pool.brokers.rows
    full = ~roomy & pool.brokers.healthy()
    there = rows[(rows["leader"] >= 0) & (rows["messages"] > 0)]
    there = there[full[there["leader"]]]
    if len(there) == 0:
        return np.zeros(0, np.int32)
    topics = int(there["topic"].max()) + 1
    shares = np.zeros((len(brokers), topics))
    # The share of all that the broker has counts, in messages and in bytes.
    for load in ("messages", "bytes"):
        share = there[load] / np.maximum(brokers[load][there["leader"]], 1)
        np.add.at(shares, (there["leader"], there["topic"]), share)
    fair = shares.sum(axis=1) / np.maximum((shares > 0).sum(axis=1), 1)
    flooding = ((shares > 0) & (shares >= 0.999 * fair[:, np.newaxis])).any(axis=0)
    return np.intersect1d(np.flatnonzero(flooding), rows["topic"][free]).astype(np.int32)


def compile_kernels() -> None:
    """Compile what rates take."""
    numbers, words, reals = np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0)
    thin(numbers, numbers, numbers, reals, 0.0, np.zeros(0, np.bool_))
    judge(numbers, words, reals, reals, words, np.zeros(0, np.bool_))
