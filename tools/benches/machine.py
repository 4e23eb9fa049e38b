"""What benches ask of the machine: C programs, kernel settings, and what processes use."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.bruce_process import ROOT

BASELINES = ROOT / "tools/baselines"
QUEUE_LENGTH = Path("/proc/sys/net/unix/max_dgram_qlen")
_FLAGS = ("-O2", "-Wall", "-Wextra")


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
    """Let sockets made meanwhile queue so many datagrams. Raises Skipped when it cannot be set."""
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
    """CPU time that a process has used, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def private_bytes(pid: int, *, shared_with_children: bool = False) -> int:
    """Memory of a process that no file backs.

    What a process alone has; with `shared_with_children` also what its forks still share with it. Pages of
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
