"""The ordinary day: the costs of a host that sends few messages, and how late they come to a consumer.

For each rate each program has its turn: bruce with its defaults, rsyslog and syslog-ng (`peers`) where they
are installed, and a C program that does recvmmsg and produceva, and nothing else. All get the same values
from a sender that sends them one by one, evenly, and hand them to the same topic on three real brokers.

    CPU         of a core, all threads of all processes
    wake-ups    voluntary context switches of all threads
    PSS         memory; a page that several processes map is divided among them. Private: not shared
    p50 ...     from the time at which a message was due to its arrival at a consumer

Sender, consumer and brokers are not counted, but share the processors. Each program has delivered 2,000
messages before it is measured. Programs that this machine does not have are named.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field

from confluent_kafka import Consumer, TopicPartition

from tools.benches.bench import TOPIC, Bench
from tools.benches.latency import FETCH_WAIT_MS, consuming
from tools.benches.machine import Skipped, compile_c, cpu_seconds, family, resident_bytes, wake_ups
from tools.benches.peers import PROGRAMS, Running
from tools.benches.report import Figure
from tools.load import PERCENTILES
from tools.targets import Target
from tools.waiting import wait_until

BROKERS, PARTITIONS = 3, 6
WARM_UP, WARM_RATE = 2_000, 2_000
SKIP_S, SETTLE_S, TIMEOUT_S = 1.0, 3.0, 180.0
BRUCE, NO_PAGE, RSYSLOG = "bruce", "bruce, no page", "rsyslog"
MOST_CPU = {0: 0.3, 1_000: 3.0, 10_000: 8.0}
"""Of a core, in percent, by rate."""
MOST_WAKE_UPS = 10.0
MOST_PSS_MB = {BRUCE: 100.0, NO_PAGE: 75.0}
MOST_MS = {"p50": 10.0, "p99": 40.0}
ORDINARY_RATE = 1_000
"""The rate that has limits for its latency, and may cost no more than with rsyslog."""
BEHIND_MS = 1_000.0
_HEADINGS = ("", "CPU %", "wake-ups/s", "PSS MB", "private MB", *(f"{name} ms" for name in PERCENTILES))


@dataclass(frozen=True, slots=True)
class Use:
    """The costs of a process."""

    cpu: float
    """Percent of a core."""
    wake_ups: float
    """A second."""
    pss: float
    private: float
    """MB."""


@dataclass(frozen=True, slots=True)
class Row:
    """One program at one rate."""

    uses: Mapping[str, Use]
    """By what the process does."""
    latency: Mapping[str, float] = field(default_factory=dict)
    """In ms, of those percentiles for which there were messages enough."""
    lost: int = 0
    """Messages that did not arrive."""

    @property
    def all(self) -> Use:
        """All processes together."""
        return Use(*map(sum, zip(*map(astuple, self.uses.values()), strict=True)))


def add_options(parser: argparse.ArgumentParser) -> None:
    """How fast, for how long, and which programs."""
    parser.add_argument("--rates", type=int, nargs="+", default=[0, 10, 100, 1_000, 10_000])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each turn; default 20")
    parser.add_argument(
        "--only", nargs="+", choices=tuple(PROGRAMS), default=list(PROGRAMS), metavar="PROGRAM",
        help=", ".join(PROGRAMS),
    )  # fmt: skip


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Print each rate when it is done; then the goals. Raises Skipped, KafkaMissing."""
    seconds = max(2.0, options.seconds * bench.scale)
    found: dict[tuple[int, str], list[Row]] = {}
    missing: set[str] = set()
    with bench.kafka("real", brokers=BROKERS, partitions=PARTITIONS) as kafka:
        # The first start of a checkout compiles, in processes that are larger for it.
        with PROGRAMS[NO_PAGE](bench, kafka.bootstrap) as program:
            warm_up(bench, kafka, program)
        for rate in options.rates:
            for _, name in itertools.product(range(bench.repeat), options.only):
                # Without its page bruce differs in memory alone.
                if name in missing or (name == NO_PAGE and rate):
                    continue
                try:
                    row = once(bench, kafka, name, rate, seconds)
                except Skipped as reason:
                    missing.add(name)
                    print(f"{name}: missing: {reason}", flush=True)
                else:
                    found.setdefault((rate, name), []).append(row)
            show_rate(rate, {name: rows for (of, name), rows in found.items() if of == rate})
    yield from goals(found)


def once(bench: Bench, kafka: Target, name: str, rate: int, seconds: float) -> Row:
    """One turn of a program. Raises Skipped when it is not installed."""
    with PROGRAMS[name](bench, kafka.bootstrap) as program:
        warm_up(bench, kafka, program)
        time.sleep(SETTLE_S)
        if not rate:
            return Row(observe(program, seconds))
        count = int(rate * (SKIP_S + seconds))
        with (
            consuming(kafka.bootstrap, count, SKIP_S, FETCH_WAIT_MS["real"], "pace") as consumer,
            pacing(bench, program, rate, count) as sender,
        ):
            time.sleep(SKIP_S)
            uses = observe(program, seconds)
            sender.wait(TIMEOUT_S)
            report = consumer(TIMEOUT_S)
        latency = {p: report[p] for p, share in PERCENTILES.items() if count * (1 - share) >= 1}
        return Row(uses, latency, max(0, count - report["messages"]))


def warm_up(bench: Bench, kafka: Target, program: Running) -> None:
    """Let it deliver some messages."""
    before = stored(kafka)
    with pacing(bench, program, WARM_RATE, WARM_UP) as sender:
        sender.wait(TIMEOUT_S)
    wait_until(
        lambda: stored(kafka) >= before + WARM_UP, TIMEOUT_S, "the first messages in Kafka", pause_s=0.1
    )


def stored(kafka: Target) -> int:
    """Messages in the topic."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "day"})
    try:
        ends = [
            consumer.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=30)
            for number in range(PARTITIONS)
        ]
    finally:
        consumer.close()
    return sum(high for _low, high in ends)


@contextmanager
def pacing(bench: Bench, program: Running, rate: int, count: int) -> Iterator[subprocess.Popen[bytes]]:
    """A sender that sends `count` datagrams, one by one."""
    template = bench.directory / "datagram"
    template.write_bytes(program.datagram)
    offsets = (program.stamp_at, program.timestamp_at)
    command = [compile_c("pace", bench.programs), program.socket, template, *offsets, rate, count]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL) as sender:
        try:
            yield sender
        finally:
            sender.kill()


def observe(program: Running, seconds: float) -> dict[str, Use]:
    """The costs of each process of the program, from now on; memory at the end. By role, or by pid."""
    before, began = spent(family(program.pid)), time.monotonic()
    time.sleep(seconds)
    after, took = spent(family(program.pid)), time.monotonic() - began
    roles, uses = program.roles(), {}
    for pid, (cpu, switches) in after.items():
        # A process that was started meanwhile has used all of it meanwhile.
        cpu_before, threads = before.get(pid, (0.0, {}))
        waits = sum(count - threads.get(thread, 0) for thread, count in switches.items())
        pss, private = resident_bytes(pid)
        rate = (100 * (cpu - cpu_before) / took, waits / took)
        uses[roles.get(pid, f"process {pid}")] = Use(*rate, pss / 1e6, private / 1e6)
    return uses


def spent(pids: Iterable[int]) -> dict[int, tuple[float, dict[int, int]]]:
    """(CPU seconds, wake-ups by thread) of each process that lives."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            found[pid] = cpu_seconds(pid), wake_ups(pid)
    return found


def median(rows: Sequence[Row]) -> Row:
    """The median of each figure; of the processes of the first turn."""

    def use(role: str) -> Use:
        columns = zip(*(astuple(row.uses[role]) for row in rows if role in row.uses), strict=True)
        return Use(*map(statistics.median, columns))

    latency = {name: statistics.median(row.latency[name] for row in rows) for name in rows[0].latency}
    return Row({role: use(role) for role in rows[0].uses}, latency, sum(row.lost for row in rows))


def show_rate(rate: int, found: Mapping[str, Sequence[Row]]) -> None:
    """Print one table: each program, and its processes where it has several."""
    table: list[tuple[str, ...]] = [(f"{rate:,} messages a second", *_HEADINGS[1:])]
    remarks = []
    for name, rows in found.items():
        row = median(rows)
        late = [f"{row.latency[p]:.1f}" if p in row.latency else "" for p in PERCENTILES]
        table.append((name, *_cells(row.all), *late))
        if len(row.uses) > 1:
            table += [
                (f"  {role}", *_cells(use), *("" for _ in PERCENTILES)) for role, use in row.uses.items()
            ]
        if row.lost:
            remarks.append(f"{name}: {row.lost} messages did NOT ARRIVE")
        if row.latency.get("p50", 0.0) > BEHIND_MS:
            remarks.append(f"{name}: did not keep up; its CPU is not that of this rate")
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    print()
    for first, *rest in table:
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True))]
        print("  " + "  ".join(cells).rstrip())
    for remark in remarks:
        print(f"  {remark}")
    print(end="", flush=True)


def _cells(use: Use) -> tuple[str, ...]:
    return f"{use.cpu:.2f}", f"{use.wake_ups:,.1f}", f"{use.pss:.1f}", f"{use.private:.1f}"


def goals(found: Mapping[tuple[int, str], Sequence[Row]]) -> Iterator[Figure]:
    """The costs of bruce against its goals."""
    for (rate, name), rows in found.items():
        cpu = [row.all.cpu for row in rows]
        if name == BRUCE and rate in MOST_CPU:
            yield Figure(f"{rate:,}/s, CPU", cpu, "%", at_most=MOST_CPU[rate])
        if name == BRUCE and rate == 0:
            yield Figure("0/s, wake-ups", [r.all.wake_ups for r in rows], "/s", at_most=MOST_WAKE_UPS)
        if name == BRUCE and rate == ORDINARY_RATE:
            if theirs := found.get((rate, RSYSLOG)):
                base = [row.all.cpu for row in theirs]
                yield Figure(f"{rate:,}/s, CPU against rsyslog", cpu, "%", at_most=1.0, baseline=base)
            for p, limit in MOST_MS.items():
                yield Figure(f"{rate:,}/s, {p}", [row.latency[p] for row in rows], "ms", at_most=limit)
        if name in MOST_PSS_MB:
            pss = [row.all.pss for row in rows]
            yield Figure(f"{rate:,}/s, PSS, {name}", pss, "MB", at_most=MOST_PSS_MB[name])
