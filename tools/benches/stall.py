"""Senders on an open schedule while the disk stalls for five seconds.

Latency counts from the time at which a datagram was due to the return of the call that sent it: the delay of
a program that writes to bruce. The disk is stopped in three ways:

    fdatasync   a library put in front of bruce lets fdatasync, fsync and msync wait
    disk        the spool is on a filesystem in a file, whose own filesystem is frozen: the spool's
                filesystem can be used, and nothing reaches its disk
    filesystem  the spool's own filesystem is frozen, so that the kernel stops every store into a page that
                is not yet dirty: the log stalls, and staging takes the messages

The row "no stall" is the same load with nothing stopped.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from spool.shared.state import Field
from tools.benches.bench import Bench, warm_up
from tools.benches.filesystem import frozen, mounted
from tools.benches.machine import compile_c
from tools.benches.report import Figure
from tools.load import LoadOptions
from tools.load_process import RunningLoad

P999_MS, MAX_MS = 5.0, 100.0
_OUTER_BYTES, _INNER_BYTES = 3 << 30, 2 << 30
SETTINGS = {"spool": {"max_bytes": 1 << 30}}
BEFORE_S, AFTER_S = 5.0, 5.0
TIMEOUT_S = 120.0

Stop = Callable[[], AbstractContextManager[None]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """How fast, for how long, and in which ways."""
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--stall", type=float, default=5.0, help="seconds; default 5")
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=list(WAYS))


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Each way in turn. Raises Skipped."""
    for way in options.ways:
        runs = []
        for _ in range(bench.repeat):
            with WAYS[way](bench) as (place, environ, stop):
                runs.append(once(bench, options, place, environ, stop))
        for name, limit in (("p50", None), ("p99", None), ("p99.9", P999_MS), ("max", MAX_MS)):
            yield Figure(
                f"{way}, {name}",
                [run["latency_ms"][name] for run in runs],
                "ms",
                at_most=limit,
                remark="; ".join(run["remark"] for run in runs) if name == "max" else "",
            )


@contextmanager
def no_stall(bench: Bench) -> Iterator[tuple[Path, dict[str, str], Stop]]:
    """Nothing is stopped."""
    yield bench.directory / "bruce", {}, nullcontext


@contextmanager
def slow_fdatasync(bench: Bench) -> Iterator[tuple[Path, dict[str, str], Stop]]:
    """A library in front of fdatasync."""
    library, flag = compile_c("slow_sync", bench.programs, shared=True), bench.directory / "slow"

    @contextmanager
    def stop() -> Iterator[None]:
        flag.touch()
        try:
            yield
        finally:
            flag.unlink()

    flag.unlink(missing_ok=True)
    yield bench.directory / "bruce", {"LD_PRELOAD": str(library), "SLOW_SYNC_FLAG": str(flag)}, stop


@contextmanager
def still_disk(bench: Bench) -> Iterator[tuple[Path, dict[str, str], Stop]]:
    """The filesystem below the spool's filesystem."""
    with ExitStack() as stack:
        outer = stack.enter_context(
            mounted(bench.directory / "outer.img", bench.directory / "outer", _OUTER_BYTES)
        )
        inner = stack.enter_context(mounted(outer / "inner.img", bench.directory / "inner", _INNER_BYTES))
        yield inner / "bruce", {}, lambda: frozen(outer)


@contextmanager
def still_filesystem(bench: Bench) -> Iterator[tuple[Path, dict[str, str], Stop]]:
    """The spool's own filesystem."""
    with mounted(bench.directory / "own.img", bench.directory / "own", _INNER_BYTES) as own:
        yield own / "bruce", {}, lambda: frozen(own)


WAYS = {
    "no stall": no_stall,
    "fdatasync": slow_fdatasync,
    "disk": still_disk,
    "filesystem": still_filesystem,
}


def once(
    bench: Bench, options: argparse.Namespace, place: Path, environ: Mapping[str, str], stop: Stop
) -> dict[str, Any]:
    """The senders' report, with a remark about the part that was stopped."""
    stall_s = max(1.0, options.stall * bench.scale)
    before_s, after_s = max(1.0, BEFORE_S * bench.scale), max(1.0, AFTER_S * bench.scale)
    with bench.bruce(place=place, environ=environ, settings=SETTINGS) as bruce:
        bruce.start()
        warm_up(bruce)
        load = LoadOptions(bruce.socket, rate=options.rate, seconds=before_s + stall_s + after_s)
        first = bruce.word(Field.WRITTEN_SEQUENCE)
        with RunningLoad(load) as running:
            while running.running and bruce.word(Field.WRITTEN_SEQUENCE) == first:
                time.sleep(0.01)
            time.sleep(before_s)
            with stop():
                # Writes that were already on their way to the disk may still arrive.
                time.sleep(stall_s / 5)
                synced, written = bruce.word(Field.SYNCED_SEQUENCE), bruce.word(Field.WRITTEN_SEQUENCE)
                time.sleep(stall_s * 4 / 5)
                synced_then = bruce.word(Field.SYNCED_SEQUENCE)
                written_then = bruce.word(Field.WRITTEN_SEQUENCE)
            report = running.wait(TIMEOUT_S)
        received = bruce.status()["received"]
        bruce.stop(TIMEOUT_S)
    lost = "" if received >= report["sent"] else f", {report['sent'] - received} NOT RECEIVED"
    remark = f"meanwhile {written_then - written} written, {synced_then - synced} synced{lost}"
    return {**report, "remark": remark}
