"""All attacks one after the other, and the table at the end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from tools.adversaries.arena import run_attack
from tools.adversaries.catalogue import ATTACKS
from tools.adversaries.judgement import Observed, Verdict, decide
from tools.adversaries.options import Options

COLUMNS: tuple[str, ...] = (
    "attack",
    "sent",
    "lost",
    "twice",
    "forged",
    "control p50/p99/max",
    "attack p50/p99/max",
)
COLUMNS += ("PSS MiB", "fds", "sync s", "start s", "")

Row = tuple[str, Observed, Verdict]


def run_all(options: Options) -> int:
    """Run the chosen attacks; the exit code."""
    names = [name for name in ATTACKS if not options.only or name in options.only]
    seconds = options.phase_s([ATTACKS[name].least_s for name in names])
    print(f"seed {options.seed}; {len(names)} attacks, phases of {seconds:.0f} s at least", flush=True)
    shutil.rmtree(options.dir, ignore_errors=True)
    rows: list[Row] = []
    for name in names:
        directory = options.dir / name
        directory.mkdir(parents=True)
        print(f"{name} ...", flush=True)
        found = run_attack(ATTACKS[name](), options, seconds, directory)
        verdict = decide(found, counts_only=options.counts)
        rows.append((name, found, verdict))
        for text in verdict.broken:
            print(f"  BROKEN {name}: {text}", flush=True)
        (directory / "verdict.json").write_text(json.dumps(asdict(verdict), indent=2))
        if verdict.broken or options.keep:
            np.save(directory / "seen.npy", found.seen)
        else:
            shutil.rmtree(directory)
    show(rows)
    broken = [name for name, _, verdict in rows if verdict.broken]
    if broken:
        print(f"broken by: {', '.join(broken)}; the evidence is in {options.dir}", flush=True)
        return 1
    print("every attack failed: nothing lost, doubled or forged, and every bound held", flush=True)
    return 0


def show(rows: Sequence[Row]) -> None:
    """Print the table."""
    table = [COLUMNS, *(_cells(*row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(COLUMNS))]
    print()
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(flush=True)


def _cells(name: str, found: Observed, verdict: Verdict) -> tuple[str, ...]:
    sent = sum(found.control.sent.values()) + sum(found.attack.sent.values())
    peak = found.attack.peak
    times = ["/".join(f"{ms:.0f}" for ms in verdict.latency[phase]) for phase in ("control", "attack")]
    return (
        name,
        str(sent),
        str(verdict.lost),
        str(verdict.doubled),
        str(verdict.forged),
        *times,
        f"{max(peak.pss_mib.values(), default=0):.0f}",
        str(max(peak.descriptors.values(), default=0)),
        f"{peak.sync_s:.1f}",
        f"{found.start_s:.1f}",
        "BROKEN" if verdict.broken else "held",
    )
