"""`brucectl` on a spool: how fast it reads, how soon it answers, and how much it slows the intake.

`verify` and `find` are compared with `xxhsum -H3` of the same files: XXH3 is the fastest of its hashes, and
the time of its default hash is shown, too. Without the program, the same in Python, in blocks of 64 KiB, one
file after the other. Files are dropped from the page cache before each. An operator also waits for the start
of Python, so it counts. The gain from further processors is measured without waits for the disk: with the
files in the page cache, on one processor and on all.

Then senders send as fast as they can, in ten lives of a daemon. Each has four turns: alone, beside company
twice, alone again; so a trend within a life, such as the size of its spool, affects both alike. The result is
the median of the lives' ratios. The bench also shows their spread, the ratio over all messages, and the CPU
time of the company. A turn beside company ends when its last command has.

By default the company runs every ten seconds one `inspect`, of each kind in turn, and one `status`, like a
monitor. With `--company never-stopping` the next `inspect` begins when one has ended. With `computing` a
shell only computes, and reads nothing: its cost is not due to bruce; the bench also measures how much less a
processor gets done while another is busy. All commands must succeed.

Commands find bruce's modules compiled to bytecode, like those of an installed package.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import xxhash

from cli.start import POLITE
from spool.shared.state import Field
from tools.benches.bench import Bench, accept, warm_up
from tools.benches.machine import cpu_seconds
from tools.benches.report import Figure
from tools.benches.start import FILL_S, drop_cached
from tools.bruce_process import Bruce
from tools.load import LoadOptions
from tools.load_process import RunningLoad
from tools.waiting import wait_until

READ_RATIO, STATUS_S, INTAKE_RATIO = 0.7, 1.0, 0.95
ABSENT = "a text that no message holds"
BLOCK_BYTES = 64 << 10
XXHSUM, FASTEST = shutil.which("xxhsum"), ("-H3",)
TIMEOUT_S = 600.0
STATUS = ("status",)
VERIFY, FIND = ("inspect", "verify"), ("inspect", "find", ABSENT)
ON_ONE = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
EVERY_S, WORK_S = 10.0, 3.0
BEGUN = 100_000
"""Messages after which senders are at full speed."""
COMPUTING = ("nice", "-n", str(POLITE), "sh", "-c", "while :; do :; done")
"""The same priority as `inspect`."""
LOOKS = (
    ("inspect", "segments"),
    ("inspect", "records", "--limit", "1000"),
    ("inspect", "timeline"),
    ("inspect", "verify"),
    ("inspect", "frames", "--limit", "1000"),
    ("inspect", "export", "--limit", "1000"),
    ("inspect", "show", "10000"),
)
"""The commands; on a spool in use each exits with 0. There are seven, and three run in a turn of 30 s: so
none always runs at the same time of a life."""
_GIB = 1 << 30


class Turn(NamedTuple):
    """Senders for a while."""

    messages: int
    seconds: float
    commands: int
    """Commands that ran meanwhile."""
    company_s: float
    """CPU seconds that they took."""
    ingest_s: float
    """CPU seconds of the ingest worker."""

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds


class DaemonRun(NamedTuple):
    """One life of a daemon."""

    alone: Turn
    beside: Turn
    """Two turns of each, taken together."""

    @property
    def ratio(self) -> float:
        """The share of the intake that is left."""
        return self.beside.rate / self.alone.rate


Company = Callable[[Bruce, threading.Event], int]
"""The company, until the event is set: returns how many commands it ran."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much, and how long."""
    parser.add_argument(
        "--spool-gib", type=float, default=10.0, help="to read; 0: measure only what the intake notices"
    )
    parser.add_argument("--size", type=int, default=1000, help="bytes of a datagram; default 1000")
    parser.add_argument("--company", choices=sorted(COMPANY), default="looking", help="default: looking")
    parser.add_argument(
        "--lives", type=int, default=10, help="of a daemon; 0: measure only reading; default 10"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of a turn, of which a life has four")


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Read, then disturb."""
    if options.spool_gib:
        yield from measure_reading(bench, options)
    if options.lives:
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
        hashing, default, verifying, finding, asking, first = [], [], [], [], [], []
        cached: dict[str, tuple[list[float], list[float]]] = {"verify": ([], []), "find": ([], [])}
        for _ in range(bench.repeat):
            drop_cached(segments)
            hashing.append(size / hash_files(segments, *FASTEST))
            if XXHSUM:
                drop_cached(segments)
                default.append(size / hash_files(segments))
            verifying.append(size / cold(bruce, VERIFY))
            finding.append(size / cold(bruce, FIND, 1))
            hash_files(segments, *FASTEST)  # now they are in the page cache
            for (one, every), command, code in zip(cached.values(), (VERIFY, FIND), (0, 1), strict=True):
                one.append(size / timed(bruce, command, code, prefix=ON_ONE))
                every.append(size / timed(bruce, command, code))
            asking.append(cold(bruce, STATUS, 0, 1))
            first.append(cold(bruce, ("inspect", "records", "--limit", "10")))
    remark = f"{size / 1e3:.1f} GB of segments, not in the page cache"
    yield Figure("inspect verify", verifying, "MB/s", at_least=READ_RATIO, baseline=hashing, remark=remark)
    yield Figure("inspect find, plain bytes", finding, "MB/s", at_least=READ_RATIO, baseline=hashing)
    if default:
        yield Figure("xxhsum's XXH3", hashing, "MB/s", baseline=default, remark="beside its default, XXH64")
    for name, (one, every) in cached.items():
        remark = "beside the same on one processor" if name == "verify" else ""
        yield Figure(f"inspect {name}, in the page cache", every, "MB/s", baseline=one, remark=remark)
    yield Figure("status", asking, "s", at_most=STATUS_S)
    yield Figure("inspect records, the first ten", first, "s")


def measure_processors(bench: Bench) -> Figure:
    """The work that a processor does while the other is busy: two that share a core or its caches do less."""
    seconds = max(0.1, WORK_S * bench.scale)
    alone, beside = [], []
    for _ in range(bench.repeat):
        alone.append(work(seconds))
        with subprocess.Popen(COMPUTING) as computing:
            beside.append(work(seconds))
            computing.kill()
    return Figure("work in a second of CPU, beside somebody computing", beside, "pieces", baseline=alone)


def work(seconds: float) -> float:
    """Pieces of the same work done in a second of CPU."""
    begun, pieces = time.thread_time(), 0
    while (used := time.thread_time() - begun) < seconds:
        sum(range(10_000))
        pieces += 1
    return pieces / used


def measure_intake(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """The share of the intake that is left beside company, and its speed with it and without."""
    seconds = max(1.0, options.seconds * bench.scale)
    # Over all lives: a turn has only some of them.
    company = COMPANY[options.company](itertools.cycle(LOOKS))
    lives = []
    for number in range(options.lives):
        lives.append(live(bench, seconds, company))
        print(f"  life {number + 1}: {lives[-1].ratio:.3f}", file=sys.stderr, flush=True)
    yield from judge(lives, options.company)


def judge(lives: Sequence[DaemonRun], kind: str) -> Iterator[Figure]:
    """The figures of all lives: the median of their ratios, and their sum."""
    alone, beside = (together(turns) for turns in zip(*lives, strict=True))
    ratios = sorted(life.ratio for life in lives)
    yield Figure(
        f"intake that is left, somebody {kind}",
        ratios,
        "of 1",
        at_least=INTAKE_RATIO if kind == "looking" else None,
        remark=f"lives had {', '.join(f'{ratio:.3f}' for ratio in ratios)}; all together "
        f"{beside.rate / alone.rate:.3f}, in {beside.seconds:.0f} s beside company and {alone.seconds:.0f} s "
        f"alone; {beside.commands} commands took {beside.company_s / beside.seconds:.3f} CPU s a second, "
        f"{beside.company_s / max(1, beside.commands):.2f} each",
    )
    yield Figure(
        f"intake, somebody {kind}",
        [life.beside.rate for life in lives],
        "msg/s",
        baseline=[life.alone.rate for life in lives],
        remark=f"the ingest worker takes {1e6 * beside.ingest_s / beside.messages:.2f} µs a message, "
        f"alone {1e6 * alone.ingest_s / alone.messages:.2f}",
    )


def together(turns: Sequence[Turn]) -> Turn:
    """Their sums."""
    return Turn(*map(sum, zip(*turns, strict=True)))


def live(bench: Bench, seconds: float, company: Sequence[Company]) -> DaemonRun:
    """A daemon's life: alone, beside company twice, alone."""
    with bench.bruce() as bruce:
        bruce.start()
        warm_up(bruce)
        with RunningLoad(LoadOptions(bruce.socket)) as load, ThreadPoolExecutor() as threads:
            await_load(bruce)
            turns = [turn(bruce, seconds, one, threads) for one in ((), company, company, ())]
            load.stop()
        bruce.kill_all()
    first, second, third, fourth = turns
    return DaemonRun(together((first, fourth)), together((second, third)))


def await_load(bruce: Bruce) -> None:
    """Wait until senders send."""
    before = bruce.word(Field.WRITTEN_SEQUENCE)
    wait_until(lambda: bruce.word(Field.WRITTEN_SEQUENCE) > before + BEGUN, 60, "senders to send")


def turn(bruce: Bruce, seconds: float, company: Sequence[Company], threads: ThreadPoolExecutor) -> Turn:
    """One turn: at least this long, until the company has ended."""
    pid, done = bruce.workers()["ingest"], threading.Event()
    ingest, before = cpu_seconds(pid), bruce.word(Field.WRITTEN_SEQUENCE)
    used, begun = children_seconds(), time.monotonic()
    others = [threads.submit(one, bruce, done) for one in company]
    done.wait(seconds)
    done.set()
    commands = sum(other.result() for other in others)
    took, messages = time.monotonic() - begun, bruce.word(Field.WRITTEN_SEQUENCE) - before
    return Turn(messages, took, commands, children_seconds() - used, cpu_seconds(pid) - ingest)


def children_seconds() -> float:
    """CPU seconds of the commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def look_on(bruce: Bruce, done: threading.Event, looks: Iterator[Sequence[str]], every_s: float) -> int:
    """Run commands until the event is set: how many ran."""
    number = 0
    while not done.is_set():
        begun = time.monotonic()
        ask(bruce, next(looks))
        number += 1
        done.wait(max(0.0, every_s - (time.monotonic() - begun)))
    return number


def check(bruce: Bruce, done: threading.Event) -> int:
    """Ask for the status repeatedly, like a monitor: how often. It exits with 1, since Kafka is away."""
    for number in itertools.count(1):
        ask(bruce, STATUS, 0, 1)
        if done.wait(EVERY_S):
            return number
    raise AssertionError


def compute(_: Bruce, done: threading.Event) -> int:
    """Keep a processor busy, and nothing else."""
    with subprocess.Popen(COMPUTING) as computing:
        done.wait()
        computing.kill()
    return 0


COMPANY: dict[str, Callable[[Iterator[Sequence[str]]], tuple[Company, ...]]] = {
    "looking": lambda looks: (lambda bruce, done: look_on(bruce, done, looks, EVERY_S), check),
    "never-stopping": lambda looks: (lambda bruce, done: look_on(bruce, done, looks, 0.0), check),
    "computing": lambda _: (compute,),
}
"""By name; each gets the commands to run."""


def cold(bruce: Bruce, arguments: Sequence[str], *codes: int) -> float:
    """Seconds that a command takes when the segments are not in the page cache."""
    drop_cached(bruce.spool / "segments")
    return timed(bruce, arguments, *codes)


def timed(bruce: Bruce, arguments: Sequence[str], *codes: int, prefix: Sequence[str] = ()) -> float:
    """Seconds that a command takes."""
    begun = time.monotonic()
    ask(bruce, arguments, *codes, prefix=prefix)
    return time.monotonic() - begun


def ask(bruce: Bruce, arguments: Sequence[str], *codes: int, prefix: Sequence[str] = ()) -> None:
    """Run brucectl behind `prefix`; it must exit with one of `codes` (0 by default)."""
    program = Path(sys.executable).with_name("brucectl")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [*prefix, program, *arguments, "--spool", bruce.spool],
        env=environ | {"PYTHONPYCACHEPREFIX": str(bruce.directory.parent / "bytecode")},
        capture_output=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode in (codes or (0,)), (arguments, done)


def hash_files(directory: Path, *options: str) -> float:
    """Seconds that it takes to read and hash the files of a directory."""
    begun, paths = time.monotonic(), sorted(directory.iterdir())
    if XXHSUM:
        subprocess.run([XXHSUM, *options, *paths], stdout=subprocess.DEVNULL, check=True)
        return time.monotonic() - begun
    block = memoryview(bytearray(BLOCK_BYTES))
    for path in paths:
        digest = xxhash.xxh3_64()
        with path.open("rb", buffering=0) as file:
            while got := file.readinto(block):
                digest.update(block[:got])
    return time.monotonic() - begun
