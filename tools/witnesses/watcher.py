"""`brucectl witness run` as a process of its own: killed, started again, its CPU time counted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pipeline.witness.document import NAME
from tools.bruce_process import ROOT
from tools.waiting import wait_until

BRUCECTL = (sys.executable, "-c", "from cli.app import brucectl; brucectl()")
START_S = 120.0
SHOWN = 2000
"""Characters of a command's last output."""


class Watcher:
    """One witness, by its directory. A context manager, which leaves no process behind."""

    def __init__(
        self,
        directory: Path,
        spools: Sequence[str],
        tiers: Mapping[str, str],
        *,
        late_s: float,
    ) -> None:
        """`tiers`: the place of each, by name, in order; the first one is the configured Kafka, too."""
        directory.mkdir(parents=True)
        self.state, self._spools, self.log = directory / "state", list(spools), directory / "witness.log"
        self._config = directory / "bruce.toml"
        first = next(iter(tiers.values()))
        self._config.write_text(
            f'[kafka]\n"bootstrap.servers" = "{first}"\n'
            f'[spool]\ndirectory = "{spools[0]}"\n[witness]\ndirectory = "{self.state}"\n'
        )
        named = [part for name, place in tiers.items() for part in ("--tier", f"{name}={place}")]
        self._command = [
            *BRUCECTL, "witness", "run", *spools, *named,
            "--late", str(late_s), "--config", str(self._config),
        ]  # fmt: skip
        self._environ = {key: value for key, value in os.environ.items() if not key.startswith("BRUCE_")}
        self._environ["PYTHONPATH"] = str(ROOT)
        self._pid = 0
        self.lives, self.cpu_s, self.begun_cpu_s, self.peak_mib = 0, 0.0, 0.0, 0.0
        """How often it was started, its CPU time, that until the first look of each start, and memory."""

    def start(self, *, wait: bool = True) -> None:
        """Start it; return when it has looked once. It ends with the calling thread, if not before."""
        command, began = self._command, time.time()
        if shutil.which("setpriv"):
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.log), append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        self._pid = os.posix_spawnp(command[0], command, self._environ, file_actions=actions, setsid=True)
        self.lives += 1
        if wait:
            wait_until(lambda: self.written_s() > began, START_S, f"the witness to look; see {self.log}")
            self.begun_cpu_s += cpu_of(self._pid)

    def written_s(self) -> float:
        """When the document was written; 0 without one. Raises RuntimeError when it has ended by itself."""
        if self._pid and os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            raise RuntimeError(f"the witness ended by itself: {self.log.read_text()[-SHOWN:]}")
        return float(self.document().get("written_s", 0.0))

    def document(self) -> dict[str, Any]:
        """Its document, which others show; empty before there is one."""
        try:
            found: dict[str, Any] = json.loads((self.state / NAME).read_text())
        except FileNotFoundError:
            return {}
        return found

    def end(self, number: signal.Signals) -> int:
        """Signal it, and wait: its exit code, negative for a signal."""
        if not self._pid:
            return 0
        os.kill(self._pid, number)
        _, status, usage = os.wait4(self._pid, 0)
        self._pid = 0
        self.cpu_s += usage.ru_utime + usage.ru_stime
        self.peak_mib = max(self.peak_mib, usage.ru_maxrss / 1024)
        return os.waitstatus_to_exitcode(status)

    def audit(self) -> tuple[dict[str, Any], float]:
        """(`brucectl audit --witness --json`, without the time of its look; seconds). Raises RuntimeError."""
        began = time.monotonic()
        done = subprocess.run(
            [*BRUCECTL, "audit", *self._spools, "--witness", "--json", "--config", str(self._config)],
            env=self._environ,
            capture_output=True,
            timeout=300,
            check=False,
        )
        if done.returncode not in (0, 1):
            said = (done.stdout + done.stderr).decode(errors="replace")[-SHOWN:]
            raise RuntimeError(f"brucectl audit exits {done.returncode}: {said}")
        found: dict[str, Any] = json.loads(done.stdout)
        # All the rest is the same whenever it looks.
        del found["looked"]
        return found | {"exit": done.returncode}, time.monotonic() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(signal.SIGKILL)


def cpu_of(pid: int) -> float:
    """CPU seconds of a process, so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
