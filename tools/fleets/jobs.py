"""`brucectl spark` as a process of its own, and the executors below it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from tools.bruce_process import ROOT

BRUCECTL = (sys.executable, "-c", "from cli.app import brucectl; brucectl()")
GONE_S = 60.0
SHOWN = 2000
"""Characters of a job's last output."""


class JobBroken(Exception):
    """A job ended in a way that it must not; the message has its output."""


class SparkJob:
    """One command of `brucectl spark`, with --json. A context manager, which leaves no process behind."""

    def __init__(self, directory: Path, name: str, *arguments: str) -> None:
        """Start it; its output goes to `directory`, as NAME.json and NAME.err."""
        self.name, self.began = name, time.monotonic()
        self._said, self._errors = directory / f"{name}.json", directory / f"{name}.err"
        local = directory / "spark"
        local.mkdir(exist_ok=True)
        conf = ["--conf", f"spark.local.dir={local}"]
        command = [*BRUCECTL, "spark", *arguments, "--json", *conf]
        environ = {key: value for key, value in os.environ.items() if not key.startswith("BRUCE_")}
        # Executors of local-cluster have their working directories there.
        environ["SPARK_WORKER_DIR"] = str(local / "work")
        with self._said.open("w") as said, self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env={**environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def result(self, *codes: int) -> dict[str, Any]:
        """Its document, when it has ended with one of these exit codes. Raises JobBroken for another."""
        code = self._process.wait()
        if code not in codes:
            said = (self._said.read_text() + self._errors.read_text())[-SHOWN:]
            raise JobBroken(f"brucectl spark {self.name} exits {code}: {said}")
        found: dict[str, Any] = json.loads(self._said.read_text())
        return found | {"exit": code, "wall_s": time.monotonic() - self.began}

    def executors(self) -> list[psutil.Process]:
        """Its living executors, by pid."""
        try:
            below = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return sorted(filter(is_executor, below), key=lambda process: process.pid)

    def kill_executor(self) -> int:
        """SIGKILL one; return when it and its Python workers are gone: its pid. Raises JobBroken."""
        executors = self.executors()
        if not executors:
            raise JobBroken(f"brucectl spark {self.name} has no executor to kill")
        doomed = executors[0]
        family = [doomed, *doomed.children(recursive=True)]
        doomed.kill()
        # Spark's Python workers end when their JVM does; one that lives on would go on sending.
        _, living = psutil.wait_procs(family, timeout=GONE_S)
        if living:
            raise JobBroken(f"{len(living)} workers outlive the executor {doomed.pid}")
        return doomed.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        below = []
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(self.pid).children(recursive=True)
        self._process.kill()
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()


def is_executor(process: psutil.Process) -> bool:
    """Whether this is the JVM of an executor."""
    try:
        return any("ExecutorBackend" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False  # it has ended meanwhile, or is a zombie
