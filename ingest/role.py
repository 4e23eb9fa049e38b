"""A worker process, as the supervisor knows it."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Role:
    """One worker process: its name, and what it runs. `run` returns when told to END."""

    name: str
    run: Callable[[], None]
    stop_s: float = 30.0
    """Given to it to end in order, in seconds."""
    hasty_stop_s: float = 0.0
    """The same when the supervisor was told twice to stop."""
    row: int = 0
    """Of WORKERS in the shared page; 0: that of its place among the roles."""
    watched: bool = False
    """It says in the page when its loop has turned (ingest.watch)."""
    awaited: bool = False
    """The daemon is ready when this one works."""
    ends_first: bool = False
    """It feeds the others: it ends before them, whenever it was started."""
    pid: int = 0
    restarts: int = 0
    started: float = 0.0
    hasty: int = 0
    due: float = 0.0
    asked: float = 0.0
    """When it was last asked to give way."""
    replaced_by: float = 0.0
    """When it must have given way; 0 while nobody asks it to."""


def die_with(parent: int) -> None:
    """End this process by SIGKILL when the one that forked it has ended, or has already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
