"""A `bruce run` for benches and the storm: started, watched from outside, killed, started again.

It reads only what any user can read: the process table, `brucectl status --json`, and the shared state. It
hands a given listening socket over like systemd: descriptor 3, LISTEN_FDS and LISTEN_PID, so that the socket
outlives the daemon.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from cli.daemon.compiling import compile_all
from cli.status.snapshot import ROLES
from spool.index.identity import read_identity
from spool.layout import Layout
from spool.log.recovery import boot_id
from spool.shared.runtime import shared_state_path
from spool.shared.state import WORKER_WORDS, Field, read_shared_state
from spool.storage.ownership import is_own_directory
from tools.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
WORKERS = ("supervisor", "ingest", "keeper", "delivery")
START_S = 120.0
"""Long enough to compile all kernels, on the first start of a checkout."""
NOWHERE = "127.0.0.1:1"
"""Bootstrap servers at which no broker listens."""
_ACTIVATE = 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'

Settings = Mapping[str, Mapping[str, object]]


class Bruce:
    """One spool and its daemon. A context manager, which leaves no process and no runtime files behind."""

    def __init__(
        self,
        directory: Path,
        servers: str,
        *,
        settings: Settings | None = None,
        inputs: Sequence[Mapping[str, object]] = (),
        listener: socket.socket | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`directory`: for spool, configuration and log. `settings`: other keys of bruce.toml, by table.

        `inputs`: the tables [[input]].
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.spool = directory, directory / "spool"
        self.log = directory / "bruce.log"
        # Short, since a socket's path must be, and on tmpfs, since staging must be.
        self.runtime = Path(tempfile.mkdtemp(prefix="bruce-load-", dir="/dev/shm"))
        self.socket = Path(listener.getsockname()) if listener else self.runtime / "bruce.sock"
        self.pid = 0
        self._listener, self._settings, self.inputs = listener, settings or {}, inputs
        self._roles = (*WORKERS, "kafka") if any("kafka" in one for one in inputs) else WORKERS
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("BRUCE_")}
        self.environ |= {
            "BRUCE_RUNTIME_DIRECTORY": str(self.runtime),
            "PYTHONPATH": str(ROOT),
            **(environ or {}),
        }
        # Else the daemon would begin without compiled loops, and a figure would be one of plain Python.
        compile_all()
        self.configure(servers)

    @property
    def config(self) -> Path:
        return self.directory / "bruce.toml"

    def configure(self, servers: str) -> None:
        """Write bruce.toml; it is read at the next start."""
        tables: dict[str, dict[str, object]] = {
            "ingest": {"datagram_socket": str(self.socket)},
            "spool": {"directory": str(self.spool)},
            "kafka": {"bootstrap.servers": servers},
            "status": {"port": 0},
        }
        for name, keys in self._settings.items():
            tables.setdefault(name, {}).update(keys)
        lines = []
        for name, keys in tables.items():
            lines += [f"[{name}]", *_toml(keys)]
        for one in self.inputs:
            lines += ["[[input]]", *_toml(one)]
        self.config.write_text("\n".join(lines) + "\n")

    def start(self, *, wait: bool = True) -> None:
        """Start the daemon; return when its workers run. It ends with the calling thread, if not before."""
        assert not self.pid
        command = [sys.executable, "-c", "from cli.app import bruce; bruce()", "run", "--config"]
        command.append(str(self.config))
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.log), append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        if self._listener:
            command = ["sh", "-c", _ACTIVATE, "sh", *command]
            actions.append((os.POSIX_SPAWN_DUP2, self._listener.fileno(), 3))
        if shutil.which("setpriv"):
            # No process of ours stays behind, however we end.
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        self.pid = os.posix_spawnp(command[0], command, self.environ, file_actions=actions, setsid=True)
        if wait:
            self.await_workers()

    def await_workers(self) -> None:
        """Return when supervisor and workers run. Raises TookTooLong, RuntimeError."""
        wait_until(self.runs, START_S, f"bruce to start; see {self.log}")

    def runs(self) -> bool:
        """Whether supervisor and all workers run. Raises RuntimeError when the daemon has ended."""
        if self.pid and os.waitpid(self.pid, os.WNOHANG)[0]:
            self.pid = 0
            raise RuntimeError(f"bruce ended by itself; see {self.log}")
        return len(self.workers()) == len(self._roles) and self.socket.exists()

    def shared(self) -> np.ndarray | None:
        """The words of the shared state; None while no daemon has made it."""
        if not (self.spool / "identity").exists():
            return None
        spool, boot = read_identity(Layout(self.spool)), boot_id()
        # If other users may write to the directory, the daemon makes one of its own in it, by another name if
        # they have taken its own.
        inside = sorted(self.runtime.glob(f"bruce-{os.geteuid()}*"))
        places = (self.runtime, *(place for place in inside if is_own_directory(place)))
        paths = (shared_state_path(place, spool, boot) for place in places)
        # Attackers plant pipes there, and a daemon whose checks are switched off is to be seen to fail.
        states = (read_shared_state(path) for path in paths if path.is_file())
        return next((words for words in states if words is not None), None)

    def word(self, field: Field) -> int:
        """One word of the shared state; 0 without one."""
        shared = self.shared()
        return 0 if shared is None else int(shared[field])

    def workers(self) -> dict[str, int]:
        """{role: pid} of the living workers, checked against the process table."""
        shared = self.shared()
        if shared is None or not self.pid or int(shared[Field.WORKERS]) != self.pid:
            return {}
        rows = {role: Field.WORKERS + WORKER_WORDS * ROLES.index(role) for role in self._roles}
        pids = {role: int(shared[row]) for role, row in rows.items()}
        return {role: pid for role, pid in pids.items() if pid == self.pid or _parent(pid) == self.pid}

    def living(self) -> set[int]:
        """The pids of the living workers."""
        return set(self.workers().values())

    def kill(self, role: str) -> int:
        """SIGKILL one worker: its pid; 0 when it does not run now."""
        pid = self.workers().get(role, 0)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid

    def kill_all(self) -> None:
        """SIGKILL every process of the daemon at once; return when all are gone."""
        if not self.pid:
            return
        workers = self.living()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.pid = 0
        wait_until(
            lambda: not any(_parent(pid) for pid in workers), 60, "killed workers to be gone", pause_s=0.002
        )

    def stop(self, timeout_s: float = 60.0) -> None:
        """SIGTERM, and wait. Raises TookTooLong."""
        pid = self.pid
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0], timeout_s, f"bruce to stop; see {self.log}")
        self.pid = 0

    def status(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """The document of `brucectl status --json`; also of a dead daemon."""
        command = [sys.executable, "-c", "from cli.app import brucectl; brucectl()", "status", "--json"]
        done = subprocess.run(
            [*command, "--config", str(self.config)],
            env=self.environ,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        # 1: the daemon is unhealthy; the document says why.
        if done.returncode not in (0, 1):
            raise RuntimeError(
                f"brucectl status exits {done.returncode}: {done.stderr.decode(errors='replace')}"
            )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def close(self) -> None:
        """Kill all processes that still run and free the memory; the directory stays."""
        self.kill_all()
        shutil.rmtree(self.runtime, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _toml(keys: Mapping[str, object]) -> Iterator[str]:
    """The lines of a table: JSON's strings and numbers are TOML's."""
    return (f'"{key}" = {json.dumps(value)}' for key, value in keys.items())


def _parent(pid: int) -> int:
    """The parent of a living process; 0 when it is dead, a zombie, or does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in "ZX" else int(fields[1])
