"""Messages a second from one process, in Python, C and Go: one by one, and in batches.

Each program makes its messages as it goes, of 120 bytes, and the same daemon takes them all. The ingest
worker's CPU is beside each rate. A batch is as large as a datagram allows, 256 messages at most.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from spool.shared.state import Field
from tools.benches.bench import Bench, warm_up
from tools.benches.machine import BASELINES, Skipped, compile_c, cpu_seconds
from tools.benches.report import Figure
from tools.bruce_process import ROOT, Bruce
from tools.waiting import wait_until

MOST = 256
REQUIRED = {"Python": 3.0}
"""How many times as many messages a second batches are to make."""
TIMEOUT_S = 600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much."""
    parser.add_argument("--count", type=int, default=1_000_000)


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Each language that is installed, its two ways by turns. Raises Skipped without a C compiler."""
    programs: dict[str, list[str | Path]] = {
        "Python": [sys.executable, "-m", "tools.benches.python_client"],
        "C": [compile_c("send_messages", bench.programs)],
    }
    if go := shutil.which("go"):
        programs["Go"] = [compile_go(go, bench.programs)]
    count = bench.scaled(options.count)
    for language, program in programs.items():
        found: dict[int, list[tuple[float, float]]] = {1: [], MOST: []}
        with bench.bruce() as bruce:
            bruce.start()
            warm_up(bruce)
            for _ in range(bench.repeat):
                for batch, rows in found.items():
                    rows.append(send(bruce, program, count, batch))
            bruce.stop()
        singles, batches = found.values()
        yield Figure(f"{language}, one by one", [rate for rate, _ in singles], "msg/s")
        yield Figure(
            f"{language}, batches",
            [rate for rate, _ in batches],
            "msg/s",
            at_least=REQUIRED.get(language),
            baseline=[rate for rate, _ in singles],
        )
        yield Figure(
            f"CPU of the ingest worker, batches, {language}",
            [cpu for _, cpu in batches],
            "µs/msg",
            baseline=[cpu for _, cpu in singles],
        )
    if not go:
        raise Skipped("Go is not installed, so there are no figures of it")


def compile_go(go: str, directory: Path) -> Path:
    """Compile tools/baselines/send_messages.go."""
    output = directory / "send_messages_go"
    subprocess.run([go, "build", "-o", output, BASELINES / "send_messages.go"], check=True)
    return output


def send(bruce: Bruce, program: list[str | Path], count: int, batch: int) -> tuple[float, float]:
    """(messages a second, CPU of the ingest worker in µs a message)."""
    pid = bruce.workers()["ingest"]
    written, used = bruce.word(Field.WRITTEN_SEQUENCE), cpu_seconds(pid)
    done = subprocess.run(
        [*program, bruce.socket, str(count), str(batch)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    wait_until(
        lambda: bruce.word(Field.WRITTEN_SEQUENCE) >= written + count, 60, "all that was sent to be written"
    )
    used = cpu_seconds(pid) - used
    return count / json.loads(done.stdout)["seconds"], 1e6 * used / count
