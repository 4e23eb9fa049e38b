"""Progress: a bar on a terminal, plain lines elsewhere, and nothing for short work."""

from __future__ import annotations

import io
import re
import sys

import pytest
from rich.console import Console

from cli.terminal.progress import Progress


def shown(*, terminal: bool, seconds: float) -> str:
    """The output while 10,000 messages are done at an even rate."""
    file, now = io.StringIO(), [100.0]
    console = Console(file=file, force_terminal=terminal, width=100)
    with Progress("delivering", console=console, clock=lambda: now[0]) as progress:
        for done in range(0, 10_001, 1000):
            progress.show(done, 10_000)
            now[0] += seconds / 10
    return file.getvalue()


def test_lines_where_there_is_no_terminal() -> None:
    """Every five seconds one plain line, with the rate and the time left."""
    assert shown(terminal=False, seconds=20) == (
        "3,000 of 10,000 messages, 500/s, 14 s left\n"
        "6,000 of 10,000 messages, 500/s, 8 s left\n"
        "9,000 of 10,000 messages, 500/s, 2 s left\n"
    )


def test_why_it_does_not_go_on() -> None:
    """The trouble is shown after the figures while it lasts."""
    for terminal in (False, True):
        file, now = io.StringIO(), [100.0]
        console = Console(file=file, force_terminal=terminal, width=100)
        with Progress("delivering", console=console, clock=lambda now=now: now[0]) as progress:
            progress.show(0, 10, "no broker")
            now[0] += 6
            progress.show(0, 10, "no broker")
        assert "no broker" in file.getvalue()


def test_a_rate_counts_from_when_something_moved() -> None:
    """A minute without Kafka is no part of the rate, nor of the time that is left."""
    file, now = io.StringIO(), [100.0]
    with Progress("delivering", console=Console(file=file, width=100), clock=lambda: now[0]) as progress:
        for _ in range(60):
            progress.show(0, 10_000, "no broker")
            now[0] += 1
        progress.show(0, 10_000)
        now[0] += 6
        progress.show(6000, 10_000)
    assert file.getvalue().splitlines()[-1] == "6,000 of 10,000 messages, 1,000/s, 4 s left"


def test_more_than_was_expected() -> None:
    """The done amount becomes the total: nothing is left, and never less."""
    file, now = io.StringIO(), [100.0]
    with Progress("checking", "B", console=Console(file=file, width=100), clock=lambda: now[0]) as progress:
        progress.show(0, 1000)
        now[0] += 10
        progress.show(2000, 1000)
    assert file.getvalue() == "2,000 of 2,000 B, 200/s, 0 s left\n"


def test_short_work_is_silent() -> None:
    """Work that is over at once prints no line."""
    assert shown(terminal=False, seconds=1) == ""


def test_a_bar_on_a_terminal() -> None:
    """The bar shows the task, its progress, and the rate."""
    text = shown(terminal=True, seconds=20)
    for part in ("delivering", "10000/10000", "messages/s"):
        assert part in text


def test_where_no_rate_tells_the_end() -> None:
    """The done part of the known total, and a clock that goes on when all is done; whole in 40 columns."""
    file, now = io.StringIO(), [100.0]
    console = Console(file=file, force_terminal=True, width=40, get_time=lambda: now[0])
    with Progress("Spark", "tasks", console=console, clock=lambda: now[0], paced=False) as progress:
        for done, total in ((0, 4), (4, 4), (4, 4), (4, 9)):
            progress.show(done, total)
            now[0] += 61
            progress._bar.refresh()
    lines = [line for line in file.getvalue().split("\r") if "tasks" in line]
    for part in ("0 of 4 tasks", "4 of 4 tasks 0:02:02", "4 of 4 tasks 0:03:03", "4 of 9 tasks 0:04:04"):
        assert any(part in _plain(line) for line in lines), lines
    assert "tasks/s" not in file.getvalue()


def _plain(line: str) -> str:
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)


def test_results_go_where_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example into a file, while the bar is on the terminal: no result is shown there."""
    file, terminal = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    with Progress("counting", console=Console(file=terminal, force_terminal=True, width=100)):
        sys.stdout.write("a row\n")
    assert file.getvalue() == "a row\n"
    assert "a row" not in terminal.getvalue()
