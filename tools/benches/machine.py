"""The benches' access to the machine: C programs, kernel settings, and the resources of processes."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.bruce_process import ROOT

BASELINES = ROOT / "tools/baselines"
QUEUE_LENGTH = Path("/proc/sys/net/unix/max_dgram_qlen")
_FLAGS = ("-O2", "-Wall", "-Wextra")
_CPU_CLOCK = 2


class Skipped(Exception):
    """This machine cannot do that; the message says why."""


def compile_c(name: str, directory: Path, *, shared: bool = False) -> Path:
    """Compile tools/baselines/NAME.c. Raises Skipped without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        raise Skipped("no C compiler is installed, so there is no baseline to compare with")
    directory.mkdir(parents=True, exist_ok=True)
    output = directory / (f"{name}.so" if shared else name)
    kind = ["-shared", "-fPIC"] if shared else []
    source = BASELINES / f"{name}.c"
    subprocess.run([compiler, *_FLAGS, *kind, "-o", output, source, "-ldl"], check=True)
    return output


@contextmanager
def queue_length(messages: int) -> Iterator[None]:
    """Let sockets made in the block queue this many datagrams. Raises Skipped when it cannot be set."""
    before = int(QUEUE_LENGTH.read_text())
    if before != messages:
        try:
            QUEUE_LENGTH.write_text(f"{messages}\n")
        except OSError as error:
            raise Skipped(
                f"net.unix.max_dgram_qlen is {before} and cannot be set: {error.strerror}"
            ) from None
    try:
        yield
    finally:
        if before != messages:
            QUEUE_LENGTH.write_text(f"{before}\n")


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used, its threads included. Raises OSError when it has ended."""
    # The clock of another process, as clock_getcpuclockid(3) makes it: exact, where /proc counts in ticks.
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK)


def wake_ups(pid: int) -> dict[int, int]:
    """How often each thread of the process gave up the processor to wait: voluntary context switches."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            lines = (task / "status").read_text()
            found[int(task.name)] = int(lines.split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return found


def family(pid: int) -> list[int]:
    """A living process and all that descend from it, parents first."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, (task / "children").read_text().split())
    return found


def resident_bytes(pid: int) -> tuple[int, int]:
    """(PSS, private) of a process, as /proc/PID/smaps_rollup has it.

    PSS counts each page by the share of it: one that four processes map counts a quarter in each.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
    return kib["Pss"] << 10, (kib["Private_Clean"] + kib["Private_Dirty"]) << 10


def private_bytes(pid: int, *, shared_with_children: bool = False) -> int:
    """Memory of a process that no file backs.

    Only its own pages; with `shared_with_children` also those that its forks still share with it. Pages of
    mapped files do not count, private copies of them do.
    """
    total, private, anonymous = 0, 0, 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("Private_Clean", "Private_Dirty"):
            private += int(rest.split()[0])
        elif name == "Anonymous":
            anonymous = int(rest.split()[0])
        elif name == "VmFlags":
            total += anonymous if shared_with_children else min(private, anonymous)
            private = anonymous = 0
    return total << 10


def librdkafka_path() -> Path:
    """The library that bruce itself uses."""
    from dispatch.librdkafka import load  # noqa: PLC0415  (only the drain bench needs it)

    return Path(load().path)
