"""How far long work is: a bar on a terminal, a plain line now and then elsewhere. On standard error."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
)
from rich.progress import Progress as Bar
from rich.text import Text

from cli.terminal.output import error_console

LINE_S = 5.0
"""Between two lines, where there is no terminal."""
STALL_S = 5.0
"""So long without a move is a stall, and no part of the rate; where moves are rare, thrice their distance."""
WINDOW_S = 30.0
"""The last seconds of moving, which tell the rate."""
_STEP_S = 1.0
"""Moves within it are one step of the window."""


class Show(Protocol):
    """A function that is called with how much is done, of how much, and in one sentence why it stalls."""

    def __call__(self, done: int, total: int, trouble: str = "") -> None: ...


class _Elapsed(ProgressColumn):
    """The time so far. Rich's own column stops whenever all known work is done."""

    def render(self, task: Task) -> Text:
        return Text(_in_hours(task.elapsed or 0), style="progress.elapsed")


class _Bar(Bar):
    """Rich's, with a line of its own for why it stalls: beside it, that would take the room of the counts."""

    trouble = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """The lines, from top to bottom."""
        yield from super().get_renderables()
        if self.trouble:
            yield Text(self.trouble, style="red")


def _in_hours(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


class Pace:
    """How fast work goes on, by its last moves."""

    def __init__(self) -> None:
        """Work that is done before the first call of `note` says nothing of the rate."""
        self._steps: deque[tuple[float, int]] = deque()
        """Seconds, and the amount that was done within them."""
        self._done: int | None = None
        self._seen, self._moved = 0.0, -math.inf
        """When it was looked at last, and when there was more."""
        self._gap = 0.0
        """Between the last two moves."""

    def note(self, done: int, now: float) -> float:
        """Take note of what is done, and return the rate; 0.0 while it stalls."""
        if self._done is not None and done > self._done:
            # Behind a stall, only the time since the last look belongs to the move.
            gap = now - self._moved
            self._add(now - self._seen if self._stalls(self._seen) else gap, done - self._done)
            self._moved, self._gap = now, gap if math.isfinite(gap) else 0.0
        self._done, self._seen = done, now
        seconds = sum(seconds for seconds, _ in self._steps)
        if not seconds or self._stalls(now):
            return 0.0
        return sum(amount for _, amount in self._steps) / seconds

    def _stalls(self, now: float) -> bool:
        return now - self._moved >= max(STALL_S, 3 * self._gap)

    def _add(self, seconds: float, amount: int) -> None:
        if self._steps and self._steps[-1][0] < _STEP_S:
            before, more = self._steps.pop()
            seconds, amount = before + seconds, more + amount
        self._steps.append((seconds, amount))
        while sum(seconds for seconds, _ in self._steps) - self._steps[0][0] >= WINDOW_S:
            self._steps.popleft()


class Progress:
    """The progress of one piece of work; a context manager."""

    def __init__(
        self,
        what: str,
        unit: str = "messages",
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        paced: bool = True,
    ) -> None:
        """`paced`: what is done and how fast tells how long it will take. Else the time so far is shown."""
        self._unit, self._console, self._clock = unit, console or error_console(), clock
        self._told, self._pace = clock(), Pace()
        left = TextColumn("{task.fields[left]}", style="progress.remaining")
        ahead = (
            # Rich's own column for the time left counts stalls, too.
            (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), left)
            if paced
            # More may become known: all that is known being done is not the end.
            else (BarColumn(finished_style="bar.complete"), TextColumn("{task.fields[count]}"), _Elapsed())
        )
        self._bar = _Bar(
            TextColumn("{task.description}"),
            *ahead,
            console=self._console,
            transient=True,
            # Else results that go into a file would be shown above the bar, and not be in the file.
            redirect_stdout=sys.stdout.isatty(),
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=None, rate="", left="", count="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, done: int, total: int, trouble: str = "") -> None:
        """Show how much is done, of how much, and why not more. Cheap enough to be called at any time."""
        now = self._clock()
        # The expected total is a guess if files are packed, or still grow.
        total = max(total, done)
        rate = self._pace.note(done, now)
        left_s = (total - done) / rate if rate else None
        self._bar.update(
            self._task,
            completed=done,
            total=total,
            rate=f"{rate:,.0f} {self._unit}/s",
            left="-:--:--" if left_s is None else _in_hours(left_s),
            count=f"{done:,} of {total:,} {self._unit}",
        )
        self._bar.trouble = trouble
        if not self._console.is_terminal and now - self._told >= LINE_S:
            self._told = now
            left = "" if left_s is None else f", {left_s:,.0f} s left"
            line = f"{done:,} of {total:,} {self._unit}, {rate:,.0f}/s{left}" + f"; {trouble}" * bool(trouble)
            self._console.out(line, highlight=False)
