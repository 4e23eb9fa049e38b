"""The topics that clients of the Kafka input see: those of the real cluster, as the deliverer noted them.

A client asks for a topic before it sends, and its partitioner goes by the number of partitions. A topic that
is not known yet is wanted: the deliverer asks Kafka for it (spool.shared.topics). Until it has answered, a
client hears LEADER_NOT_AVAILABLE, which has it ask again.

An input with `allow_unknown` takes messages for a topic that Kafka does not have, or was never asked for: its
clients see one partition, and which one a message goes to is chosen when it is delivered.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from ingest.kafka.errors import Code
from spool.errors import NotOurs
from spool.layout import Layout
from spool.shared.state import Field, SharedState
from spool.shared.topics import MOST_WANTED, read_partitions, version_of, write_wanted

log = logging.getLogger("bruce.kafka")

_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
AGAIN_S = 1.0
"""Until a topic that Kafka did not have is asked for again, when a client does."""
LOOK_S = 0.1
"""Between two looks at what was noted, while a topic is not known; a look is one stat."""


class Topics:
    """Those that are known, and those that are wanted."""

    def __init__(self, layout: Layout, shared: SharedState, path: Path, *, bell: int) -> None:
        """`path`: of the shared state. `bell`: an eventfd of the deliverer."""
        self._layout, self._shared, self._path, self._bell = layout, shared, path, bell
        self._known: dict[str, int] = {}
        self._version = 0, 0
        self._looked_at = 0.0
        self._wanted: OrderedDict[str, float] = OrderedDict()
        """By name, when it was asked for."""
        self._says_all, self._said_at = True, 0.0
        """Whether the file has them; when it was written."""
        self.look()

    def names(self) -> Iterable[str]:
        """Those that have partitions."""
        return [name for name, count in self._known.items() if count > 0]

    def partitions(self, name: str, *, allow_unknown: bool = False) -> int:
        """How many partitions a topic has; -Code if it has none, and is now wanted."""
        self.look()
        count = self._known.get(name, 0)
        if count <= 0 or name not in self._wanted:
            if not _NAME.fullmatch(name):
                return -Code.INVALID_TOPIC
            self._want(name)
        if count > 0:
            return count
        return 1 if allow_unknown else count or -Code.LEADER_NOT_AVAILABLE

    def is_known(self, name: str) -> bool:
        """Whether Kafka has the topic, as far as is known."""
        return self._known.get(name, 0) > 0

    def look(self) -> None:
        """See what was noted, if that is new."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        version = version_of(self._layout)
        if version != self._version:
            self._version = version
            self._known = {name.decode(): count for name, count in read_partitions(self._layout).items()}

    def _want(self, name: str) -> None:
        now = time.monotonic()
        if now - self._wanted.get(name, -AGAIN_S) < AGAIN_S:
            return
        self._wanted[name] = now
        self._wanted.move_to_end(name)
        if len(self._wanted) > MOST_WANTED:
            self._wanted.popitem(last=False)
        self._says_all = False

    def say(self) -> float | None:
        """Let the deliverer know of what is wanted now; in how many s to call again, None for not."""
        if self._says_all:
            return None
        now = time.monotonic()
        if now - self._said_at < LOOK_S:
            return LOOK_S
        self._says_all, self._said_at = True, now
        try:
            write_wanted(self._path, self._wanted)
        except (NotOurs, OSError) as error:
            log.warning("cannot say which topics clients want, so no other becomes known: %s", error)
            return None
        self._shared.words[Field.TOPICS_WANTED] += 1
        os.eventfd_write(self._bell, 1)
        return None
