"""All that the workers run compiled, compiled before they are forked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np

from ingest import access, bank, burst, connections, faults, guard, lines, run, turn
from spool import ledger, refused, scan, senders
from spool.frame import TAIL_FIELDS
from spool.kernel import INTERPRETED, address_of
from spool.page import WORDS


def is_compiled() -> bool:
    """Whether an earlier start has left its compiled loops here, of this release or another one."""
    if INTERPRETED:
        return True
    place = cast(Any, burst.receive).compiled.stats.cache_path
    return place is not None and any(Path(place).glob("burst.receive-*.nbi"))


def compile_kernels() -> None:
    """Compile, or load from the cache, what every worker runs; before forking, so that they share it."""
    empty, tail = np.zeros(burst.JOB_FIELDS, np.int64), np.zeros(TAIL_FIELDS, np.int64)
    page = np.zeros(WORDS, np.int64)
    empty[burst.PAGE] = address_of(page)
    burst.store(empty, tail, np.zeros(0, np.int64), 0)
    burst.receive(empty, tail, np.zeros(0, np.int64), 0)
    burst.discard(empty, 0, 0)
    access.compile_kernels()
    bank.compile_kernels()
    turn.compile_kernels()
    faults.compile_kernels()
    guard.compile_kernels()
    lines.compile_kernels()
    connections.compile_kernels()
    run.compile_kernels()
    ledger.compile_kernels()
    refused.compile_kernels()
    scan.compile_kernels()
    senders.compile_kernels()
