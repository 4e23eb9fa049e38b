"""Datagrams taken in, with their senders' credentials, against a C loop that throws them away.

Two senders use sendmmsg, so that the receiver is the limit. Kafka is away, so that the delivery worker takes
no processor from the intake; the keeper syncs and seals as always. Both rates are taken from the senders'
clocks, from the first send to the last. Batches are compared with single messages of the same size.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tools.benches.bench import Bench, accept, warm_up
from tools.benches.machine import compile_c, cpu_seconds, queue_length
from tools.benches.report import Figure
from tools.load import LoadOptions
from tools.load_process import run_load

REQUIRED = {512: (0.80, 1.3), 10: (0.65, 1.6)}
"""By queue length: ratio to the C loop, CPU in µs a message."""
BATCHES = 3.0, 0.33
"""Of batches, to single messages: rate, CPU."""
TIMEOUT_S = 600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much."""
    parser.add_argument("--count", type=int, default=3_000_000)
    parser.add_argument("--size", type=int, default=150)
    parser.add_argument("--batch", type=int, default=32, help="messages of a batch; default 32")
    parser.add_argument("--queue-lengths", type=int, nargs="+", default=[512, 10])


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Both queue lengths, each in turns with its baseline. Raises Skipped."""
    program = compile_c("discard_recvmmsg", bench.programs)
    count = bench.scaled(options.count)
    for length in options.queue_lengths:
        rates: list[tuple[float, float]] = []
        bases: list[tuple[float, float]] = []
        batches: list[tuple[float, float]] = []
        with queue_length(length):
            for _ in range(bench.repeat):
                bases.append(discard(bench, program, count, options.size))
                rates.append(take_in(bench, count, options.size))
                batches.append(take_in(bench, count, options.size, options.batch))
        ratio, cpu = REQUIRED.get(length, (None, None))
        yield Figure(
            f"intake, qlen {length}",
            [rate for rate, _ in rates],
            "msg/s",
            at_least=ratio,
            baseline=[rate for rate, _ in bases],
        )
        yield Figure(f"CPU of the ingest worker, qlen {length}", [c for _, c in rates], "µs/msg", at_most=cpu)
        yield Figure(f"CPU of the C loop, qlen {length}", [c for _, c in bases], "µs/msg")
        rate, cpu = BATCHES
        yield Figure(
            f"batches of {options.batch}, qlen {length}",
            [rate for rate, _ in batches],
            "msg/s",
            at_least=rate,
            baseline=[rate for rate, _ in rates],
        )
        yield Figure(
            f"their CPU of the ingest worker, qlen {length}",
            [c for _, c in batches],
            "µs/msg",
            at_most=cpu,
            baseline=[c for _, c in rates],
        )


def discard(bench: Bench, program: Path, count: int, size: int) -> tuple[float, float]:
    """The C loop: (messages a second, CPU in µs a message)."""
    path = bench.directory / "discard.sock"
    with subprocess.Popen([program, path, str(count)], stdout=subprocess.PIPE, text=True) as loop:
        try:
            assert loop.stdout
            assert loop.stdout.readline() == "ready\n"
            report = run_load(LoadOptions(path, count=count, sizes=(size, size)), TIMEOUT_S)
            said = json.loads(loop.communicate(timeout=TIMEOUT_S)[0])
        finally:
            loop.kill()
            path.unlink(missing_ok=True)
    return count / report["seconds"], 1e6 * said["cpu_seconds"] / count


def take_in(bench: Bench, count: int, size: int, batch: int = 1) -> tuple[float, float]:
    """bruce: the same."""
    with bench.bruce() as bruce:
        bruce.start()
        warm_up(bruce)
        pid = bruce.workers()["ingest"]
        before = cpu_seconds(pid)
        load = LoadOptions(bruce.socket, count=count, sizes=(size, size), batches=(batch,))
        report = accept(bruce, load, TIMEOUT_S)
        used = cpu_seconds(pid) - before
        bruce.stop()
    return report["sent"] / report["seconds"], 1e6 * used / report["sent"]
