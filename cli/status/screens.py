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

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions, Group, RenderableType
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
_NAME_CELLS, _LEAST_NAME_CELLS = 26, 10
"""Of a topic, which alone is cut: as many as that, and at least these where the numbers need the room."""
_TABLES_GAP = 4
_ANY_WIDTH = 10_000
_LONG_HOURS = 30 * 24
KEY_HELP = "q quit   p pause   sort by: r rate, b backlog, n name"
_NARROW = 80
_LEAST_SPARK, _MOST_SPARK = 10, 60
_TOP_NAME_CELLS, _NUMBER_CELLS, _COLUMNS_GAP = 20, 9, 2
_STYLES = {"into": "cyan", "out": "green"}
_LEVELS = " ▁▂▃▄▅▆▇"
"""Of a line: none as high as the row, so that it does not touch the one above."""
_AT_ONCE = 64
_CC = 6
"""The index of the control characters in the result of tcgetattr."""


def show_screen(report: Report, unhealthy: Sequence[Complaint], console: Console) -> None:
    """Write the screen of `brucectl status` to a terminal."""
    for part in _screen(report, unhealthy, console):
        console.print(part, highlight=False)


def _screen(report: Report, unhealthy: Sequence[Complaint], console: Console) -> Iterator[RenderableType]:
    view = report.snapshot.spool
    yield Text.assemble(("spool ", "dim"), (view.directory, "bold"), (f"  {view.uuid}", "dim"))
    for one in unhealthy:
        yield Text(f"unhealthy: {one.sentence}", style="bold red")
    if not unhealthy:
        yield Text("healthy", style="bold green")
    yield Text()
    yield _figures(report, console)
    yield Text()
    yield _facts(report)
    if report.topics or report.snapshot.brokers:
        yield Text()
        yield _side_by_side(console, _topics(report), _brokers(report.snapshot))
    for sentence in notes(report):
        yield Text()
        yield Text(sentence, style="yellow")


def _figures(report: Report, console: Console) -> Table:
    snapshot = report.snapshot
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column()
    for head in ("received", "delivered", "discarded", "backlog"):
        table.add_column(head, justify="right", overflow="fold")
    totals = (snapshot.received, snapshot.delivered, sum(snapshot.discarded.values()), snapshot.backlog)
    table.add_row("in all", *(f"{total:,}" for total in totals), style="bold")
    table.add_row("a second, 1 min", *_rates(report.minute))
    table.add_row("a second, 15 min", *_rates(report.quarter_hour))
    if _cells(console, table) > console.width:
        table.padding = (0, 1, 0, 0)
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
        **_witness(report),
    }
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, fact in facts.items():
        table.add_row(name, Text(fact))
    return table


def _witness(report: Report) -> dict[str, str]:
    if not report.witness or not report.witness.tiers:
        return {}
    tiers = (
        f"{tier.tier}: {tier.verdict.words} ({tier.verdict.judged:,} judged)"
        for tier in report.witness.tiers[:MOST_ROWS]
    )
    return {"witness": ", ".join(tiers)}


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


def _side_by_side(console: Console, topics: Table, brokers: Table) -> RenderableType:
    """Numbers are whole: names of topics are cut for them, and if that is not enough, brokers are below."""
    tables = [table for table in (topics, brokers) if table.rows]
    width = sum(_cells(console, table) + _TABLES_GAP for table in tables) - _TABLES_GAP
    if len(tables) > 1 and not _narrow(topics, width - console.width):
        _narrow(topics, _cells(console, topics) - console.width)
        return Group(topics, Text(), brokers)
    grid = Table.grid(padding=(0, _TABLES_GAP, 0, 0))
    grid.add_row(*tables)
    return grid


def _narrow(topics: Table, cells: int) -> bool:
    """Take these from the names, if they have so many to give, and say whether they have."""
    name = topics.columns[0]
    own, least = name.width or 0, name.min_width or 0
    enough = own - max(0, cells) >= min(own, least)
    if enough:
        name.width = own - max(0, cells)
    return enough


def _cells(console: Console, table: Table) -> int:
    """The width of a table that has all the room it needs."""
    return console.measure(table, options=console.options.update(width=_ANY_WIDTH)).maximum


def _topics(report: Report) -> Table:
    table = Table(box=None, pad_edge=False)
    about = "~" if report.topics_estimated else ""
    rows = [(Text(topic_name(topic)), f"{about}{count:,}", "") for topic, count in report.topics[:MOST_ROWS]]
    least = _LEAST_NAME_CELLS
    if rest := report.topics[MOST_ROWS:]:
        more = Text(f"and {len(rest):,} more")
        rows.append((more, f"{about}{sum(count for _, count in rest):,}", "dim"))
        least = max(least, more.cell_len)
    widest = max((name.cell_len for name, *_ in rows), default=0)
    width = min(_NAME_CELLS, max(widest, cell_len("topic")))
    table.add_column("topic", no_wrap=True, overflow="ellipsis", width=width, min_width=least)
    table.add_column("backlog", justify="right", overflow="fold")
    for name, count, style in rows:
        table.add_row(name, count, style=style)
    return table


def _brokers(snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in ("broker", "state", "in flight", "waits from"):
        table.add_column(head, justify="left" if head == "state" else "right", overflow="fold")
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
        _top_topics(top, report, room - (brokers + 2 if brokers > 0 else 0), spark, size.width),
    ]
    if brokers > 0:
        parts += [Text(), _top_brokers(top, report, brokers, spark, size.width)]
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
    discarded = f"discarded {sum(snapshot.discarded.values()):,}"
    for sentence in (
        f"backlog {snapshot.backlog:,}, {oldest}; {discarded}",
        f"room {room_in_words(report.room)}",
    ):
        yield from map(Text, wrap(sentence, width))
    for one in unhealthy:
        yield from (Text(line, style="red") for line in wrap(f"unhealthy: {one.sentence}", width))


def _line(width: int, *parts: tuple[str, str]) -> Text:
    line = Text.assemble(*parts, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line


def _top_topics(top: Top, report: Report, most: int, spark: int, width: int) -> Table:
    names, waiting = top.sorted_topics(), top.backlog()
    shown = names if len(names) <= most else names[: max(0, most - 1)]
    about = "~" if report.topics_estimated else ""
    rows: list[list[Text]] = []
    for name in shown:
        flow = top.topics.get(name) or Flow()
        into, out = flow.newest
        rows.append(
            [
                Text(topic_name(name)),
                Text(f"{about}{waiting.get(name, 0):,}"),
                Text(f"{into:,.0f}"),
                _spark(flow.into, spark, "into"),
                Text(f"{out:,.0f}"),
                _spark(flow.out, spark, "out"),
            ]
        )
    least = _LEAST_NAME_CELLS
    if rest := len(names) - len(shown):
        rows.append([Text(f"and {rest:,} more", style="dim")])
        least = max(least, rows[-1][0].cell_len)
    return _table(("topic", "backlog", "in/s", "", "out/s", ""), rows, spark, width, least)


def _top_brokers(top: Top, report: Report, most: int, spark: int, width: int) -> Table:
    brokers = report.snapshot.brokers
    shown = some_brokers(report.snapshot, most if len(brokers) <= most else max(0, most - 1))
    rows: list[list[Text]] = []
    for broker in shown:
        flow = top.brokers.get(broker.id) or Flow()
        rows.append(
            [
                Text(f"{broker.id} {broker.state}", style="" if broker.state == "healthy" else "yellow"),
                Text(f"{broker.in_flight:,}"),
                Text(_waits_from(broker, report.snapshot)),
                Text(" "),
                Text(f"{flow.newest[1]:,.0f}"),
                _spark(flow.out, spark, "out"),
            ]
        )
    if rest := len(brokers) - len(shown):
        rows.append([Text(f"and {rest:,} more", style="dim")])
    least = max((row[0].cell_len for row in rows), default=0)
    return _table(("broker", "in flight", "waits from", "", "out/s", ""), rows, spark, width, least)


def _table(heads: Sequence[str], rows: Sequence[Sequence[Text]], spark: int, width: int, least: int) -> Table:
    """A name, then numbers, which are whole; columns without a head are charts.

    Charts, at first, give room to the numbers, then names, down to `least`, and then all of the charts.
    """
    numbers = {
        at: max(_NUMBER_CELLS, cell_len(head), *(row[at].cell_len for row in rows if at < len(row)))
        for at, head in enumerate(heads)
        if at and head
    }
    charts = len(heads) - 1 - len(numbers)
    room = width - sum(numbers.values()) - _COLUMNS_GAP * (len(heads) - 1)
    name = max(least, min(_TOP_NAME_CELLS, room - charts * min(spark, _LEAST_SPARK)))
    spark = max(1, min(spark, (room - name) // charts))
    table = Table(box=None, pad_edge=False, padding=(0, _COLUMNS_GAP, 0, 0), header_style="dim")
    table.add_column(heads[0], no_wrap=True, overflow="ellipsis", width=name)
    for at, head in enumerate(heads[1:], 1):
        if at in numbers:
            table.add_column(head, justify="right", overflow="fold", width=numbers[at])
        else:
            # A line that ends in nothing ends in blanks, which justifying to the right would take away.
            table.add_column(head, no_wrap=True, width=spark)
    for row in rows:
        table.add_row(*(cell if at in {0, *numbers} else cell[-spark:] for at, cell in enumerate(row)))
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
