"""How far long work is: a bar on a terminal, a plain line now and then elsewhere. On standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.text import Text

from cli.terminal.output import error_console

LINE_S = 5.0
"""Between two lines, where there is no terminal."""


class Show(Protocol):
    """A function that is called with how much is done, of how much, and in one sentence why it stalls."""

    def __call__(self, done: int, total: int, trouble: str = "") -> None: ...


class _Elapsed(ProgressColumn):
    """The time so far. Rich's own column stops whenever all known work is done."""

    def render(self, task: Task) -> Text:
        minutes, seconds = divmod(int(task.elapsed or 0), 60)
        return Text(f"{minutes // 60}:{minutes % 60:02}:{seconds:02}", style="progress.elapsed")


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
        self._started = self._told = clock()
        self._before: int | None = None
        ahead = (
            (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
            if paced
            # More may become known: all that is known being done is not the end.
            else (BarColumn(finished_style="bar.complete"), TextColumn("{task.fields[count]}"), _Elapsed())
        )
        self._bar = Bar(
            TextColumn("{task.description}"),
            *ahead,
            TextColumn("{task.fields[trouble]}", style="red"),
            console=self._console,
            transient=True,
            # Else results that go into a file would be shown above the bar, and not be in the file.
            redirect_stdout=sys.stdout.isatty(),
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=None, rate="", count="", trouble="")

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
        if self._before is None or done == self._before:
            # Work that was done before the first call says nothing of the rate, nor does a wait for Kafka.
            self._before, self._started = done, now
        elapsed = now - self._started
        rate = (done - self._before) / elapsed if elapsed > 0 else 0.0
        self._bar.update(
            self._task,
            completed=done,
            total=total,
            rate=f"{rate:,.0f} {self._unit}/s",
            count=f"{done:,} of {total:,} {self._unit}",
            trouble=trouble,
        )
        if not self._console.is_terminal and now - self._told >= LINE_S:
            self._told = now
            left = f", {(total - done) / rate:,.0f} s left" if rate > 0 else ""
            line = f"{done:,} of {total:,} {self._unit}, {rate:,.0f}/s{left}" + f"; {trouble}" * bool(trouble)
            self._console.out(line, highlight=False)
