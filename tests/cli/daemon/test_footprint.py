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


KEPT = r"""
import mmap, tempfile
place = tempfile.mkdtemp().encode() + b"/\xff.so"
open(place, "wb").write(bytes(1 << 20))
with open(place, "r+b") as file:
    written = mmap.mmap(file.fileno(), 1 << 20, flags=mmap.MAP_PRIVATE)
    read = mmap.mmap(file.fileno(), 1 << 20, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
sum(bytes(written)), sum(bytes(read))

def resident():
    found = re.findall(rb"(\S+) \S+ \S+ \d+ +[^\n]*\xff.so\n.*?Rss: +(\d+) kB",
                       Path("/proc/self/smaps").read_bytes(), re.DOTALL)
    return {rights.decode(): int(kb) for rights, kb in found}

before = resident()
footprint.let_go()
print(before, resident())
"""


def said(program: str) -> str:
    """The output of a process of its own."""
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", PRIVATE_KB + program]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout


def test_a_large_allocation_takes_no_memory_once_it_is_freed() -> None:
    """Of 20 of 2 MiB, among small ones that stay, nothing is left."""
    assert said(LARGE) == "True True\n"


def test_nothing_that_can_be_written_is_let_go() -> None:
    """A thread may write to it just then; and a library may have any name."""
    before, after = said(KEPT).rstrip().split("} {")
    assert sorted(before.strip("{}").split(", ")) == ["'r--p': 1024", "'rw-p': 1024"]
    assert sorted(after.strip("{}").split(", ")) == ["'r--p': 0", "'rw-p': 1024"]


def test_libraries_are_let_go() -> None:
    """Most of LLVM's pages are unmapped, and it works as before."""
    assert said(GONE) == "True True\n"
