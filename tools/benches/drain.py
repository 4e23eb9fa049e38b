"""A spooled backlog delivered, with identity header and a report a message, against librdkafka in C.

The C program makes its messages in memory and sends them to the same topic with the same properties. Both
are timed from a tenth of the reports to the last, so that neither's start counts; the reports of bruce are
read as its low watermark in the shared state, which moves with its marks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Iterator

from spool.shared.state import Field
from tools.benches.bench import TOPIC, Bench, accept
from tools.benches.machine import Skipped, compile_c, cpu_seconds, librdkafka_path
from tools.benches.report import Figure
from tools.bruce_process import NOWHERE, Bruce
from tools.load import LoadOptions
from tools.payload import KEY_BYTES, headers_of
from tools.targets import Target
from tools.waiting import TookTooLong

REQUIRED = {"embedded": 0.7, "real": 0.8}
WITH_HEADERS = 0.85
"""Of messages with two headers of the sender's, to those without: rate."""
OVERHEAD_BYTES = 28 + len(TOPIC)
HEADERS_BYTES = 4 + sum(6 + len(name) + len(value or b"") for name, value in headers_of(1, bytes(8), b""))
"""A message is so much longer with the headers of the load."""
TIMEOUT_S = 900.0
LOOK_S = 0.002


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options for the messages and the cluster."""
    parser.add_argument("--count", type=int, default=5_000_000)
    parser.add_argument("--bytes", type=int, default=120, help="of key and value together; default 120")
    parser.add_argument("--kafka", nargs="+", choices=("embedded", "real"), default=["embedded", "real"])
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=3)
    parser.add_argument("--partitions", type=int, default=12)


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Each cluster in turn, bruce and the C program by turns. Raises Skipped, KafkaMissing."""
    for kind in options.kafka:
        rates: list[tuple[float, float]] = []
        bases: list[tuple[float, float]] = []
        headed: list[tuple[float, float]] = []
        headed_bases: list[tuple[float, float]] = []
        for _ in range(bench.repeat):
            # A cluster of its own for each: the other's data do not take its room in the page cache.
            with bench.kafka(kind, brokers=options.brokers, partitions=options.partitions) as kafka:
                bases.append(produce(bench, kafka, options))
            with bench.kafka(kind, brokers=options.brokers, partitions=options.partitions) as kafka:
                rates.append(drain(bench, kafka, options))
            with bench.kafka(kind, brokers=options.brokers, partitions=options.partitions) as kafka:
                headed.append(drain(bench, kafka, options, headers=True))
            with bench.kafka(kind, brokers=options.brokers, partitions=options.partitions) as kafka:
                headed_bases.append(produce(bench, kafka, options, headers=True))
        yield Figure(
            f"drain to {kind} Kafka",
            [rate for rate, _ in rates],
            "msg/s",
            at_least=REQUIRED[kind],
            baseline=[rate for rate, _ in bases],
        )
        yield Figure(f"CPU of the delivery worker, {kind}", [c for _, c in rates], "µs/msg")
        yield Figure(f"CPU of the C program, {kind}", [c for _, c in bases], "µs/msg")
        yield Figure(
            f"with two headers, {kind}",
            [rate for rate, _ in headed],
            "msg/s",
            at_least=WITH_HEADERS,
            baseline=[rate for rate, _ in rates],
        )
        yield Figure(f"CPU of the delivery worker with them, {kind}", [c for _, c in headed], "µs/msg")
        yield Figure(
            f"the C program with the same two, {kind}",
            [rate for rate, _ in headed_bases],
            "msg/s",
            baseline=[rate for rate, _ in bases],
        )


def produce(
    bench: Bench, kafka: Target, options: argparse.Namespace, *, headers: bool = False
) -> tuple[float, float]:
    """The C program: (messages a second, CPU in µs a message)."""
    program, count = compile_c("produce_librdkafka", bench.programs), bench.scaled(options.count)
    command = [program, librdkafka_path(), kafka.bootstrap, TOPIC, options.partitions, count]
    done = subprocess.run(
        [*map(str, command), str(options.bytes - KEY_BYTES), str(2 * headers)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    said = json.loads(done.stdout)
    if said["failed"]:
        raise Skipped(f"the C program had {said['failed']} failed messages")
    return 0.9 * count / said["seconds"], 1e6 * said["cpu_seconds"] / count


def drain(
    bench: Bench, kafka: Target, options: argparse.Namespace, *, headers: bool = False
) -> tuple[float, float]:
    """bruce: the same, from a spool that was filled while Kafka was away."""
    size, count = options.bytes + OVERHEAD_BYTES + headers * HEADERS_BYTES, bench.scaled(options.count)
    with bench.bruce(NOWHERE) as bruce:
        bruce.start()
        load = LoadOptions(bruce.socket, count=count, sizes=(size, size), headers=float(headers))
        accept(bruce, load, TIMEOUT_S)
        bruce.stop()
        bruce.configure(kafka.bootstrap)
        began = time.monotonic()
        bruce.start()
        seconds, used = follow_floor(bruce, count, began)
        bruce.stop()
    return count / seconds, 1e6 * used / count


def follow_floor(bruce: Bruce, count: int, began: float) -> tuple[float, float]:
    """(seconds, CPU seconds of the worker) of `count` messages, from those after the first tenth.

    If all were delivered between two samples: with the worker's start, from when it `began`.
    """
    pid = bruce.workers()["delivery"]
    end = time.monotonic() + TIMEOUT_S
    seen: tuple[float, float, int] | None = None
    while (now := time.monotonic()) < end:
        floor = bruce.word(Field.LOW_WATERMARK)
        if seen is None and floor >= count // 10:
            seen = now, cpu_seconds(pid), floor
        if seen and floor >= count:
            used = cpu_seconds(pid)
            at, before, done = seen if seen[2] < count else (began, 0.0, 0)
            # The low watermark moves in steps: count from the first step that was sampled.
            share = 1 - done / count
            return (now - at) / share, (used - before) / share
        time.sleep(LOOK_S)
    raise TookTooLong(f"{count} messages were not delivered within {TIMEOUT_S:.0f} s")
