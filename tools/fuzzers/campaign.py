"""One run of the fuzzer, and its result."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tools.bruce_process import ROOT
from tools.fuzzers.seeds import seeds

MOST_BYTES = 64 << 10
HANG_S = 20
"""The time limit of one input; long enough that a slow machine does not call it a hang."""
MEMORY_MIB = 256
_GRACE_S, _COMPILE_S = 120.0, 300.0
_SMALL_PARENT = ("sh", "-c", '"$@"; exit $?', "sh")
"""A process begins with the peak of memory of the one that forked it, which may be larger than the limit."""


@dataclass(slots=True)
class Result:
    """The result of a campaign."""

    target: str
    compiled: bool
    executions: int = 0
    corpus: int = 0
    peak_mib: int = 0
    findings: list[str] = field(default_factory=list)
    """Files with inputs that ended it."""
    said: str = ""


def fuzz(
    target: str, seconds: int, directory: Path, *, compiled: bool, most_bytes: int = MOST_BYTES
) -> Result:
    """Fuzz one target for this long, or until a finding. `directory` is for corpus and findings."""
    corpus, found = directory / "corpus", directory / ("found-compiled" if compiled else "found")
    shutil.rmtree(found, ignore_errors=True)
    for path in (corpus, found):
        path.mkdir(parents=True, exist_ok=True)
    for seed in seeds(target):
        (corpus / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)
    command = [sys.executable, "-m", "tools.fuzzers.run", target, str(corpus), f"-artifact_prefix={found}/"]
    command += [f"-timeout={HANG_S}", f"-max_len={most_bytes}"]
    limits = [
        f"-max_total_time={seconds}",
        f"-rss_limit_mb={MEMORY_MIB}",
        "-print_final_stats=1",
        "-verbosity=1",
    ]
    if compiled:
        # To compile takes more memory than the limit; what it made is kept.
        _run([*command, "-runs=0", "-rss_limit_mb=0"], _COMPILE_S, compiled=True)
    done = _run([*command, *limits], seconds + _GRACE_S, compiled=compiled)
    result = Result(target, compiled, said=done.stdout[-4000:])
    result.executions = _figure(done.stdout, r"stat::number_of_executed_units:\s*(\d+)")
    result.peak_mib = _figure(done.stdout, r"stat::peak_rss_mb:\s*(\d+)")
    result.corpus = len(list(corpus.iterdir()))
    result.findings = [str(path) for path in sorted(found.iterdir())]
    if done.returncode and not result.findings:
        result.findings = [f"it ended with {done.returncode}, and left no input"]
    return result


def _run(command: list[str], timeout_s: float, *, compiled: bool) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("BRUCE_", "NUMBA_"))}
    environ["NUMBA_DISABLE_JIT"] = "0" if compiled else "1"
    return subprocess.run(
        [*_SMALL_PARENT, *command],
        cwd=ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )


def _figure(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0
