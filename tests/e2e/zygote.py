"""Daemons forked from a process that has imported and compiled everything: a start takes a tenth of a second.

    python -m tests.e2e.zygote bruce

Each line of input is a JSON list, the configuration file and the log file of a daemon; the answer is its pid.
With BRUCE_CRASH_POINTS set the daemons have the points of WRITE_POINTS too, which kernels cannot have.
"""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import mmap
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil

from cli.config.config import load_config
from cli.daemon.compiling import load_loops
from cli.daemon.daemon import Daemon
from ingest import role, supervisor
from ingest.worker import burst
from ingest.worker.worker import IngestWorker
from spool.log import retention
from spool.native.memory import address_of, function_address
from spool.storage import failpoint
from tests.daemon import ROOT, START_S, RunningBruce, alive

log = logging.getLogger("bruce")

WRITE_POINTS = {
    "write.armed": "the next burst is armed; nothing is received",
    "write.received": "a burst is in staging",
    "write.body": "its datagrams are in the segment, without a head",
    "write.head": "its head is there, without a digest",
    "write.stored": "the digest is there; no process was told",
    "write.announced": "the page says so; the keeper was not woken",
}


def failing_sync(points: Path) -> Path:
    """While this file is there, the next sync of a segment fails, and takes it away."""
    return points.with_suffix(".eio")


class Zygote:
    """The process, from outside. It dies with the thread that made it, and its daemons with it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "tests.e2e.zygote", "bruce"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=dict(environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def fork(self, config: Path, log: Path) -> Daemonised | None:
        """A daemon that starts; None when it died before its process could be opened."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps([str(config), str(log)]), file=self._process.stdin, flush=True)
        pid = int(self._process.stdout.readline())
        try:
            return Daemonised(pid)
        except psutil.NoSuchProcess:
            return None

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate(timeout=60)


class Daemonised(psutil.Process):
    """The part of subprocess.Popen that RunningBruce uses, for a process that is no child of ours."""

    def poll(self) -> int | None:
        """None while it lives."""
        return None if alive(self) else 0

    def wait(self, timeout: float | None = None) -> int:
        """Return when it is gone; how it ended, only its parent knows."""
        return super().wait(timeout) or 0


class ForkedBruce(RunningBruce):
    """A spool and its daemons, of which each may die while it starts."""

    zygote: Zygote

    @classmethod
    def of(cls, directory: Path, servers: str, points: Path, **options: Any) -> Self:
        """With crash points in the file `points`."""
        made = cls(directory, servers, **options)
        made.zygote = Zygote({**made.environ, "BRUCE_CRASH_POINTS": str(points)})
        return made

    @property
    def lives(self) -> bool:
        """Whether there is a daemon."""
        return self._process is not None and self._process.poll() is None

    def try_start(self) -> bool:
        """Start a daemon; False when it died before its workers ran."""
        # A socket of the one before would do for a sign of life.
        self.socket.unlink(missing_ok=True)
        self._process = self.zygote.fork(self.config, self.log)  # type: ignore[assignment]
        try:
            self.await_true(lambda: not self.lives or self._runs(), START_S)
        except AssertionError:
            # It may have died between the two questions.
            if self.lives:
                raise
        if not self.lives:
            self._process = None
        return self.lives

    def close(self) -> None:
        """End everything."""
        super().close()
        self.zygote.close()


def _with_points(worker: IngestWorker) -> None:
    """Let the intake's loop call ours, which may die, in the places of what it calls."""
    job, libc = worker.job, ctypes.CDLL(None)
    wall = mmap.mmap(-1, mmap.PAGESIZE)
    at = address_of(np.frombuffer(wall, np.uint8))
    libc.mprotect(ctypes.c_void_p(at), mmap.PAGESIZE, 0)

    def around(word: int, arguments: int, before: str, after: str = "") -> Any:
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * arguments, use_errno=True)
        real = kind(int(job[word]))

        def step(*given: int) -> int:
            failpoint.reach(before)
            result = int(real(*given))
            if word == burst.DIGEST and failpoint.strike_off(Path(failpoint.ARMED), "write.stored"):
                # The next thing after the digest is stored is the shared state: a wall, in the place of a
                # SIGKILL.
                job[burst.PAGE] = at
            if after and result & 0xFFFFFFFF < 0x80000000:
                failpoint.reach(after)
            return result

        step_at = kind(step)
        job[word] = function_address(step_at)
        return step_at

    worker.points = [  # type: ignore[attr-defined]
        wall,
        around(burst.RECVMMSG, 5, "write.armed", "write.received"),
        around(burst.CLOCK, 2, "write.body"),
        around(burst.DIGEST, 3, "write.head"),
        around(burst.WRITE, 3, "write.announced"),
    ]


def _daemon(config: str, log: str) -> None:
    """Become a daemon."""
    ctypes.CDLL(None).prctl(role.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.setsid()
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        os.dup2(os.open(path, flags, 0o644), number)
    os.dup2(1, 2)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    Daemon(load_config(Path(config))).run()


def main() -> None:
    """Fork as asked."""
    # A wall is met with a SIGSEGV, and its core dump is useless.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(name)s[%(process)d] %(levelname)s: %(message)s"
    )
    # Deaths are meant here.
    supervisor.BACKOFF_S = (0.0,)
    retention.AFTER_S = retention.LOOK_S = 0.0
    run, sync = IngestWorker.run, os.fdatasync

    def sync_or_fail(fd: int) -> None:
        try:
            failing_sync(Path(failpoint.ARMED)).unlink()
        except FileNotFoundError:
            sync(fd)
        else:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    os.fdatasync = sync_or_fail  # type: ignore[assignment]

    def run_with_points(worker: IngestWorker) -> None:
        _with_points(worker)
        run(worker)

    IngestWorker.run = run_with_points  # type: ignore[method-assign]
    load_loops()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                _daemon(*json.loads(line))
                os._exit(0)
            except BaseException:
                log.exception("the daemon ended by an error")
                os._exit(1)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
