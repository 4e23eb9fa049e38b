"""Progress: a bar on a terminal, plain lines elsewhere, and nothing for short work."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable

import pytest
from rich.console import Console

from cli.terminal.progress import Pace, Progress


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


def lines(steps: Iterable[tuple[float, int]], *, terminal: bool = False) -> list[str]:
    """The lines for these times and amounts, of 10,000."""
    file, now = io.StringIO(), [0.0]
    console = Console(file=file, force_terminal=terminal, width=100)
    with Progress("delivering", console=console, clock=lambda: now[0]) as progress:
        for now[0], done in steps:
            progress.show(done, 10_000)
            progress._bar.refresh()
    return _plain(file.getvalue()).replace("\r", "\n").splitlines()


STALLED = (
    *((second, 1000 * second) for second in range(7)),
    *((second, 6000) for second in range(7, 65)),
    (65, 7000),
    (66, 8000),
    (70, 9000),
)
"""A thousand a second, with a stall of a minute behind the sixth; at last a thousand in four seconds."""


def test_a_stall_is_no_part_of_the_rate() -> None:
    """While work stalls, no rate and no time left is claimed; then it has its old rate again."""
    said = lines(STALLED)
    assert said[0] == "5,000 of 10,000 messages, 1,000/s, 5 s left"
    assert set(said[2:12]) == {"6,000 of 10,000 messages, 0/s"}
    assert said[-2:] == [
        "7,000 of 10,000 messages, 1,000/s, 3 s left",
        "9,000 of 10,000 messages, 750/s, 1 s left",
    ]


def test_a_stall_on_a_terminal() -> None:
    """The bar claims no time left while work stalls, and the old rate when it moves again."""
    shown_at = {second: lines(STALLED[: second + 1], terminal=True) for second in (6, 40, 65)}
    for second, parts in (
        (6, ("1,000 messages/s", "0:00:04")),
        (40, (" 0 messages/s", "-:--:--")),
        (65, ("1,000 messages/s", "0:00:03")),
    ):
        last = [line for line in shown_at[second] if "messages/s" in line][-1]
        assert all(part in last for part in parts), last


def test_moves_in_bursts() -> None:
    """A thousand messages every two seconds, looked at ten times a second, are 500 a second."""
    said = lines((tenth / 10, 1000 * (tenth // 20)) for tenth in range(200))
    # The first burst began a tenth of a second before it was seen, for all that is known.
    assert said[-1] == f"7,000 of 10,000 messages, {7000 / 12.1:,.0f}/s, 5 s left"


def test_slow_work_does_not_stall() -> None:
    """A message every ten seconds is a rate of its own, once a second one has told so."""
    pace = Pace()
    rates = [pace.note(second // 10, float(second)) for second in range(100)]
    assert all(0.09 < rate < 0.2 for rate in rates[40:]), rates


def test_the_rate_of_the_last_seconds() -> None:
    """Work that slows down is shown at its new rate after half a minute of moving."""
    fast, slow = Pace(), Pace()
    rates = [fast.note(10 * done, done / 1000) for done in range(100_000)]
    assert rates[-1] == pytest.approx(10_000, rel=0.01)
    assert len(fast._steps) < 40
    for second in range(100):
        rate = slow.note(1000 * min(second, 50) + max(0, second - 50), float(second))
    assert rate == pytest.approx(1.0)


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


def test_a_trouble_takes_no_room_of_the_counts() -> None:
    """At 80 columns a long sentence has lines of its own, and the counts are whole."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80)
    with Progress("delivering", console=console) as progress:
        progress.show(1234, 10_000, "no broker can be reached: " + 10 * "connection refused, ")
        progress._bar.refresh()
    assert "1234/10000" in file.getvalue()
    assert "connection refused" in file.getvalue()
