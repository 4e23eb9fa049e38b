"""A backlog larger than memory: bruce takes it in while Kafka is away, and Kafka comes back.

The daemon lives in a control group with little memory (`--memory-mib`), where its pages of segments count,
too, and by turns in one without a limit, for which the page cache can hold the backlog. Senders and the real
broker are outside. The rate counts from a tenth of the messages to the last, the time from Kafka's return.
Memory is what the kernel cannot drop: anonymous pages and those on tmpfs. Then all that Kafka has of the
limited turn is read (`tools/verify`): nothing is lost, and equal keys are in order. The disk needs room for
the backlog twice. The embedded Kafka keeps none of it, and is faster: then nothing but bruce sets the rate.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spool.shared.state import Field
from tools.benches.bench import TOPIC, Bench, accept
from tools.benches.machine import Skipped
from tools.benches.report import Figure
from tools.bruce_process import Bruce
from tools.load import LoadOptions
from tools.verify import counts_of, verify
from tools.verify_judge import Findings
from tools.waiting import TookTooLong, wait_until

LEAST_RATIO = 0.8
TIMEOUT_S = 3600.0
LOOK_S = 0.1
ROOM = 2.3
"""Free disk, as a multiple of the backlog."""
_CONTROL_GROUPS = Path("/sys/fs/cgroup")


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much backlog, and how little memory."""
    parser.add_argument("--gigabytes", type=float, default=20.0, help="of backlog; default 20")
    parser.add_argument("--memory-mib", type=int, default=512, help="of the control group; default 512")
    parser.add_argument("--size", type=int, default=1000, help="bytes of a datagram; default 1000")
    parser.add_argument("--kafka", choices=("embedded", "real"), default="real")
    parser.add_argument("--partitions", type=int, default=12)


class Group:
    """A control group of processes, of version 1 or 2, whose memory is counted."""

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes`: 0 for no limit. Raises Skipped where we can make none."""
        old = _CONTROL_GROUPS / "memory"
        self._old = old.is_dir()
        self.place = (old if self._old else _CONTROL_GROUPS) / f"bruce-bench-{os.getpid()}"
        try:
            self.place.mkdir()
            if limit_bytes:
                name = "memory.limit_in_bytes" if self._old else "memory.max"
                (self.place / name).write_text(str(limit_bytes))
                if not self._old:
                    (self.place / "memory.swap.max").write_text("0")
        except OSError as error:
            self.close()
            raise Skipped(f"no control group with a limit of memory can be made: {error}") from None

    def add(self, pid: int) -> None:
        """Put a process into it, with all that it will start."""
        (self.place / "cgroup.procs").write_text(str(pid))

    def held_bytes(self) -> int:
        """Memory of its processes that the kernel cannot drop."""
        found = dict(line.split() for line in (self.place / "memory.stat").read_text().splitlines())
        names = ("total_rss", "total_shmem") if self._old else ("anon", "shmem")
        return sum(int(found[name]) for name in names)

    def killed(self) -> int:
        """How many of its processes the kernel has killed for want of memory."""
        name = "memory.oom_control" if self._old else "memory.events"
        lines = (self.place / name).read_text().splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])

    def close(self) -> None:
        """Remove it; its processes have ended."""
        if self.place.is_dir():
            wait_until(self._removed, 30, "the control group to be empty")

    def _removed(self) -> bool:
        try:
            self.place.rmdir()
        except OSError:
            return False
        return True


@contextmanager
def group(limit_bytes: int) -> Iterator[Group]:
    """One that is gone afterwards. Raises Skipped."""
    made = Group(limit_bytes)
    try:
        yield made
    finally:
        made.close()


@dataclass(frozen=True, slots=True)
class Turn:
    """One backlog, taken in and delivered."""

    intake: float
    rate: float
    """Messages a second."""
    seconds: float
    """From Kafka's return to the last message."""
    held_mb: float
    killed: int
    """Processes that the kernel killed, and workers that are not those of the start."""
    findings: Findings | None = None


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """With the limit and without, by turns. Raises Skipped, KafkaMissing."""
    backlog = options.gigabytes * 1e9 * bench.scale
    if (free := shutil.disk_usage(bench.directory).free) < ROOM * backlog:
        raise Skipped(f"{ROOM * backlog / 1e9:.0f} GB of free disk are wanted, {free / 1e9:.0f} GB are there")
    limited, others = [], []
    for _ in range(bench.repeat):
        limited.append(once(bench, options, options.memory_mib << 20))
        others.append(once(bench, options, 0))
    where = f"{options.memory_mib} MiB"
    yield Figure(
        f"delivered, {where}", [t.rate for t in limited], "msg/s", at_least=LEAST_RATIO,
        baseline=[t.rate for t in others],
    )  # fmt: skip
    shown = (
        ("taken in", "msg/s", [t.intake for t in limited], [t.intake for t in others]),
        ("delivered after Kafka's return", "s", [t.seconds for t in limited], [t.seconds for t in others]),
        ("memory held", "MB", [t.held_mb for t in limited], [t.held_mb for t in others]),
    )
    for name, unit, values, baseline in shown:
        yield Figure(f"{name}, {where}", values, unit, baseline=baseline)
    yield Figure("processes killed", [sum(turn.killed for turn in limited)], "", at_most=0)
    findings = [turn.findings for turn in limited if turn.findings]
    if not findings:
        return
    for name in ("missing", "out_of_order", "duplicates"):
        total = sum(getattr(found, name) for found in findings)
        limit = None if name == "duplicates" else 0
        yield Figure(name.replace("_", " "), [total], "messages", at_most=limit)


def once(bench: Bench, options: argparse.Namespace, limit_bytes: int) -> Turn:
    """One turn; what Kafka has is read if there is a limit."""
    count = bench.scaled(options.gigabytes * 1e9 / options.size)
    with (
        bench.kafka(options.kafka, brokers=1, partitions=options.partitions) as kafka,
        group(limit_bytes) as memory,
        bench.bruce(kafka.bootstrap) as bruce,
    ):
        kafka.stop_all()
        bruce.start(wait=False)
        memory.add(bruce.pid)
        bruce.await_workers()
        workers = bruce.workers()
        load = LoadOptions(bruce.socket, count=count, sizes=(options.size, options.size), keyed=0.5)
        report = accept(bruce, load, TIMEOUT_S)
        kafka.start_all()
        seconds, rate, held = follow(bruce, memory, count)
        killed = memory.killed() + len(set(workers.items()) - set(bruce.workers().items()))
        bruce.stop()
        # The embedded Kafka has forgotten most of it.
        read = limit_bytes and options.kafka == "real"
        findings = verify(kafka.bootstrap, [TOPIC], counts_of(report)) if read else None
    return Turn(count / report["seconds"], rate, seconds, held / 1e6, killed, findings)


def follow(bruce: Bruce, memory: Group, count: int) -> tuple[float, float, int]:
    """(seconds, messages a second, most memory held) until all are delivered. Raises TookTooLong."""
    began, most = time.monotonic(), memory.held_bytes()
    tenth: tuple[float, int] | None = None
    while (now := time.monotonic()) < began + TIMEOUT_S:
        low_watermark = bruce.word(Field.LOW_WATERMARK)
        most = max(most, memory.held_bytes())
        if low_watermark >= count:
            # Too few to look twice: all of them since Kafka's return.
            at, done = tenth or (began, 0)
            return now - began, (count - done) / (now - at), most
        if tenth is None and low_watermark >= count // 10:
            tenth = now, low_watermark
        time.sleep(LOOK_S)
    raise TookTooLong(f"{count} messages were not delivered within {TIMEOUT_S:.0f} s")
