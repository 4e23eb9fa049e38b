"""Screens for a terminal: the screen of `brucectl status`, the screen and the keys of `brucectl top`.

A pipe gets the lines of cli.status.report.
"""

from __future__ import annotations

import math
import os
import select
import signal
import termios
import tty
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from types import FrameType, TracebackType
from typing import NoReturn, Self

from rich.console import Console, ConsoleDimensions, Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from cli.status.figures import Flow, Top
from cli.status.report import first_waiting, notes
from cli.terminal.output import NOTHING, topic_name
from spool.words import counted, reason_in_words, size_in_words
from status.health import Limits, complaints, in_words
from status.report import BrokerView, Complaint, RateView, Report, RoomView, SenderView, Snapshot

MOST_ROWS = 8
"""Topics, and brokers, on a screen; a pipe gets all."""
_NAME_CELLS = 26
_LONG_HOURS = 30 * 24
KEY_HELP = "q quit   p pause   sort by: r rate, b backlog, n name"
_NARROW = 80
_LEAST_SPARK, _MOST_SPARK = 10, 60
_TOP_NAME_CELLS, _NUMBER_CELLS = 20, 9
_STYLES = {"into": "cyan", "out": "green"}
_LEVELS = " ▁▂▃▄▅▆▇"
"""Of a line: none as high as the row, so that it does not touch the one above."""
_AT_ONCE = 64
_CC = 6
"""The index of the control characters in the result of tcgetattr."""


def show_screen(report: Report, unhealthy: Sequence[Complaint], console: Console) -> None:
    """Write the screen of `brucectl status` to a terminal."""
    for part in _screen(report, unhealthy):
        console.print(part, highlight=False)


def _screen(report: Report, unhealthy: Sequence[Complaint]) -> Iterator[RenderableType]:
    view = report.snapshot.spool
    yield Text.assemble(("spool ", "dim"), (view.directory, "bold"), (f"  {view.uuid}", "dim"))
    for one in unhealthy:
        yield Text(f"unhealthy: {one.sentence}", style="bold red")
    if not unhealthy:
        yield Text("healthy", style="bold green")
    yield Text()
    yield _figures(report)
    yield Text()
    yield _facts(report)
    if report.topics or report.snapshot.brokers:
        yield Text()
        yield _side_by_side(_topics(report), _brokers(report.snapshot))
    for sentence in notes(report):
        yield Text()
        yield Text(sentence, style="yellow")


def _figures(report: Report) -> Table:
    snapshot = report.snapshot
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column()
    for head in ("received", "delivered", "discarded", "backlog"):
        table.add_column(head, justify="right")
    totals = (snapshot.received, snapshot.delivered, sum(snapshot.discarded.values()), snapshot.backlog)
    table.add_row("in all", *(f"{total:,}" for total in totals), style="bold")
    table.add_row("a second, 1 min", *_rates(report.minute))
    table.add_row("a second, 15 min", *_rates(report.quarter_hour))
    return table


def _rates(rate: RateView | None) -> Iterator[str]:
    if rate is None:
        yield from [NOTHING] * 4
        return
    growth = rate.received - rate.delivered - rate.discarded
    yield from (f"{value:,.1f}" for value in (rate.received, rate.delivered, rate.discarded))
    yield f"{round(growth, 1) + 0.0:+,.1f}"


def _facts(report: Report) -> Table:
    snapshot, oldest = report.snapshot, report.oldest
    marks = snapshot.watermarks
    facts = {
        "watermarks": f"accepted {marks.accepted:,}  written {marks.written:,}  "
        f"synced {marks.synced:,}  delivered {marks.delivered:,}",
        "oldest": f"{in_words(oldest.age_seconds)}: message {oldest.sequence} of {oldest.received}"
        if oldest
        else "nothing waits",
        "room": room_in_words(report.room),
        "disk": f"{size_in_words(snapshot.spool.bytes)}, delivered segments and spares included",
        "discards": ", ".join(
            f"{count:,} {reason_in_words(reason)}" for reason, count in snapshot.discarded.items()
        )
        or "none",
        "senders": ", ".join(_sender(one) for one in snapshot.senders[:MOST_ROWS]) or "none",
        "workers": ", ".join(
            f"{worker.role} {worker.pid}"
            + (f" ({counted(worker.restarts, 'restart')})" if worker.restarts else "")
            for worker in snapshot.workers
        )
        or "none that can be seen; there are no rates",
    }
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, fact in facts.items():
        table.add_row(name, Text(fact))
    return table


def _sender(one: SenderView) -> str:
    refused = sum(one.discarded.values())
    named = f"uid {one.sender}" if one.sender.isdigit() else one.sender
    return f"{named} {one.received:,}" + (f" ({refused:,} refused)" if refused else "")


def room_in_words(room: RoomView | None) -> str:
    """How much of the room is taken, and for how long there will be some."""
    if room is None:
        return "not known: the daemon that says how much is not running"
    taken, capacity = size_in_words(room.waiting_bytes), size_in_words(room.capacity_bytes)
    share = f"{taken} of {capacity} used by undelivered messages"
    hours = room.hours_until_full
    if hours is None or hours > _LONG_HOURS:
        return share
    return f"{share}; full in {in_words(hours * 3600)} at this rate"


def _side_by_side(*tables: Table) -> Table:
    grid = Table.grid(padding=(0, 4, 0, 0))
    grid.add_row(*(table for table in tables if table.rows))
    return grid


def _topics(report: Report) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("topic", no_wrap=True, overflow="ellipsis", max_width=_NAME_CELLS)
    table.add_column("backlog", justify="right")
    about = "~" if report.topics_estimated else ""
    for topic, count in report.topics[:MOST_ROWS]:
        table.add_row(Text(topic_name(topic)), f"{about}{count:,}")
    if rest := report.topics[MOST_ROWS:]:
        table.add_row(f"and {len(rest):,} more", f"{about}{sum(count for _, count in rest):,}", style="dim")
    return table


def _brokers(snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in ("broker", "state", "in flight", "waits from"):
        table.add_column(head, justify="left" if head == "state" else "right", no_wrap=True)
    shown = some_brokers(snapshot, MOST_ROWS)
    for broker in shown:
        style = None if broker.state == "healthy" else "yellow"
        waits = _waits_from(broker, snapshot)
        table.add_row(str(broker.id), broker.state, f"{broker.in_flight:,}", waits, style=style)
    if rest := len(snapshot.brokers) - len(shown):
        table.add_row("", f"and {rest:,} more", style="dim")
    return table


def _waits_from(broker: BrokerView, snapshot: Snapshot) -> str:
    """The first message that waits for a broker."""
    first = first_waiting(broker, snapshot)
    return NOTHING if first is None else str(first)


def some_brokers(snapshot: Snapshot, most: int) -> list[BrokerView]:
    """At most so many brokers, by number; where that leaves some out, those that are well."""
    worst = sorted(snapshot.brokers, key=lambda broker: (broker.state == "healthy", broker.id))
    return sorted(worst[:most], key=lambda broker: broker.id)


def screen(top: Top, size: ConsoleDimensions) -> RenderableType:
    """The screen of `brucectl top` for a terminal of this size."""
    if top.last is None:
        return Text("looking ...")
    report = top.last.report
    spark = min(_MOST_SPARK, _LEAST_SPARK + max(0, size.width - _NARROW) // 2)
    head = list(_top_head(top, report, size.width))
    # Beside the rows of tables: a blank line and a head for each, and the keys.
    room = size.height - len(head) - 3
    brokers = min(len(report.snapshot.brokers), (room - 2) // 3)
    parts: list[RenderableType] = [
        *head,
        Text(),
        _top_topics(top, report, room - (brokers + 2 if brokers > 0 else 0), spark),
    ]
    if brokers > 0:
        parts += [Text(), _top_brokers(top, report, brokers, spark)]
    parts.append(_key_line(top))
    return Group(*parts)


def _key_line(top: Top) -> Text:
    how = ("PAUSED", "bold yellow") if top.paused else (f"(by {top.order.value})", "dim")
    return Text.assemble((f"{KEY_HELP}   ", "dim"), how, no_wrap=True)


def _top_head(top: Top, report: Report, width: int) -> Iterator[Text]:
    snapshot = report.snapshot
    unhealthy = complaints(report, Limits())
    health = ("unhealthy", "bold red") if unhealthy else ("healthy", "bold green")
    yield _line(
        width,
        ("bruce ", "dim"),
        (snapshot.spool.directory, "bold"),
        ("  ", ""),
        health,
        (f"  {report.taken}", "dim"),
    )
    into, out = top.all.newest
    spark = max(_LEAST_SPARK, min(_MOST_SPARK, (width - 46) // 2))
    yield _line(
        width,
        ("in  ", "dim"),
        (f"{into:>11,.0f}/s ", ""),
        (sparkline(top.all.into, spark), _STYLES["into"]),
        ("  out ", "dim"),
        (f"{out:>11,.0f}/s ", ""),
        (sparkline(top.all.out, spark), _STYLES["out"]),
    )
    oldest = f"oldest {in_words(report.oldest.age_seconds)}" if report.oldest else "nothing waits"
    yield _line(
        width,
        ("backlog ", "dim"),
        (f"{snapshot.backlog:,}", "bold"),
        (f", {oldest}; discarded {sum(snapshot.discarded.values()):,}", ""),
    )
    yield _line(width, ("room ", "dim"), (room_in_words(report.room), ""))
    for one in unhealthy:
        yield from (Text(line, style="red") for line in wrap(f"unhealthy: {one.sentence}", width))


def _line(width: int, *parts: tuple[str, str]) -> Text:
    line = Text.assemble(*parts, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line


def _top_topics(top: Top, report: Report, most: int, spark: int) -> Table:
    table = _table(("topic", "backlog", "in/s", "", "out/s", ""), spark)
    names, waiting = top.sorted_topics(), top.backlog()
    shown = names if len(names) <= most else names[: max(0, most - 1)]
    about = "~" if report.topics_estimated else ""
    for name in shown:
        flow = top.topics.get(name) or Flow()
        into, out = flow.newest
        table.add_row(
            Text(topic_name(name)),
            f"{about}{waiting.get(name, 0):,}",
            f"{into:,.0f}",
            _spark(flow.into, spark, "into"),
            f"{out:,.0f}",
            _spark(flow.out, spark, "out"),
        )
    if rest := len(names) - len(shown):
        table.add_row(Text(f"and {rest:,} more", style="dim"))
    return table


def _top_brokers(top: Top, report: Report, most: int, spark: int) -> Table:
    table = _table(("broker", "in flight", "waits from", "", "out/s", ""), spark)
    brokers = report.snapshot.brokers
    shown = some_brokers(report.snapshot, most if len(brokers) <= most else max(0, most - 1))
    for broker in shown:
        flow = top.brokers.get(broker.id) or Flow()
        table.add_row(
            Text(f"{broker.id} {broker.state}", style="" if broker.state == "healthy" else "yellow"),
            f"{broker.in_flight:,}",
            _waits_from(broker, report.snapshot),
            "",
            f"{flow.newest[1]:,.0f}",
            _spark(flow.out, spark, "out"),
        )
    if rest := len(brokers) - len(shown):
        table.add_row(Text(f"and {rest:,} more", style="dim"))
    return table


def _table(heads: Sequence[str], spark: int) -> Table:
    """A name, then numbers; columns without a head are charts."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(heads[0], no_wrap=True, overflow="ellipsis", width=_TOP_NAME_CELLS)
    for head in heads[1:]:
        # A line that ends in nothing ends in blanks, which justifying to the right would take away.
        justify: JustifyMethod = "right" if head else "left"
        table.add_column(head, justify=justify, no_wrap=True, min_width=_NUMBER_CELLS if head else spark)
    return table


def _spark(values: Iterable[float], spark: int, way: str) -> Text:
    return Text(sparkline(values, spark), style=_STYLES[way])


def sparkline(values: Iterable[float], width: int) -> str:
    """The last `width` values, a character each, scaled to the highest of all; any value above 0 shows."""
    known, levels = list(values), len(_LEVELS) - 1
    most = max(known, default=0) or 1
    shown = known[-width:] if width > 0 else []
    # The highest may come out a little above itself.
    heights = (min(levels, math.ceil(max(value, 0) / most * levels)) for value in shown)
    return "".join(_LEVELS[height] for height in heights).rjust(width)


class Keys:
    """Single keys of the terminal behind a descriptor, as they are pressed. A context manager.

    However it ends, the terminal is as it was before.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, timeout_s: float) -> str:
        """The keys that are pressed within `timeout_s`. Raises EOFError when the terminal is gone."""
        if not select.select([self._fd], [], [], max(0.0, timeout_s))[0]:
            return ""
        pressed = os.read(self._fd, _AT_ONCE)
        if not pressed:
            raise EOFError
        return pressed.decode(errors="ignore")

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._fd)
        # SIGTERM and SIGHUP would otherwise leave the terminal as it is now.
        self._handlers = [(s, signal.signal(s, _leave)) for s in (signal.SIGTERM, signal.SIGHUP)]
        tty.setcbreak(self._fd)
        modes = termios.tcgetattr(self._fd)
        modes[_CC][termios.VSUSP] = b"\0"  # so would Ctrl-Z
        termios.tcsetattr(self._fd, termios.TCSADRAIN, modes)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        for number, handler in self._handlers:
            signal.signal(number, handler)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
