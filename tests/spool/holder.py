"""A keeper that seems to live: a process that has the index open."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from spool.layout import Layout

_HOLD = """
import lmdb, sys
environment = lmdb.open(sys.argv[1], max_dbs=2, sync=False)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(layout: Layout) -> Iterator[None]:
    """While the block runs, another process has the index of this spool open, unchanged."""
    command = [sys.executable, "-c", _HOLD, str(layout.index)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        yield
        assert holder.stdin
        holder.stdin.close()
        assert holder.wait(60) == 0
