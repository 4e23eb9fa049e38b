"""Asking for metadata, again and again."""

from __future__ import annotations

import threading

from dispatch.cluster import Cluster
from dispatch.errors import Unreachable
from router.metadata import Metadata


def test_attempts_are_counted() -> None:
    """Those without an answer apart from those with one; told of once."""
    fails, answered = [True, True, False], threading.Event()

    def fetch(_topics: list[bytes], _timeout_s: float) -> Cluster:
        if fails.pop(0):
            raise Unreachable(-1, "nobody is there")
        return Cluster()

    metadata = Metadata(fetch, answered.set)
    try:
        metadata.want([b"t"])
        assert answered.wait(60)
        assert metadata.take_counts() == (1, 2)
        assert metadata.take_counts() == (0, 0)
    finally:
        metadata.stop()
