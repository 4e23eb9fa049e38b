"""`brucectl` on a spool: how fast it reads, how soon it answers, and what the intake notices of it.

`verify` and `find` are held against hashing the same files with XXH3, as `xxhsum` does: in blocks of 64 KiB,
one after the other. Files are dropped from the page cache before each. The start of Python is part of what
an operator waits for, so it counts.

Then senders send as fast as they are let, in rounds, by turns with and without somebody who looks into the
spool all the time: every kind of `inspect`, one command after the other, and `status` every ten seconds, as a
check does. All must succeed.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from tools.benches.bench import Bench, accept, warm_up
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
STATUS_EVERY_S = 10.0
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


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much, and how long."""
    parser.add_argument("--spool-gib", type=float, default=10.0)
    parser.add_argument("--size", type=int, default=1000, help="bytes of a datagram; default 1000")
    parser.add_argument("--rounds", type=int, default=5, help="with somebody looking, and as many without")
    parser.add_argument("--seconds", type=float, default=20.0, help="of one round; default 20")


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Read, then disturb."""
    yield from measure_reading(bench, options)
    yield measure_intake(bench, options)


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


def measure_intake(bench: Bench, options: argparse.Namespace) -> Figure:
    """Messages a second that senders get rid of, by turns with and without somebody looking."""
    seconds = max(1.0, options.seconds * bench.scale)
    alone, watched, looks = [], [], 0
    for _ in range(options.rounds):
        alone.append(intake(bench, seconds, watch=False)[0])
        rate, looked = intake(bench, seconds, watch=True)
        watched.append(rate)
        looks += looked
    remark = f"{looks} commands in {options.rounds} rounds of {seconds:g} s"
    return Figure(
        "intake with somebody looking", watched, "msg/s", at_least=INTAKE_RATIO, baseline=alone, remark=remark
    )


def intake(bench: Bench, seconds: float, *, watch: bool) -> tuple[float, int]:
    """(messages a second, commands that were run meanwhile)."""
    with bench.bruce() as bruce, ThreadPoolExecutor() as watchers:
        bruce.start()
        warm_up(bruce)
        done = threading.Event()
        looks = [watchers.submit(look, bruce, done) for look in (look_on, check)] if watch else []
        try:
            report = run_load(LoadOptions(bruce.socket, seconds=seconds), TIMEOUT_S)
        finally:
            done.set()
        commands = sum(look.result() for look in looks)
        bruce.kill_all()
    return report["sent"] / report["seconds"], commands


def look_on(bruce: Bruce, done: threading.Event) -> int:
    """Look until told that it is enough: how many commands were run."""
    for number, arguments in enumerate(itertools.cycle(LOOKS)):
        if done.is_set():
            return number
        ask(bruce, arguments)
    raise AssertionError


def check(bruce: Bruce, done: threading.Event) -> int:
    """Ask for the status again and again, as a check does: how often. It exits with 1: Kafka is away."""
    for number in itertools.count(1):
        ask(bruce, STATUS, 0, 1)
        if done.wait(STATUS_EVERY_S):
            return number
    raise AssertionError


def cold(bruce: Bruce, arguments: Sequence[str], *codes: int) -> float:
    """Seconds that a command takes when the segments are not in the page cache."""
    drop_cached(bruce.spool / "segments")
    begun = time.monotonic()
    ask(bruce, arguments, *codes)
    return time.monotonic() - begun


def ask(bruce: Bruce, arguments: Sequence[str], *codes: int) -> None:
    """Run brucectl; it must exit with one of `codes` (0 by default)."""
    program = Path(sys.executable).with_name("brucectl")
    done = subprocess.run(
        [program, *arguments, "--spool", bruce.spool], capture_output=True, check=False, timeout=TIMEOUT_S
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
