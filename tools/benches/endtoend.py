"""From datagram to acknowledgement, on two cores, to the embedded Kafka, against a C program without a disk.

Senders, daemon and Kafka share the processors (`--processors`). By turns in each run, for each length of a
socket's queue: a C program that does recvmmsg and produceva (`peers.floor`), whose rate is that of its
senders, since it holds less than half a second of messages; and bruce, whose written and delivered messages
the bench samples from the shared state. With `--rate` the senders keep an open schedule. A line through the
backlog of the second half gives its growth in messages a second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spool.shared.state import Field
from tools.benches.bench import Bench, await_delivered, warm_up
from tools.benches.machine import queue_length
from tools.benches.peers import floor
from tools.benches.report import Figure
from tools.bruce_process import Bruce
from tools.load import LoadOptions
from tools.load_process import RunningLoad, run_load

REQUIRED = 0.6
"""Of the rate of the C program."""
SAMPLE_S = 0.05
SETTLE_S = 300.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options for the rate and the duration."""
    parser.add_argument("--queue-lengths", type=int, nargs="+", default=[512, 10])
    parser.add_argument(
        "--rate", type=int, default=0, help="messages a second; default 0: as fast as it goes"
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--size", type=int, default=150)
    parser.add_argument("--keyed", type=float, default=0.0)
    parser.add_argument("--partitions", type=int, default=12)


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Both queue lengths, each in turns with its baseline. Raises Skipped."""
    for length in options.queue_lengths:
        rows: list[tuple[float, float, float, float]] = []
        bases: list[float] = []
        with queue_length(length):
            for _ in range(bench.repeat):
                bases.append(forward(bench, options))
                rows.append(once(bench, options))
        accepted, delivered, growth, backlog = (list(column) for column in zip(*rows, strict=True))
        yield Figure(f"delivered, qlen {length}", delivered, "msg/s", at_least=REQUIRED, baseline=bases)
        yield Figure(f"accepted, qlen {length}", accepted, "msg/s")
        yield Figure(f"growth of the backlog, qlen {length}", growth, "msg/s")
        yield Figure(f"mean backlog, qlen {length}", backlog, "messages")


def load(bench: Bench, options: argparse.Namespace, socket: Path) -> LoadOptions:
    """The messages that both get."""
    return LoadOptions(
        socket,
        rate=options.rate,
        seconds=max(1.0, options.seconds * bench.scale),
        sizes=(options.size, options.size),
        keyed=options.keyed,
    )


def forward(bench: Bench, options: argparse.Namespace) -> float:
    """Messages a second that the C program takes."""
    with (
        bench.kafka("embedded", brokers=3, partitions=options.partitions) as kafka,
        floor(bench, kafka.bootstrap) as running,
    ):
        report = run_load(load(bench, options, running.socket), SETTLE_S)
    return float(report["sent"] / report["seconds"])


def once(bench: Bench, options: argparse.Namespace) -> tuple[float, float, float, float]:
    """(accepted, delivered, growth a second, mean backlog) of the second half, with bruce."""
    with (
        bench.kafka("embedded", brokers=3, partitions=options.partitions) as kafka,
        bench.bruce(kafka.bootstrap) as bruce,
    ):
        bruce.start()
        warm_up(bruce)
        await_delivered(bruce, SETTLE_S)
        with RunningLoad(load(bench, options, bruce.socket)) as running:
            samples = sample(bruce, running)
            running.wait(SETTLE_S)
        await_delivered(bruce, SETTLE_S)
        bruce.stop()
    return judge(samples)


def sample(bruce: Bruce, running: RunningLoad) -> npt.NDArray[np.float64]:
    """(seconds, written, low watermark) while the load runs and sends."""
    rows, first = [], bruce.word(Field.WRITTEN_SEQUENCE)
    while running.running:
        shared = bruce.shared()
        if shared is not None and shared[Field.WRITTEN_SEQUENCE] > first:
            rows.append(
                (time.monotonic(), float(shared[Field.WRITTEN_SEQUENCE]), float(shared[Field.LOW_WATERMARK]))
            )
        time.sleep(SAMPLE_S)
    return np.array(rows)


def judge(samples: npt.NDArray[np.float64]) -> tuple[float, float, float, float]:
    """The figures of the second half of the samples."""
    # Trailing samples without new messages belong to the end of the load, not to the load.
    last = int(np.flatnonzero(samples[:, 1] < samples[-1, 1])[-1])
    seconds, written, settled = samples[last // 2 : last + 1].T
    backlog = written - settled
    span = seconds[-1] - seconds[0]
    growth = float(np.polyfit(seconds, backlog, 1)[0])
    return (written[-1] - written[0]) / span, (settled[-1] - settled[0]) / span, growth, float(backlog.mean())
