"""The two ends between which the router works, and what was decided about topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from dispatch.client import KafkaClient
from dispatch.pool import Pool
from router.limits import Limits
from router.metadata import Metadata
from router.open_counts import OpenCounts
from router.partition import Partitioners
from router.room import Room
from spool.reader import Reader

if TYPE_CHECKING:
    from router.eviction import Eviction  # it brings LMDB along, which Spark's executors do without

Place = Callable[[], tuple[int, int]]


class Log(NamedTuple):
    """The log as the router reads it."""

    live: Reader
    again: Reader
    """The catch-up reader."""
    committed: Place
    """The place up to which it may be read."""
    eviction: Eviction | None = None
    """Gives up the oldest messages when the spool asks for it."""
    shares: OpenCounts | None = None
    """Counts what is open of topics with a quota."""


class Kafka(NamedTuple):
    """The cluster as the router sees it."""

    client: KafkaClient
    pool: Pool
    room: Room
    metadata: Metadata


class Rules(NamedTuple):
    """What the configuration says about topics."""

    partitioners: Partitioners
    limits: Limits
