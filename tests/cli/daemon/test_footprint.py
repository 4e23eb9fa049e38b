"""The memory of the daemon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PRIVATE_KB = """
import re
from pathlib import Path
import numpy as np
from cli.daemon import footprint

def used(name):
    found = re.findall(rf"^{name}: +([0-9]+) kB$", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[0])
"""
LARGE = """
footprint.map_what_is_large()
np.ones(1 << 21)  # the C library would take what is smaller from the heap from now on
before = used("Anonymous")
tables, between = [], []
for _ in range(20):
    tables.append(np.ones(1 << 18))
    between.append(np.ones(1 << 12))
held = used("Anonymous") - before
tables.clear()
print(held > 40_000, used("Anonymous") - before < 20_000)
"""
GONE = """
from llvmlite import binding
before = used("Rss")
footprint.let_go()
print(before - used("Rss") > 10 << 10, bool(binding.get_host_cpu_name()))
"""


def said(program: str) -> str:
    """The output of a process of its own."""
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", PRIVATE_KB + program]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout


def test_a_large_allocation_takes_no_memory_once_it_is_freed() -> None:
    """Of 20 of 2 MiB, among small ones that stay, nothing is left."""
    assert said(LARGE) == "True True\n"


def test_libraries_are_let_go() -> None:
    """Most of LLVM's pages are unmapped, and it works as before."""
    assert said(GONE) == "True True\n"
