"""What the delivery worker's log says of Kafka: a line when something changes, a reminder while it lasts."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable

from dispatch.brokers import State

log = logging.getLogger("bruce")

REMIND_S = 600.0
"""Between two lines about a trouble that lasts."""
SETTLED_S = 5.0
"""A broker is called stalled when it has been for so long: between two batches each one is, now and then."""
_WHERE = re.compile(r"\(.*\)|\S+:\d+")
"""What differs between two sentences about the same trouble: which broker failed last, and how."""


class DeliveryLog:
    """One delivery worker's."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cause = ""
        self._since = self._said_at = 0.0
        self._stalled: dict[int, float] = {}
        """By broker, since when it has been."""
        self._told: set[int] = set()
        """Those that a line was about."""

    def note_trouble(self, sentence: str) -> None:
        """Why nothing can be sent, or that it can, each time that it is looked at."""
        now, cause = self._clock(), _WHERE.sub("", sentence)
        if cause != self._cause:
            if not self._cause:
                self._since = now
            if sentence:
                log.error("%s", sentence)
            else:
                log.warning("messages can be sent again, after %.0f s", now - self._since)
            self._cause, self._said_at = cause, now
        elif cause and now - self._said_at >= REMIND_S:
            log.error("for %.0f min now: %s", (now - self._since) / 60, sentence)
            self._said_at = now

    def note_brokers(self, brokers: Iterable[tuple[int, int]]) -> None:
        """(id, state) of all, each time that they are looked at."""
        now = self._clock()
        for number, state in brokers:
            if state != State.HEALTHY:
                since = self._stalled.setdefault(number, now)
                # When none can be reached the trouble says so.
                if now - since >= SETTLED_S and number not in self._told and not self._cause:
                    self._told.add(number)
                    log.warning("broker %d does not answer; what goes to it waits in the spool", number)
            elif (began := self._stalled.pop(number, None)) is not None and number in self._told:
                self._told.remove(number)
                log.warning("broker %d answers again, after %.0f s", number, now - began)
