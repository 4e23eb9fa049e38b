"""A second try of what failed where several work: alone, in a process of its own, when all else is done.

Nothing that ran in the first process, or beside it, can fail a test there. What failed at first is a failure
in pytest's summary, with its traceback; behind that stands what became of the second try, and the verdict.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MOST = 10
"""Tests that fail by chance are few: where more have failed, something is broken, and none is tried again."""
TIMEOUT_S = 1800.0
"""Longer than pytest lets a test hang."""
_IN_VAIN = ("waited in vain", "TookTooLong")
"""What a test says that came to no verdict, since it waited too long."""


class SecondTry:
    """A plugin of the process that has others run tests."""

    def __init__(self) -> None:
        self._failed: list[pytest.TestReport] = []
        self._session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Remember whose verdict it is."""
        self._session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note who failed."""
        if report.failed:
            self._failed.append(report)

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Behind the summary: try again, where all that failed may be, and pass when all pass."""
        names = list(dict.fromkeys(report.nodeid for report in self._failed))
        ended = self._session.exitstatus if self._session else None
        if ended != pytest.ExitCode.TESTS_FAILED or not names or len(names) > MOST:
            return
        if not all(map(self._may, self._failed)):
            return
        tell = config.pluginmanager.getplugin("terminalreporter").write_line
        passed = [_passes(config.rootpath, name, tell) for name in names]
        tell(f"{sum(passed)} of {len(names)} that failed at first passed alone; they want mending")
        if all(passed) and self._session:
            self._session.exitstatus = pytest.ExitCode.OK

    def _may(self, report: pytest.TestReport) -> bool:
        """No process that died, nobody who hung, and no verdict on the fate of messages."""
        if report.when not in ("setup", "call", "teardown") or "from pytest-timeout" in report.longreprtext:
            return False
        return "final" not in report.keywords or any(words in report.longreprtext for words in _IN_VAIN)


def _passes(root: Path, name: str, tell: Callable[[str], object]) -> bool:
    """Whether this test passes alone; what it says when it does not is told."""
    tell(f"\n== once more, alone: {name}")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--quiet", name],
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        tell(f"-- not passed: it hung for {TIMEOUT_S:.0f} s")
        return False
    # Who is skipped now has not passed.
    passed = done.returncode == 0 and "1 passed" in done.stdout
    tell("-- passed" if passed else f"-- not passed\n{done.stdout}")
    return passed
