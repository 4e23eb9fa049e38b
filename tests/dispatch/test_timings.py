"""What librdkafka's statistics say of brokers: added up in µs, quantiles of the newest window."""

from __future__ import annotations

from typing import Any

from dispatch.embedded import EmbeddedKafka
from dispatch.timings import Timings
from tests.dispatch.batches import Message
from tests.dispatch.rig import await_true, connected


def window(count: int, total: int, quantile: int) -> dict[str, int]:
    """One of the windows of STATISTICS.md."""
    return {"cnt": count, "sum": total, "p50": quantile, "p99": 2 * quantile}


def test_sums_and_quantiles() -> None:
    """Round trip and queue come in µs, throttle in ms; an empty window adds nothing, and has no quantile."""
    timings = Timings()
    seen: dict[str, Any] = {"nodeid": 7, "rtt": window(2, 300, 100), "int_latency": window(5, 50, 10)}
    timings.note({"brokers": {"b": {**seen, "throttle": window(1, 20, 20)}}})
    timings.note({"brokers": {"b": {**seen, "throttle": window(0, 0, 0)}, "boot": {"nodeid": -1}}})
    assert timings.table([7]).tolist() == [[4, 600, 100, 200, 10, 100, 10, 20, 1, 20_000, -1, -1]]
    assert timings.table([8, 7]).tolist()[0] == [0, 0, -1, -1] * 3
    assert timings.table([]).shape == (0, 12)


def test_each_window_counts_once(kafka: EmbeddedKafka) -> None:
    """However often somebody looks, each message waited in one broker's queue once."""
    with connected(kafka, kafka={"statistics.interval.ms": "50"}) as rig:
        rig.deliver({1: [Message(number, 0, b"v") for number in range(40)]})

        def counted() -> int:
            rig.pool.collect()
            for _ in range(3):
                rig.pool.observe()
            return int(rig.client.timings.table([1, 2, 3])[:, 4].sum())

        await_true(lambda: counted() > 0)
        since_us = rig.client.statistics()["ts"]
        await_true(lambda: counted() == 40 and rig.client.statistics()["ts"] > since_us + 200_000)
