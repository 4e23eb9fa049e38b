"""A spool into Spark's noop sink, all columns, against Parquet of the same rows and the plain reader.

A daemon without Kafka fills the spool. The plain reader is one process without Spark around it, which makes
the same columns and drops them. Each is run once before it counts: the JVM has then compiled what it runs,
and the files are in memory. All use the same processors, and take turns.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from spool.layout import Layout
from tools.benches.bench import Bench, accept
from tools.benches.drain import OVERHEAD_BYTES
from tools.benches.report import Figure
from tools.bruce_process import NOWHERE
from tools.load import LoadOptions

REQUIRED = 0.5
TIMEOUT_S = 900.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much."""
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--bytes", type=int, default=120, help="of key and value together; default 120")


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Fill a spool, write it as Parquet, read both by turns."""
    size, count = options.bytes + OVERHEAD_BYTES, bench.scaled(options.count)
    room = {"spool": {"max_bytes": 64 << 30, "recompress": False}}
    with bench.bruce(NOWHERE, settings=room) as bruce:
        bruce.start()
        accept(bruce, LoadOptions(bruce.socket, count=count, sizes=(size, size)), TIMEOUT_S)
        bruce.stop()
        parquet = bench.directory / "parquet"
        try:
            times = run(bench, bruce.spool, parquet)
        finally:
            shutil.rmtree(parquet, ignore_errors=True)
        stored = sum(path.stat().st_size for path in (bruce.spool / "segments").iterdir())
    source, other, plain = ([1 / seconds for seconds in column] for column in zip(*times, strict=True))
    cores = len(os.sched_getaffinity(0))
    yield Figure(
        f"source against Parquet, {cores} cores",
        [count * rate for rate in source],
        "rows/s",
        at_least=REQUIRED,
        baseline=[count * rate for rate in other],
    )
    yield Figure(
        "source against the plain reader",
        [stored * rate / 1e6 for rate in source],
        "MB/s",
        baseline=[stored * rate / 1e6 for rate in plain],
        remark="MB of segments; the plain reader is one process",
    )


def run(bench: Bench, spool: Path, parquet: Path) -> list[tuple[float, float, float]]:
    """Seconds of (source, Parquet, plain reader), of each repetition."""
    from pipeline.session import open_session  # noqa: PLC0415  (only this bench needs Java)

    with open_session(f"local[{len(os.sched_getaffinity(0))}]") as session:
        source = session.read.format("bruce").load(str(spool))
        source.write.mode("overwrite").parquet(str(parquet))
        frames = (source, session.read.parquet(str(parquet)))
        sinks = [frame.write.format("noop").mode("overwrite").save for frame in frames]
        times = [
            (timed(sinks[0]), timed(sinks[1]), timed(lambda: read_plainly(spool)))
            for _ in range(1 + bench.repeat)
        ]
    return times[1:]


def timed(act: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = time.monotonic()
    act()
    return time.monotonic() - began


def read_plainly(spool: Path) -> None:
    """Make every column of every message."""
    from pipeline.plan import plan_spool  # noqa: PLC0415
    from pipeline.reader import PERMISSIVE, read_part  # noqa: PLC0415
    from pipeline.schema import SCHEMA  # noqa: PLC0415

    for part in plan_spool(Layout(spool)).parts:
        for _ in read_part(part, SCHEMA, PERMISSIVE):
            pass
