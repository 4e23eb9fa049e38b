"""Private memory of each process: idle, with a backlog while Kafka is away, and while that drains.

Pages of mapped files are not counted: segments, staging, libraries. The supervisor's figure includes the
pages that it shares with the workers it forked; a worker's has only the rest. The delivery worker may have
its in-flight window on top: as many messages of that size as it may have at all brokers together.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator

from dispatch.options import DispatchOptions
from spool.shared.state import Field
from tools.benches.bench import Bench, accept, warm_up
from tools.benches.machine import private_bytes
from tools.benches.report import Figure
from tools.bruce_process import NOWHERE, WORKERS, Bruce
from tools.load import LoadOptions
from tools.waiting import TookTooLong

SUPERVISOR_MB, WORKER_MB = 160.0, 60.0
TIMEOUT_S = 1800.0
SAMPLE_S = 0.1
_GIB = 1 << 30


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much backlog, and how wide the window."""
    parser.add_argument("--backlog-gib", type=float, default=4.0)
    parser.add_argument("--size", type=int, default=150)
    parser.add_argument("--window-messages", type=int, default=DispatchOptions().window_messages)
    parser.add_argument("--brokers", type=int, default=3)


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """One run; the highest figure of each process in each state."""
    count = bench.scaled(options.backlog_gib * _GIB / options.size)
    settings = {"dispatch": {"window_messages": options.window_messages}}
    window_mb = options.brokers * options.window_messages * options.size / 1e6
    with (
        bench.kafka("embedded", brokers=options.brokers, partitions=12) as kafka,
        bench.bruce(NOWHERE, settings=settings) as bruce,
    ):
        bruce.start()
        warm_up(bruce)
        yield from figures("idle", look(bruce), 0.0)
        accept(bruce, LoadOptions(bruce.socket, count=count, sizes=(options.size, options.size)), TIMEOUT_S)
        yield from figures("backlog, Kafka away", look(bruce), 0.0)
        bruce.stop()
        bruce.configure(kafka.bootstrap)
        bruce.start()
        yield from figures("draining", watch(bruce), window_mb)
        bruce.stop()


def look(bruce: Bruce) -> dict[str, float]:
    """MB of each process now."""
    found = {}
    for role, pid in bruce.workers().items():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[role] = private_bytes(pid, shared_with_children=role == "supervisor") / 1e6
    return found


def watch(bruce: Bruce) -> dict[str, float]:
    """The highest figure of each process until everything is delivered. Raises TookTooLong."""
    most = dict.fromkeys(WORKERS, 0.0)
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        for role, megabytes in look(bruce).items():
            most[role] = max(most[role], megabytes)
        if bruce.word(Field.LOW_WATERMARK) >= bruce.word(Field.WRITTEN_SEQUENCE) > 0:
            return most
        time.sleep(SAMPLE_S)
    raise TookTooLong(f"the backlog was not delivered within {TIMEOUT_S:.0f} s")


def figures(state: str, found: dict[str, float], window_mb: float) -> Iterator[Figure]:
    """One figure a process."""
    for role, megabytes in found.items():
        limit = SUPERVISOR_MB if role == "supervisor" else WORKER_MB
        window = window_mb if role == "delivery" else 0.0
        remark = f"{WORKER_MB:.0f} MB and a window of {window:.0f} MB" if window else ""
        yield Figure(f"{role}, {state}", [megabytes], "MB", at_most=limit + window, remark=remark)
