"""`bruce run`, forked from a process that has imported and compiled everything: it starts a second sooner.

    python -m tests.nursery bruce

Each line of input is a JSON list, and is answered by one line:

    ["start", environ, config, log]    the daemon's pid; it leads a session of its own
    ["poll", pid]                      its exit code as subprocess has it, null while it runs

All daemons die with it, and it dies with its input.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cli.daemon.daemon  # noqa: F401  (the command imports it when it runs)
from cli.app import bruce
from cli.daemon.compiling import load_loops
from ingest.role import PR_SET_PDEATHSIG
from spool.storage import failpoint

ROOT = Path(__file__).resolve().parent.parent
_POLL_S = 0.005
_OWN = {"PYTEST_CURRENT_TEST", "BRUCE_RUNTIME_DIRECTORY", "BRUCE_CONFIG", "BRUCE_CRASH_POINTS"}
"""Variables that may differ from daemon to daemon: only the last is looked at when a module is imported."""


class Nursery:
    """The process, from outside."""

    def __init__(self) -> None:
        self._environ = {
            name: value for name, value in _imported(os.environ).items() if not name.startswith("BRUCE_")
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.nursery", "bruce"],
            cwd=ROOT,
            env=self._environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._network = _network(f"{self._process.pid}")
        self._lock = threading.Lock()
        atexit.register(self.close)

    def suits(self, environ: Mapping[str, str]) -> bool:
        """Whether a daemon forked here, with these variables, equals one that the caller would start."""
        return _imported(environ) == self._environ and _network("thread-self") == self._network

    def start(self, environ: Mapping[str, str], config: Path, log: Path) -> ForkedDaemon:
        """Start a daemon."""
        return ForkedDaemon(self, self.ask("start", dict(environ), str(config), str(log)))

    def ask(self, *order: object) -> Any:
        """Have something done."""
        assert self._process.stdin
        assert self._process.stdout
        with self._lock:
            print(json.dumps(order), file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it, and its daemons."""
        self._process.kill()
        self._process.communicate(timeout=60)


class ForkedDaemon:
    """A daemon, as subprocess.Popen has it."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery, self.pid = nursery, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        if self.returncode is None:
            self.returncode = self._nursery.ask("poll", self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """How it ended, when it has. Raises subprocess.TimeoutExpired."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("bruce run", timeout)
            time.sleep(_POLL_S)
        return code


@functools.cache
def nursery() -> Nursery:
    """The one of this process."""
    return Nursery()


def _imported(environ: Mapping[str, str]) -> dict[str, str]:
    # A daemon does not know Spark's variables, which a session sets in its own process.
    foreign = ("SPARK_", "PYSPARK_")
    return {
        name: value for name, value in environ.items() if name not in _OWN and not name.startswith(foreign)
    }


def _network(process: str) -> str:
    return os.readlink(f"/proc/{process}/ns/net")


def _live(environ: dict[str, str], config: str, log: str) -> None:
    """Become a daemon, to its end."""
    os.environ.clear()
    os.environ.update(environ)
    failpoint.ARMED = environ.get("BRUCE_CRASH_POINTS", "")
    null, written = (
        os.open(os.devnull, os.O_RDONLY),
        os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
    )
    for fd, target in ((null, 0), (written, 1), (written, 2)):
        os.dup2(fd, target)
    os.close(null)
    os.close(written)
    sys.argv = ["bruce", "run", "--config", config]
    bruce()


def _start(environ: dict[str, str], config: str, log: str) -> int:
    ready, become = os.pipe()
    pid = os.fork()
    if pid:
        # Read to the end of the pipe: then the child leads its group, and the caller may signal it.
        os.close(become)
        os.read(ready, 1)
        os.close(ready)
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        os.close(ready)
        os.close(become)
        _live(environ, config, log)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _poll(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def main() -> None:
    """Serve the requests on standard input."""
    load_loops()
    # Modules that the command line imports when it is used.
    sys.argv = ["bruce", "run", "--help"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        bruce()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        answer = {"start": _start, "poll": _poll}[name](*arguments)
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
