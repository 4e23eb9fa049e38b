"""From the time at which a datagram was due to its arrival at a consumer on the same host.

Only bruce learns when the broker acknowledges, and bruce's own marks are up to 0.5 s apart. A
consumer sees a message when it is committed in Kafka, which is when a producer with acks=all gets its answer.
So the arrival is an upper bound of the acknowledgement that does not depend on bruce's own report. The
embedded Kafka answers an empty fetch only after the time that the consumer allows it, so there that is 2 ms.

These figures include bruce's sync interval (20 ms at most by default: nothing is delivered before it is on
disk).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tools.benches.bench import TOPIC, Bench, await_delivered, warm_up
from tools.benches.report import Figure
from tools.bruce_process import ROOT
from tools.load import LoadOptions
from tools.load_process import run_load
from tools.targets import Target

FETCH_WAIT_MS = {"embedded": 2, "real": 500}
SKIP_S = 1.0
TIMEOUT_S = 120.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """How fast, how long, and where to."""
    parser.add_argument("--rates", type=int, nargs="+", default=[1_000, 50_000])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--kafka", nargs="+", choices=("embedded", "real"), default=["embedded", "real"])
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=3)
    parser.add_argument("--partitions", type=int, default=6)


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Each cluster at each rate. Raises KafkaMissing."""
    for kind in options.kafka:
        with bench.kafka(kind, brokers=options.brokers, partitions=options.partitions) as kafka:
            for rate in options.rates:
                found = [once(bench, kafka, kind, rate, options.seconds) for _ in range(bench.repeat)]
                for name in ("p50", "p99", "max"):
                    yield Figure(f"{kind}, {rate:,}/s, {name}", [row[name] for row in found], "ms")


def once(bench: Bench, kafka: Target, kind: str, rate: int, seconds: float) -> dict[str, Any]:
    """Percentiles of one run."""
    count = int(rate * max(3.0, seconds * bench.scale))
    with bench.bruce(kafka.bootstrap) as bruce:
        bruce.start()
        warm_up(bruce)
        await_delivered(bruce, TIMEOUT_S)
        with consuming(kafka.bootstrap, count, SKIP_S, FETCH_WAIT_MS[kind], "load") as consumer:
            run_load(LoadOptions(bruce.socket, rate=rate, count=count, keyed=0.5), TIMEOUT_S + seconds)
            found = consumer(TIMEOUT_S)
        bruce.stop()
    assert found["messages"] >= count, f"{found['messages']} of {count} messages arrived"
    return found


@contextmanager
def consuming(
    bootstrap: str, count: int, skip_s: float, fetch_wait_ms: int, sender: str
) -> Iterator[Callable[[float], dict[str, Any]]]:
    """A consumer at the end of every partition, in a process of its own; see arrivals.

    The function waits at most so many seconds for its report. Raises subprocess.TimeoutExpired.
    """
    arguments = [bootstrap, TOPIC, count, skip_s, fetch_wait_ms, sender]
    command = [sys.executable, "-m", "tools.benches.arrivals", *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as consumer:
        try:
            assert consumer.stdout
            assert consumer.stdout.readline() == "ready\n"
            yield lambda timeout_s: json.loads(consumer.communicate(timeout=timeout_s)[0])
        finally:
            consumer.kill()
