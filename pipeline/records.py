"""Progress records, as a driver asks for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TypeVar

from dispatch.client import KafkaClient
from dispatch.errors import Unreachable
from dispatch.options import DispatchOptions
from dispatch.progress_topic import ProgressTopic

PATIENCE_S = 60.0
"""How long Kafka may be away: where the leader of a partition has died, others must find out first."""
PAUSE_S = 1.0
T = TypeVar("T")


@contextmanager
def open_topic(options: DispatchOptions, name: str = "") -> Iterator[ProgressTopic]:
    """The progress topic; the records of `name` are ours, and its family those that begin with it."""
    with closing(KafkaClient(options)) as client:
        yield ProgressTopic(options.kafka, options.progress_topic, name.encode(), client.fetch_cluster)


def patiently(ask: Callable[[], T]) -> T:
    """An answer of Kafka. Raises Unreachable when there is none for PATIENCE_S."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except Unreachable:
            if time.monotonic() > end:
                raise
            time.sleep(PAUSE_S)
