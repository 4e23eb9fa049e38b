"""Spools on Spark: all columns into Spark's noop sink, from one core to two, and `brucectl spark drain`.

A daemon without Kafka fills the spool. Reading is compared with Parquet of the same rows, as written by Spark
(snappy, a file for each segment), and with the plain reader: one process without Spark, which makes the same
columns and drops them. The drain is compared with the daemon's own from an equal spool, to the same embedded
Kafka. Everything runs once before it counts: then the JVM has compiled its code and the files are in memory.
All use the same processors, and take turns.

CPU is that of the JVM and its Python workers. On a busy machine it is more reliable than time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from dispatch.options import DispatchOptions
from spool.format.wire import encode
from spool.layout import Layout
from spool.shared.state import Field
from tools.benches import drain as live
from tools.benches.bench import TOPIC, Bench, accept
from tools.benches.report import Figure
from tools.bruce_process import NOWHERE, Bruce
from tools.load import LoadOptions
from tools.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.delivery.sending import Sent

REQUIRED = 0.5
TIMEOUT_S = 900.0
ROOM = {"spool": {"max_bytes": 64 << 30, "recompress": False}}
_NOISE_BYTES = 64 << 20
"""A compressor of Parquet's pages does not look so far back."""
Cost = tuple[float, float]
"""Seconds by the clock, and of CPU."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much."""
    parser.add_argument("--count", type=int, default=10_000_000, help="messages to read; default 10,000,000")
    parser.add_argument(
        "--drain-count", type=int, default=2_000_000, help="to deliver; default 2,000,000; 0: no drain"
    )
    parser.add_argument("--bytes", type=int, default=120, help="of key and value together; default 120")
    parser.add_argument(
        "--random", action="store_true", help="read messages of random bytes, which Parquet cannot compress"
    )
    parser.add_argument("--partitions", type=int, default=12)


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Read, then drain."""
    yield from measure_reading(bench, options)
    if options.drain_count:
        yield from measure_drain(bench, options)


def measure_reading(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Fill a spool, write it as Parquet; read both by turns, then the spool on one core."""
    count = bench.scaled(options.count)
    parquet = bench.directory / "parquet"
    with bench.bruce(NOWHERE, settings=ROOM) as bruce:
        (fill_randomly if options.random else fill)(bruce, count, options.bytes)
        try:
            source, other, plain = read_by_turns(bench, bruce.spool, parquet)
        finally:
            shutil.rmtree(parquet, ignore_errors=True)
        alone = read_on_one_core(bench, bruce.spool)
        stored = sum(path.stat().st_size for path in (bruce.spool / "segments").iterdir())
    cores = len(os.sched_getaffinity(0))
    yield Figure(
        f"source against Parquet, {cores} cores",
        _rates(count, source),
        "rows/s",
        at_least=REQUIRED,
        baseline=_rates(count, other),
    )
    yield Figure("CPU of both", _per(count, source), "µs/row", baseline=_per(count, other))
    yield Figure(
        "source against the plain reader",
        _rates(stored / 1e6, source),
        "MB/s",
        baseline=_rates(stored / 1e6, plain),
        remark="MB of segments; the plain reader is one process",
    )
    yield Figure("CPU of both", _per(count, source), "µs/row", baseline=_per(count, plain))
    yield Figure(
        f"source on {cores} cores against one", _rates(count, source), "rows/s", baseline=_rates(count, alone)
    )


def measure_drain(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Deliver a backlog by Spark and by the daemon, by turns, each from a new spool to a new cluster."""
    from pipeline.session import open_session  # noqa: PLC0415  (only this bench needs Java)

    count = bench.scaled(options.drain_count)
    spark: list[Cost] = []
    daemon: list[Cost] = []
    given = argparse.Namespace(**{**vars(options), "count": options.drain_count})
    with open_session(f"local[{len(os.sched_getaffinity(0))}]") as session:
        for _ in range(1 + bench.repeat):
            with bench.kafka("embedded", brokers=1, partitions=options.partitions) as kafka:
                rate, cpu_us = live.drain(bench, kafka, given)
                daemon.append((count / rate, count * cpu_us / 1e6))
            with bench.kafka("embedded", brokers=1, partitions=options.partitions) as kafka:
                spark.append(drain(bench, session, kafka.bootstrap, count, options.bytes))
    yield Figure(
        "spark drain against the daemon's",
        _rates(count, spark[1:]),
        "msg/s",
        baseline=_rates(count, daemon[1:]),
        remark="from the command's lease to its last mark, without the start of Spark",
    )
    yield Figure("CPU of both", _per(count, spark[1:]), "µs/msg", baseline=_per(count, daemon[1:]))


def fill(bruce: Bruce, count: int, size: int) -> None:
    """Store this many messages, and stop."""
    size += live.OVERHEAD_BYTES
    bruce.start()
    accept(bruce, LoadOptions(bruce.socket, count=count, sizes=(size, size)), TIMEOUT_S)
    bruce.stop()


def fill_randomly(bruce: Bruce, count: int, size: int) -> None:
    """The same, of random values; one sender, since Python makes each datagram."""
    noise = os.urandom(_NOISE_BYTES)
    bruce.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(bruce.socket))
        for number in range(count):
            at = number * size % (_NOISE_BYTES - size)
            sender.send(encode(TOPIC.encode(), noise[at : at + size], timestamp=number))
    wait_until(
        lambda: bruce.word(Field.WRITTEN_SEQUENCE) >= count, TIMEOUT_S, "all that was sent to be written"
    )
    bruce.stop()


def read_by_turns(bench: Bench, spool: Path, parquet: Path) -> tuple[list[Cost], list[Cost], list[Cost]]:
    """The costs of (source, Parquet, plain reader), in each repetition."""
    from pipeline.session import open_session  # noqa: PLC0415

    with open_session(f"local[{len(os.sched_getaffinity(0))}]") as session:
        source = session.read.format("bruce").load(str(spool))
        source.write.mode("overwrite").parquet(str(parquet))
        frames = (source, session.read.parquet(str(parquet)))
        sinks = [frame.write.format("noop").mode("overwrite").save for frame in frames]
        clock = cpu_clock(session)
        costs = [
            (cost(sinks[0], clock), cost(sinks[1], clock), cost(lambda: read_plainly(spool)))
            for _ in range(1 + bench.repeat)
        ]
    source_costs, parquet_costs, plain_costs = map(list, zip(*costs[1:], strict=True))
    return source_costs, parquet_costs, plain_costs


def read_on_one_core(bench: Bench, spool: Path) -> list[Cost]:
    """The cost of the source when JVM and Python workers share one core."""
    from pipeline.session import open_session  # noqa: PLC0415

    with one_core(), open_session("local[1]") as session:
        sink = session.read.format("bruce").load(str(spool)).write.format("noop").mode("overwrite").save
        return [cost(sink, cpu_clock(session)) for _ in range(1 + bench.repeat)][1:]


@contextmanager
def one_core() -> Iterator[None]:
    """Use the first of our processors only, with all processes started in the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def drain(bench: Bench, session: SparkSession, servers: str, count: int, size: int) -> Cost:
    """`brucectl spark drain` of a backlog, in an existing session."""
    from pipeline.delivery.drain import run_drain  # noqa: PLC0415

    options = DispatchOptions(kafka={"bootstrap.servers": servers})
    with bench.bruce(NOWHERE, settings=ROOM) as bruce:
        fill(bruce, count, size)
        sent: list[Sent] = []
        spent = cost(
            lambda: sent.append(run_drain(lambda: session, [str(bruce.spool)], options, {})),
            cpu_clock(session),
        )
    assert sent[0].delivered == count, sent
    return spent


def read_plainly(spool: Path) -> None:
    """Make every column of every message."""
    from pipeline.source.fields import STORED, to_schema  # noqa: PLC0415
    from pipeline.source.plan import plan_spool  # noqa: PLC0415
    from pipeline.source.rows import PERMISSIVE, read_part  # noqa: PLC0415

    schema = to_schema(name for name, *_ in STORED)
    for part in plan_spool(Layout(spool)).parts:
        for _ in read_part(part, schema, PERMISSIVE):
            pass


def cpu_clock(session: SparkSession) -> Callable[[], float]:
    """Returns the CPU seconds of the session's JVM, and of the Python workers, its descendants."""
    # Spark has no public way to its own process.
    gateway: Any = session.sparkContext._gateway  # noqa: SLF001
    jvm = psutil.Process(gateway.proc.pid)

    def used() -> float:
        total = 0.0
        for process in (jvm, *jvm.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                # The times of a process that has ended are in those of its parent.
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    return used


def cost(act: Callable[[], object], clock: Callable[[], float] = time.process_time) -> Cost:
    """The cost of a call; CPU by this clock, by default that of our own process."""
    began, used = time.monotonic(), clock()
    act()
    return time.monotonic() - began, clock() - used


def _rates(amount: float, costs: list[Cost]) -> list[float]:
    return [amount / seconds for seconds, _ in costs]


def _per(count: int, costs: list[Cost]) -> list[float]:
    """CPU in µs for one of `count`."""
    return [1e6 * used / count for _, used in costs]
