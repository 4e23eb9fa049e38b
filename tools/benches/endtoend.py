"""From datagram to acknowledgement, on two cores, to the embedded Kafka, and whether the backlog grows.

Senders, daemon and Kafka share the processors (`--processors`). The senders keep an open schedule; the bench
samples the written and the delivered messages from the shared state. A line through the backlog of the second
half gives its growth in messages a second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from spool.shared.state import Field
from tools.benches.bench import Bench, await_delivered, warm_up
from tools.benches.report import Figure
from tools.bruce_process import Bruce
from tools.load import LoadOptions
from tools.load_process import RunningLoad

REQUIRED = 400_000
GROWTH = 0.01
"""Of the rate: a slope below it is noise of the sampling, not growth."""
SAMPLE_S = 0.05
SETTLE_S = 300.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options for the rate and the duration."""
    parser.add_argument("--rate", type=int, default=405_000, help="messages a second; 0: as fast as it goes")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--size", type=int, default=150)
    parser.add_argument("--keyed", type=float, default=0.0)
    parser.add_argument("--partitions", type=int, default=12)


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Repeat, and give the medians."""
    rows = [once(bench, options) for _ in range(bench.repeat)]
    accepted, delivered, growth, backlog = (list(column) for column in zip(*rows, strict=True))
    yield Figure("delivered, second half", delivered, "msg/s", at_least=REQUIRED)
    yield Figure("accepted, second half", accepted, "msg/s")
    yield Figure("growth of the backlog", growth, "msg/s", at_most=GROWTH * REQUIRED)
    yield Figure("mean backlog, second half", backlog, "messages")


def once(bench: Bench, options: argparse.Namespace) -> tuple[float, float, float, float]:
    """(accepted, delivered, growth a second, mean backlog) of the second half."""
    with (
        bench.kafka("embedded", brokers=3, partitions=options.partitions) as kafka,
        bench.bruce(kafka.bootstrap) as bruce,
    ):
        bruce.start()
        warm_up(bruce)
        await_delivered(bruce, SETTLE_S)
        load = LoadOptions(
            bruce.socket,
            rate=options.rate,
            seconds=max(1.0, options.seconds * bench.scale),
            sizes=(options.size, options.size),
            keyed=options.keyed,
        )
        with RunningLoad(load) as running:
            samples = sample(bruce, running)
            running.wait(SETTLE_S)
        await_delivered(bruce, SETTLE_S)
        bruce.stop()
    return judge(samples)


def sample(bruce: Bruce, load: RunningLoad) -> npt.NDArray[np.float64]:
    """(seconds, written, floor) while the load runs and sends."""
    rows, first = [], bruce.word(Field.WRITTEN_SEQUENCE)
    while load.running:
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
    seconds, written, floor = samples[last // 2 : last + 1].T
    backlog = written - floor
    span = seconds[-1] - seconds[0]
    growth = float(np.polyfit(seconds, backlog, 1)[0])
    return (written[-1] - written[0]) / span, (floor[-1] - floor[0]) / span, growth, float(backlog.mean())
