"""Senders in processes of their own: started, stopped, their reports taken."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from dataclasses import fields
from types import TracebackType
from typing import Any, Self

from tools.bruce_process import ROOT
from tools.load import LoadOptions

STOP_S = 30.0


class LoadFailed(Exception):
    """The load generator itself failed; its output is on standard error."""


class RunningModule:
    """A module that sends by itself, and reports at its end. As a context manager it ends with the block."""

    stop_s = STOP_S

    def __init__(self, module: str, *arguments: str) -> None:
        self._module, command = module, [sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> dict[str, Any]:
        """Wait until everything is sent; the report. Raises LoadFailed, subprocess.TimeoutExpired."""
        said, _ = self._process.communicate(timeout=timeout_s)
        if self._process.returncode:
            raise LoadFailed(f"{self._module} exits {self._process.returncode}: {said}")
        report: dict[str, Any] = json.loads(said)
        return report

    def stop(self) -> dict[str, Any]:
        """End it early: the report of what was sent."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        return self.wait(self.stop_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()


class RunningLoad(RunningModule):
    """A load that goes on by itself."""

    def __init__(self, options: LoadOptions) -> None:
        super().__init__("tools.load", *arguments(options))


def arguments(options: LoadOptions) -> list[str]:
    """The command line for these options."""
    found = ["--socket", str(options.socket), "--sizes", "{}:{}".format(*options.sizes)]
    found += ["--topics", *options.topics, "--batches", *map(str, options.batches)]
    for option in fields(LoadOptions):
        if isinstance(option.default, int | float):
            found += ["--" + option.name.replace("_", "-"), str(getattr(options, option.name))]
    return found


def run_load(options: LoadOptions, timeout_s: float) -> dict[str, Any]:
    """Run a load to its end: its report."""
    with RunningLoad(options) as load:
        return load.wait(timeout_s)
