"""A load on bruce's datagram socket: several senders, each a process on sendmmsg.

    python -m tools.load --socket /run/bruce/bruce.sock --count 1000000
    python -m tools.load --socket S --seconds 20 --rate 10000        an open schedule, with latencies
    python -m tools.load --socket S --seconds 60 --keyed 0.5 --sizes 80:4000 --topics a b c

It counts every successful send, and nothing else: the daemon's `received` must come to this count. While the
daemon is away, senders reconnect. Latency is measured from the time at which a message was due, so that a
sender that is held up is late with all messages that were due meanwhile. Prints one JSON document:

    {"senders": [{"sender", "sent", "reconnects"}], "sent", "seconds", "first_ns", "last_ns",
     "latency_ms": {"p50", "p99", "p99.9", "max"}}      times by CLOCK_MONOTONIC; latencies with a rate only

SIGTERM ends it early, with the same report. Exits 1 when a sender failed.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tools import load_kernel as hot
from tools.load_sender import Mix, become_sender, compile_loop, run_sender
from tools.payload import KEY_BYTES

PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The messages to send, and their rate."""

    socket: Path
    count: int = 0
    """Messages of all senders together; 0 is no limit."""
    seconds: float = 0.0
    """How long; 0 is no limit."""
    senders: int = 2
    topics: Sequence[str] = ("load",)
    sizes: tuple[int, int] = (150, 150)
    keyed: float = 0.0
    keys: int = 64
    """Partition keys in use, around 0; of each sender and topic the same."""
    key_bytes: int = KEY_BYTES
    rate: int = 0
    """Messages a second of all senders together, on an open schedule; 0 is as fast as it goes."""
    lump_ms: int = 0
    """With a rate: the interval at which all due messages are sent at once."""
    burst: int = 128
    """Most messages of one sendmmsg."""
    large: int = 0
    """Bytes of every burst-th message; 0: none is larger than the others."""
    batches: Sequence[int] = (1,)
    """Messages of each datagram, of the senders by turns; 1: they are not in batches."""
    headers: float = 0.0
    """The share of messages with two headers."""
    placed: float = 0.0
    """The share of messages that name their partition."""
    partitions: int = 1
    """Those that they name are below it."""
    tombstones: float = 0.0
    """The share of messages with a null value."""
    first_sender: int = 0
    uid: int = 0
    """The user that the senders run as; 0: the user that runs the load."""
    seed: int = 1

    def mix(self, sender: int) -> Mix:
        """The messages of one sender."""
        return Mix(
            self.topics,
            self.sizes,
            self.keyed,
            self.key_bytes,
            slots=self.burst,
            seed=self.seed + sender,
            large=self.large,
            batch=self.batch(sender),
            headers=self.headers,
            placed=self.placed,
            tombstones=self.tombstones,
        )

    def batch(self, sender: int) -> int:
        """Messages of each datagram of one sender."""
        return self.batches[sender % len(self.batches)]


class Load:
    """The senders of one run: forked, counted, ended."""

    def __init__(self, options: LoadOptions) -> None:
        self.options = options
        words = options.senders * (hot.JOB_FIELDS + hot.BUCKETS) + 8
        # Shared, so that a sender's count is known however it ended.
        memory = np.frombuffer(mmap.mmap(-1, 8 * words), np.int64)
        self._stop = memory[:8]
        rows = memory[8:].reshape(options.senders, hot.JOB_FIELDS + hot.BUCKETS)
        self._jobs, self._histograms = rows[:, : hot.JOB_FIELDS], rows[:, hot.JOB_FIELDS :]
        self._pids: list[int] = []
        self.failed = 0

    def start(self) -> None:
        """Fork the senders."""
        compile_loop()
        options, start = self.options, time.monotonic_ns() + 50_000_000
        share = -(-options.count // options.senders) if options.count else hot.NEVER
        for sender, job in enumerate(self._jobs):
            job[hot.SENDER] = options.first_sender + sender
            job[hot.KEYS] = options.keys
            job[hot.BATCH], job[hot.PARTITIONS] = options.batch(sender), options.partitions
            wanted = min(share, options.count - sender * share) if options.count else share
            job[hot.COUNT] = -(-wanted // job[hot.BATCH]) * job[hot.BATCH]
            job[hot.END] = start + int(options.seconds * hot.SECOND_NS) if options.seconds else hot.NEVER
            job[hot.RATE] = options.rate // options.senders
            job[hot.LUMP] = options.lump_ms * 1_000_000
            job[hot.START] = start
            self._pids.append(self._fork(sender))

    def _fork(self, sender: int) -> int:
        parent = os.getpid()
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            become_sender(parent, self.options.uid)
            arguments = (self.options.socket, self.options.mix(sender))
            run_sender(*arguments, self._jobs[sender], self._histograms[sender], self._stop)
            code = 0
        except (OSError, ValueError) as error:
            print(f"tools/load: sender {sender}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)

    def stop(self) -> None:
        """Ask the senders to end; they do within SEND_TIMEOUT_S."""
        self._stop[0] = 1

    def wait(self) -> None:
        """Return when every sender has ended."""
        for pid in self._pids:
            self.failed += os.waitpid(pid, 0)[1] != 0
        self._pids.clear()

    def report(self) -> dict[str, Any]:
        """The counts, and the latencies."""
        jobs = self._jobs
        started = jobs[jobs[:, hot.FIRST] > 0, hot.FIRST]
        seconds = int(jobs[:, hot.LAST].max() - started.min()) / hot.SECOND_NS if len(started) else 0.0
        columns = {"sender": hot.SENDER, "sent": hot.SENT, "reconnects": hot.RECONNECTS}
        report: dict[str, Any] = {
            "senders": [{name: int(job[at]) for name, at in columns.items()} for job in jobs],
            "sent": int(jobs[:, hot.SENT].sum()),
            "seconds": seconds,
            "first_ns": int(started.min()) if len(started) else 0,
            "last_ns": int(jobs[:, hot.LAST].max()),
        }
        if self.options.rate:
            worst = int(jobs[:, hot.WORST].max()) / 1e6
            report["latency_ms"] = percentiles(self._histograms.sum(axis=0), worst)
        return report


def percentiles(histogram: npt.NDArray[np.int64], worst_ms: float) -> dict[str, float]:
    """Latencies in ms, each rounded up to the end of its bucket."""
    total = int(histogram.sum())
    passed = np.cumsum(histogram)
    found = {}
    for name, share in PERCENTILES.items():
        at = int(np.searchsorted(passed, share * total)) if total else 0
        found[name] = round(min(worst_ms, bucket_end(at) / 1000), 3)
    return {**found, "max": round(worst_ms, 3)}


def bucket_end(index: int) -> int:
    """The first microsecond after a bucket (load_kernel.bucket)."""
    power = max(0, index // 32 - 1)
    return (index - 32 * power + 1) << power


def parse_sizes(text: str) -> tuple[int, int]:
    """150, or 80:4000."""
    least, _, most = text.partition(":")
    return int(least), int(most or least)


def parse_options(arguments: Sequence[str] | None = None) -> LoadOptions:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--sizes", type=parse_sizes, metavar="BYTES[:BYTES]", default=(150, 150))
    parser.add_argument("--topics", nargs="+", default=["load"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1], metavar="N")
    for option in fields(LoadOptions):
        if isinstance(option.default, int | float):
            name = "--" + option.name.replace("_", "-")
            parser.add_argument(name, type=type(option.default), default=option.default)
    return LoadOptions(**vars(parser.parse_args(arguments)))


def main() -> int:
    """Run the load of the command line."""
    load = Load(parse_options())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: load.stop())
    load.start()
    load.wait()
    print(json.dumps(load.report()), flush=True)
    return 1 if load.failed else 0


if __name__ == "__main__":
    sys.exit(main())
