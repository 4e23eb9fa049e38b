"""What all tests share: who runs what, who is tried again, and how many ran against real Kafka."""

import functools
import os
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.second_try import SecondTry
from tools.class_data import frugal_environ

LONG = ("real_kafka", "install", "tools", "e2e", "pipeline", "forgetful", "cli", "ingest", "router")
"""Folders whose files take longest, in this order: begun last, one would keep the other workers waiting."""


class ByFile(LoadFileScheduling):
    """A file is one worker's, and so are all files that share brokers: each worker would start its own.

    Those of real Kafka are two workers': one alone would be at them when all others have nothing left. The
    three brokers are one worker's: who names `kafka3` is his.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/real_kafka/"):
            return "three brokers" if "kafka3" in text_of(self.config.rootpath, nodeid) else "one broker"
        return super()._split_scope(nodeid)


@functools.cache
def text_of(root: Path, nodeid: str) -> str:
    """What stands in the file of a test."""
    return (root / nodeid.partition("::")[0]).read_text(encoding="utf-8")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Who runs what, where several work (`--numprocesses`)."""
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the long files; within a file nothing changes."""
    items.sort(key=lambda item: place_of(item.path.parent.name))


def place_of(folder: str) -> int:
    """When the files of a folder are begun."""
    return LONG.index(folder) if folder in LONG else len(LONG)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker that the count goes by, and let JVMs start soon.

    Where several work, what fails has a second try: the first may have failed because all had to wait, or
    because somebody was in the way.
    """
    config.addinivalue_line("markers", "real_kafka: needs real brokers, which tools/kafka starts")
    for name, value in frugal_environ().items():
        os.environ.setdefault(name, value)
    if config.getoption("numprocesses", None):
        config.pluginmanager.register(SecondTry())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line so that a run without real Kafka cannot pass for one with it."""
    stats = terminalreporter.stats
    reasons = [reason for report in stats.get("skipped", []) if (reason := missing_kafka(report))]
    if reasons:
        line = f"real Kafka: {len(reasons)} tests skipped ({reasons[0]})"
    else:
        reports = stats.get("passed", []) + stats.get("failed", [])
        line = f"real Kafka: {sum('real_kafka' in report.keywords for report in reports)} tests ran"
    terminalreporter.write_line(line)


def missing_kafka(report: pytest.TestReport) -> str | None:
    """Why real Kafka was missing, when that is why the test was skipped."""
    if "real_kafka" not in report.keywords or not isinstance(report.longrepr, tuple):
        return None
    _path, _line, message = report.longrepr
    _skipped, found, reason = message.partition("no real Kafka: ")
    return reason if found else None
