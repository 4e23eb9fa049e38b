"""Names beyond the bound of the deliverer's table (spool.topics): looked at twice before they are discarded.

Anybody may send any name, but topics that Kafka has must not go short for it. Half of the table is theirs: a
name that Kafka has is no stranger, and takes a place in either half. To know which it has, Kafka is asked for
all its topics when strangers fill their half, and again every LIST_S while they do; until the first answer
nothing is read on. Names that were given up, of which nothing is open, are forgotten, all at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from router.metadata import Metadata
from router.unknown import UnknownTopics
from spool.record import Topics

LIST_S = 10.0
"""How old the list of Kafka's topics may be, by which strangers are told from others."""

FEW = 100
ASK_S = 1.0
"""Between two questions for more than FEW topics."""


class Strangers:
    """Of one router."""

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
        self._listed_at = -LIST_S
        self._asked, self._asked_at = False, 0.0
        self.waits = False
        """For the list: nothing is to be read before it is there."""

    def may_have_room(self) -> bool:
        """Whether a message whose topic has no number is to be read once more before it is discarded."""
        if self._swept() and self.unknown.forget(self._topics):
            return True
        if self._clock() - self._listed_at >= LIST_S:
            self.waits = True
            self._metadata.list_all()
        return self.waits

    def ask(self) -> None:
        """Have Kafka asked for all topics that messages wait for, and for no others any more."""
        waiting = self.unknown.waiting
        if len(waiting) > FEW and self._clock() - self._asked_at < ASK_S:
            return
        if waiting or self._asked:
            names = self._topics.names
            self._metadata.look_for([names[topic] for topic in waiting])
        self._asked, self._asked_at = bool(waiting), self._clock()

    def step(self) -> None:
        """Take over the list when it is there."""
        if not self.waits:
            return
        if (names := self._metadata.take_names()) is not None:
            self._topics.welcome(names)
            self._listed_at, self.waits = self._clock(), False
        else:
            # It may have failed.
            self._metadata.list_all()
