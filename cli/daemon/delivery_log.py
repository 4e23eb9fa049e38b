"""The log's lines about Kafka: the story of an outage in four lines, and of a broker that is away in two.

    ERROR    no broker can be reached (...): start Kafka, ...; 12 messages wait
    ERROR    for 10 min 0 s now: no broker can be reached (...): ...; 6,012 messages wait, the oldest for
             10 min 3 s; the spool is full in 3 h 20 min
    WARNING  Kafka is back after 12 min 40 s; 7,600 messages waited
    INFO     the 7,600 messages that waited are delivered, in 2 s

The second line is repeated while the outage lasts. A trouble with single topics has the first two, and a line
when it is over. A topic that is not there yet is none here: router.cluster.unknown_topics tells of it, and
router.outcomes.counts of messages that are given up when its grace time is over.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable

import numpy as np

from cli.daemon.delivery import Progress, Waits
from dispatch.tables import State
from router.cluster.trouble import Cause
from spool.layout import Layout
from spool.log.retention import capacity, seconds_until_full, undelivered, waiting_bytes
from spool.options import Space
from spool.shared.state import Field, change_over, grows, split_place
from spool.storage.disk import allocated_bytes, free_bytes
from spool.words import agreeing, size_in_words, waiting
from status.health import in_words

log = logging.getLogger("bruce")

REMIND_S = 600.0
"""Between two lines about a trouble that lasts."""
SETTLED_S = 5.0
"""After so long without an answer a broker counts as stalled; each one is, for moments between batches."""
MINUTE_S, QUARTER_S = 60.0, 900.0
"""Over which the rate is taken at which the spool fills."""
_WHERE = re.compile(r"\(.*\)|\S+:\d+")
"""The parts that differ between two sentences about the same trouble: which broker failed last, and how."""


def room_left(layout: Layout, words: np.ndarray) -> str:
    """How long the spool has room, or how much, in a few words; empty when the keeper has not said yet.

    `words` int64: the shared state. Raises OSError.
    """
    most, least = int(words[Field.MAX_BYTES]), int(words[Field.MIN_FREE_BYTES])
    if not most:
        return ""
    used = sum(map(allocated_bytes, layout.segments.iterdir()))
    most = capacity(Space(used, *free_bytes(layout.segments)), most, None if least < 0 else least)
    low_watermark, end = int(words[Field.LOW_WATERMARK]), int(words[Field.SYNCED_SEQUENCE])
    _, position = split_place(int(words[Field.SYNCED]))
    left = max(0, most - waiting_bytes(undelivered(layout, low_watermark), end, position, low_watermark))
    now = time.monotonic_ns()
    minute, quarter = change_over(words, MINUTE_S, now), change_over(words, QUARTER_S, now)
    seconds = seconds_until_full(left, minute, quarter, steady=grows(words))
    if seconds is None:
        return f"{size_in_words(left)} of the spool are left"
    return f"the spool is full in {in_words(seconds)}"


class DeliveryLog:
    """The lines of the log about Kafka. Called at each report of the deliverer."""

    def __init__(self, room: Callable[[], str], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`room`: how much is left, in a few words; empty: not known. It may raise OSError."""
        self._room, self._clock = room, clock
        self._said = ""
        self._since = self._said_at = 0.0
        self._away_since: float | None = None
        """Since when nothing can be sent."""
        self._delivered = 0
        """Messages, since then."""
        self._acked_at: float | None = None
        """When the first of them were reported."""
        self._back: tuple[float, Waits] | None = None
        """Since when it can be again, and what waited then, until that is delivered."""
        self._stalled: dict[int, float] = {}
        """By broker, since when it has been."""
        self._told: set[int] = set()
        """Those that a line was about."""
        self.begun = False
        """Whether Kafka has acknowledged anything."""

    def note(self, progress: Progress) -> None:
        """Log what has changed."""
        if progress.counts[0] and not self.begun:
            self.begun = True
            log.info("delivery has started: Kafka acknowledges what it gets")
        self._note_trouble(progress)
        self._note_delivered(progress)
        self._note_brokers((broker.id, broker.state) for broker in progress.brokers)

    def _note_trouble(self, progress: Progress) -> None:
        now = self._clock()
        sentence = "" if progress.cause is Cause.ABSENT else progress.trouble
        said = _WHERE.sub("", sentence)
        if self._away_since is not None and progress.counts[0] and not self._delivered:
            self._acked_at = now
        self._delivered += progress.counts[0]
        if said != self._said:
            self._end(progress, sentence, now)
            if sentence:
                self._begin(progress, now)
            self._said, self._said_at = said, now
        elif said and now - self._said_at >= REMIND_S:
            waits = progress.waits()
            count = ", ".join(filter(None, (_count(waits.messages), _age(waits))))
            parts = filter(None, (sentence, count, self._ask_room()))
            log.error("for %s now: %s", in_words(now - self._since), "; ".join(parts))
            self._said_at = now

    def _begin(self, progress: Progress, now: float) -> None:
        """Another trouble than before, if there was one."""
        if not self._said:
            self._since = now
        if progress.cause is not Cause.KAFKA:
            log.error("%s", progress.trouble)
            return
        if self._away_since is None:
            self._away_since, self._since = now, now
            self._delivered, self._acked_at = 0, None
        log.error("%s; %s", progress.trouble, _count(progress.waits().messages))

    def _end(self, progress: Progress, sentence: str, now: float) -> None:
        """The trouble before is over, or another one follows."""
        if sentence and progress.cause is Cause.KAFKA:
            self._back = None
        elif self._away_since is not None:
            # The first acknowledgements come before librdkafka's statistics say that a broker is connected.
            since, waits = self._acked_at or now, progress.waits()
            waits = waits._replace(messages=waits.messages + self._delivered, discarded=0)
            self._back = since, waits
            away = in_words(since - self._away_since)
            log.warning("Kafka is back after %s; %s", away, _count(waits.messages, past=True))
            self._away_since = None
            # Each has as long to answer as after an outage of its own.
            self._stalled = dict.fromkeys(self._stalled, now)
        elif self._said and not sentence:
            log.warning("messages can be sent again, after %s", in_words(now - self._since))

    def _note_delivered(self, progress: Progress) -> None:
        """Log that what waited for Kafka is done with."""
        if self._back is None:
            return
        since, waited = self._back
        if progress.counts[1]:
            waited = waited._replace(discarded=waited.discarded + progress.counts[1])
            self._back = since, waited
        if progress.low_watermark >= waited.end:
            self._back = None
            if waited.messages:
                seconds = in_words(self._clock() - since)
                done = "delivered, or discarded (see brucectl discards)" if waited.discarded else "delivered"
                which = "message that waited is" if waited.messages == 1 else "messages that waited are"
                log.info("the %s %s %s, in %s", f"{waited.messages:,}", which, done, seconds)

    def _ask_room(self) -> str:
        try:
            return self._room()
        except OSError:
            # A segment was renamed or removed meanwhile, or the disk gives an error, which has its own line.
            return ""

    def _note_brokers(self, brokers: Iterable[tuple[int, int]]) -> None:
        """Log brokers that stall, or answer again; `brokers`: (id, state) of all."""
        now = self._clock()
        for number, state in brokers:
            if state != State.HEALTHY:
                since = self._stalled.setdefault(number, now)
                # When none can be reached the trouble says so.
                if now - since >= SETTLED_S and number not in self._told and self._away_since is None:
                    self._told.add(number)
                    log.warning("broker %d does not answer; what goes to it waits in the spool", number)
            elif (began := self._stalled.pop(number, None)) is not None and number in self._told:
                self._told.remove(number)
                log.warning("broker %d answers again, after %s", number, in_words(now - began))


def _count(messages: int, *, past: bool = False) -> str:
    return agreeing(messages, "message", "waited", "waited") if past else waiting(messages)


def _age(waits: Waits) -> str:
    if not waits.oldest_ns:
        return ""
    return f"the oldest for {in_words(max(0, time.time_ns() - waits.oldest_ns) / 1e9)}"
