"""Topics that clients of the Kafka input want: Kafka is asked for them with ours, and its answers are noted.

The note (spool.shared.topics) is what those clients see of the cluster. A topic stays in it through an outage
and a restart, whoever wanted it; an answer that Kafka does not have it replaces the partitions that it had.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from itertools import islice

from dispatch.client import Cluster
from spool.layout import Layout
from spool.shared.topics import MOST_WANTED, read_partitions, write_partitions

log = logging.getLogger("bruce.router")


class WantedTopics:
    """Those of one spool. One thread adds to them, another one notes."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._noted = read_partitions(layout)
        self._wanted = frozenset(self._noted)

    def add(self, names: Collection[bytes]) -> None:
        """Note these, too, from the next answer on."""
        self._wanted |= frozenset(names)
        if len(self._wanted) > 2 * MOST_WANTED:
            self._wanted = frozenset(names)

    def note(self, found: Cluster) -> None:
        """Note what an answer says of them, if it is new."""
        wanted, noted = self._wanted, dict(self._noted)
        noted.update({name: len(leaders) for name, leaders in found.topics.items() if name in wanted})
        noted.update({name: -code for name, code in found.errors.items() if name in wanted})
        noted = {name: count for name, count in noted.items() if name in wanted}
        if len(noted) > MOST_WANTED:
            there = ((name, count) for name, count in noted.items() if count > 0)
            noted = dict(islice(there, MOST_WANTED))
        if noted == self._noted:
            return
        try:
            write_partitions(self._layout, noted)
        except OSError as error:
            log.warning(
                "partitions cannot be noted, and clients of the Kafka input do not see them: %s", error
            )
            return
        self._noted = noted
