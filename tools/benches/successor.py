"""From a SIGKILL of the ingest worker to the successor's first intake, by a sender whose queue was full."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from tools.benches.bench import Bench, warm_up
from tools.benches.probe import await_intake
from tools.benches.report import Figure
from tools.waiting import wait_until

REQUIRED_MS = 50.0
TIMEOUT_S = 30.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """How often."""
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument(
        "--pause", type=float, default=2.5, help="seconds between two; shorter ones meet the backoff"
    )


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Kill, and measure the time."""
    values = []
    with bench.bruce() as bruce:
        bruce.start()
        warm_up(bruce)
        for _ in range(max(3, bench.scaled(options.kills))):
            time.sleep(options.pause)
            wait_until(lambda: "ingest" in bruce.workers(), TIMEOUT_S, "an ingest worker to kill")
            begun = time.monotonic()
            bruce.kill("ingest")
            values.append(1000 * (await_intake(bruce.socket, TIMEOUT_S) - begun))
        bruce.stop()
    yield Figure("successor takes in, median", values, "ms", at_most=REQUIRED_MS)
    yield Figure("successor takes in, worst", [max(values)], "ms", at_most=REQUIRED_MS)
