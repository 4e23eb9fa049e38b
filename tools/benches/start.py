"""From starting bruce to its first intake of datagrams, with gigabytes of backlog.

bruce itself makes the backlog while Kafka is away. It is started after a clean stop and after SIGKILL, each
with the spool in the page cache and with its segments dropped from it. The intake is measured from outside:
by a sender whose full queue moves.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tools.benches.bench import Bench, accept
from tools.benches.probe import await_intake
from tools.benches.report import Figure
from tools.bruce_process import Bruce
from tools.load import LoadOptions

REQUIRED_S = 1.0
TIMEOUT_S = 120.0
FILL_S = 1800.0
_GIB = 1 << 30


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much backlog."""
    parser.add_argument("--backlog-gib", type=float, default=10.0)
    parser.add_argument("--size", type=int, default=1000, help="bytes of a datagram; default 1000")


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Fill a spool once, and start on it often."""
    count = bench.scaled(options.backlog_gib * _GIB / options.size)
    with bench.bruce() as bruce:
        bruce.start()
        accept(bruce, LoadOptions(bruce.socket, count=count, sizes=(options.size, options.size)), FILL_S)
        size_gib = sum(e.stat().st_blocks * 512 for e in os.scandir(bruce.spool / "segments")) / _GIB
        for cold in (False, True):
            for clean in (True, False):
                values = [once(bruce, clean=clean, cold=cold) for _ in range(bench.repeat)]
                how = "after a clean stop" if clean else "after SIGKILL"
                where = "segments not cached" if cold else "cached"
                remark = f"{size_gib:.1f} GiB of segments" if not cold and clean else ""
                yield Figure(f"{how}, {where}", values, "s", at_most=REQUIRED_S, remark=remark)


def once(bruce: Bruce, *, clean: bool, cold: bool) -> float:
    """Seconds from the start to the first intake; bruce runs before and after."""
    if clean:
        bruce.stop(TIMEOUT_S)
    else:
        bruce.kill_all()
    if cold:
        drop_cached(bruce.spool / "segments")
    begun = time.monotonic()
    bruce.start(wait=False)
    taken = await_intake(bruce.socket, TIMEOUT_S)
    bruce.await_workers()
    return taken - begun


def drop_cached(directory: Path) -> None:
    """Drop the files of a directory from the page cache."""
    os.sync()
    for entry in os.scandir(directory):
        fd = os.open(entry.path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
