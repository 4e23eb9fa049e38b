"""`brucectl` on a spool: how fast it reads, how soon it answers, and what the intake notices of it.

`verify` and `find` are held against hashing the same files with XXH3, as `xxhsum` does: in blocks of 64 KiB,
one after the other. Files are dropped from the page cache before each. The start of Python is part of what
an operator waits for, so it counts.

Then senders send as fast as they are let, in rounds: alone, and by turns with company that takes their
processors. Somebody looks: every ten seconds one `inspect`, of each kind in turn, and one `status`, as a
check does. Somebody never stops looking: the next `inspect` begins when one has ended. And somebody only
computes, in a shell that reads nothing: what that costs is no matter of bruce; how much less a processor gets
done while another is busy is measured beside it. All commands must succeed.

Commands find bruce's modules compiled to bytecode, as an installed package has them.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import NamedTuple

import xxhash

from cli.start import POLITE
from tools.benches.bench import Bench, accept, warm_up
from tools.benches.machine import cpu_seconds
from tools.benches.report import Figure
from tools.benches.start import FILL_S, drop_cached
from tools.bruce_process import Bruce
from tools.load import LoadOptions
from tools.load_process import run_load

READ_RATIO, STATUS_S, INTAKE_RATIO = 0.7, 1.0, 0.95
ABSENT = "a text that no message holds"
BLOCK_BYTES = 64 << 10
TIMEOUT_S = 600.0
STATUS = ("status",)
EVERY_S, WORK_S = 10.0, 3.0
COMPUTING = ("nice", "-n", str(POLITE), "sh", "-c", "while :; do :; done")
"""As polite as `inspect` is."""
LOOKS = (
    ("inspect", "segments"),
    ("inspect", "records", "--limit", "1000"),
    ("inspect", "timeline"),
    ("inspect", "verify"),
    ("inspect", "frames", "--limit", "1000"),
    ("inspect", "export", "--limit", "1000"),
)
"""What somebody looks at; of a spool in use each exits with 0."""
_GIB = 1 << 30


class Round(NamedTuple):
    """Senders for a while."""

    rate: float
    """Messages a second."""
    commands: int
    """That were run meanwhile."""
    cpu_us: float
    """Of the ingest worker, a message."""


Company = Callable[[Bruce, threading.Event], int]
"""Who is there besides, until told that it is enough: how many commands were run."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much, and how long."""
    parser.add_argument("--spool-gib", type=float, default=10.0)
    parser.add_argument("--size", type=int, default=1000, help="bytes of a datagram; default 1000")
    parser.add_argument(
        "--rounds", type=int, default=5, help="of each kind of company, and as many without any"
    )
    parser.add_argument("--seconds", type=float, default=40.0, help="of one round; default 40")


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Read, then disturb."""
    yield from measure_reading(bench, options)
    yield measure_processors(bench)
    yield from measure_intake(bench, options)


def measure_reading(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Commands on a large spool whose daemon has stopped."""
    count = bench.scaled(options.spool_gib * _GIB / options.size)
    with bench.bruce() as bruce:
        bruce.start()
        accept(bruce, LoadOptions(bruce.socket, count=count, sizes=(options.size, options.size)), FILL_S)
        bruce.stop()
        segments = bruce.spool / "segments"
        size = sum(path.stat().st_size for path in segments.iterdir()) / 1e6
        hashing, verifying, finding, asking, first = [], [], [], [], []
        for _ in range(bench.repeat):
            drop_cached(segments)
            hashing.append(size / hash_files(segments))
            verifying.append(size / cold(bruce, ("inspect", "verify")))
            finding.append(size / cold(bruce, ("inspect", "find", ABSENT), 1))
            asking.append(cold(bruce, STATUS, 0, 1))
            first.append(cold(bruce, ("inspect", "records", "--limit", "10")))
    remark = f"{size / 1e3:.1f} GB of segments, not in the page cache"
    yield Figure("inspect verify", verifying, "MB/s", at_least=READ_RATIO, baseline=hashing, remark=remark)
    yield Figure("inspect find, plain bytes", finding, "MB/s", at_least=READ_RATIO, baseline=hashing)
    yield Figure("status", asking, "s", at_most=STATUS_S)
    yield Figure("inspect records, the first ten", first, "s")


def measure_processors(bench: Bench) -> Figure:
    """What a processor gets done while the other is busy: two that share a core or its caches get less."""
    seconds = max(0.1, WORK_S * bench.scale)
    alone, beside = [], []
    for _ in range(bench.repeat):
        alone.append(work(seconds))
        with subprocess.Popen(COMPUTING) as computing:
            beside.append(work(seconds))
            computing.kill()
    return Figure("work in a second of CPU, beside somebody computing", beside, "pieces", baseline=alone)


def work(seconds: float) -> float:
    """Pieces of the same work that are done in a second of CPU."""
    begun, pieces = time.thread_time(), 0
    while (used := time.thread_time() - begun) < seconds:
        sum(range(10_000))
        pieces += 1
    return pieces / used


def measure_intake(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Messages a second that senders get rid of: alone, and by turns with each kind of company."""
    seconds = max(1.0, options.seconds * bench.scale)
    looks = itertools.cycle(LOOKS)  # over all rounds: each has only some
    kinds: dict[str, tuple[Company, ...]] = {
        "alone": (),
        "looking": (lambda bruce, done: look_on(bruce, done, looks, EVERY_S), check),
        "never stopping": (lambda bruce, done: look_on(bruce, done, itertools.cycle(LOOKS), 0.0), check),
        "computing": (compute,),
    }
    rounds: dict[str, list[Round]] = {kind: [] for kind in kinds}
    for _ in range(options.rounds):
        for kind, company in kinds.items():
            rounds[kind].append(intake(bench, seconds, company))
    alone = rounds.pop("alone")
    for kind, found in rounds.items():
        yield Figure(
            f"intake, somebody {kind}",
            [one.rate for one in found],
            "msg/s",
            at_least=INTAKE_RATIO if kind == "looking" else None,
            baseline=[one.rate for one in alone],
            remark=f"{sum(one.commands for one in found)} commands in {len(found)} rounds of {seconds:g} s; "
            f"the ingest worker takes {median(one.cpu_us for one in found):.2f} µs a message, "
            f"alone {median(one.cpu_us for one in alone):.2f}",
        )


def intake(bench: Bench, seconds: float, company: Sequence[Company]) -> Round:
    """Senders for so long, beside this company."""
    with bench.bruce() as bruce, ThreadPoolExecutor() as threads:
        bruce.start()
        warm_up(bruce)
        pid = bruce.workers()["ingest"]
        before = cpu_seconds(pid)
        done = threading.Event()
        others = [threads.submit(one, bruce, done) for one in company]
        try:
            report = run_load(LoadOptions(bruce.socket, seconds=seconds), TIMEOUT_S)
        finally:
            done.set()
        used = cpu_seconds(pid) - before
        commands = sum(other.result() for other in others)
        bruce.kill_all()
    return Round(report["sent"] / report["seconds"], commands, 1e6 * used / report["sent"])


def look_on(bruce: Bruce, done: threading.Event, looks: Iterator[Sequence[str]], every_s: float) -> int:
    """Look until told that it is enough: how many commands were run."""
    number = 0
    while not done.is_set():
        begun = time.monotonic()
        ask(bruce, next(looks))
        number += 1
        done.wait(max(0.0, every_s - (time.monotonic() - begun)))
    return number


def check(bruce: Bruce, done: threading.Event) -> int:
    """Ask for the status again and again, as a check does: how often. It exits with 1: Kafka is away."""
    for number in itertools.count(1):
        ask(bruce, STATUS, 0, 1)
        if done.wait(EVERY_S):
            return number
    raise AssertionError


def compute(_: Bruce, done: threading.Event) -> int:
    """Take a processor, and nothing else."""
    with subprocess.Popen(COMPUTING) as computing:
        done.wait()
        computing.kill()
    return 0


def cold(bruce: Bruce, arguments: Sequence[str], *codes: int) -> float:
    """Seconds that a command takes when the segments are not in the page cache."""
    drop_cached(bruce.spool / "segments")
    begun = time.monotonic()
    ask(bruce, arguments, *codes)
    return time.monotonic() - begun


def ask(bruce: Bruce, arguments: Sequence[str], *codes: int) -> None:
    """Run brucectl; it must exit with one of `codes` (0 by default)."""
    program = Path(sys.executable).with_name("brucectl")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [program, *arguments, "--spool", bruce.spool],
        env=environ | {"PYTHONPYCACHEPREFIX": str(bruce.directory.parent / "bytecode")},
        capture_output=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode in (codes or (0,)), (arguments, done)


def hash_files(directory: Path) -> float:
    """Seconds that it takes to read and hash the files of a directory."""
    begun, block = time.monotonic(), memoryview(bytearray(BLOCK_BYTES))
    for path in sorted(directory.iterdir()):
        digest = xxhash.xxh3_64()
        with path.open("rb", buffering=0) as file:
            while got := file.readinto(block):
                digest.update(block[:got])
    return time.monotonic() - begun
