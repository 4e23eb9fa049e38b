"""A screen of `brucectl top`, as large as the terminal is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

from rich.console import ConsoleDimensions, Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from cli.chart import sparkline
from cli.records import printable
from cli.status_lines import behind
from cli.status_view import room_in_words, worst_first
from cli.top import Flow, Top
from status.health import Limits, complaints, in_words
from status.report import Report

KEYS = "q quit   p pause   sort by: r rate, b backlog, n name"
_NARROW = 80
_LEAST_SPARK, _MOST_SPARK = 10, 60
_NAME_CELLS, _NUMBER_CELLS = 20, 9
_STYLES = {"into": "cyan", "out": "green"}


def screen(top: Top, size: ConsoleDimensions) -> RenderableType:
    """What to show in a terminal of this size."""
    if top.last is None:
        return Text("looking ...")
    report = top.last.report
    spark = min(_MOST_SPARK, _LEAST_SPARK + max(0, size.width - _NARROW) // 2)
    head = list(_head(top, report, size.width))
    # Beside the rows of tables: a blank line and a head for each, and the keys.
    room = size.height - len(head) - 3
    brokers = min(len(report.snapshot.brokers), (room - 2) // 3)
    parts: list[RenderableType] = [
        *head,
        Text(),
        _topics(top, report, room - (brokers + 2 if brokers > 0 else 0), spark),
    ]
    if brokers > 0:
        parts += [Text(), _brokers(top, report, brokers, spark)]
    parts.append(_keys(top))
    return Group(*parts)


def _keys(top: Top) -> Text:
    how = ("PAUSED", "bold yellow") if top.paused else (f"(by {top.order.value})", "dim")
    return Text.assemble((f"{KEYS}   ", "dim"), how, no_wrap=True)


def _head(top: Top, report: Report, width: int) -> Iterator[Text]:
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


def _topics(top: Top, report: Report, most: int, spark: int) -> Table:
    table = _table(("topic", "backlog", "in/s", "", "out/s", ""), spark)
    names, waiting = top.sorted_topics(), top.backlog()
    shown = names if len(names) <= most else names[: max(0, most - 1)]
    about = "~" if report.topics_estimated else ""
    for name in shown:
        flow = top.topics.get(name) or Flow()
        into, out = flow.newest
        table.add_row(
            Text(printable(name)),
            f"{about}{waiting.get(name, 0):,}",
            f"{into:,.0f}",
            _line_of(flow.into, spark, "into"),
            f"{out:,.0f}",
            _line_of(flow.out, spark, "out"),
        )
    if rest := len(names) - len(shown):
        table.add_row(Text(f"and {rest:,} more", style="dim"))
    return table


def _brokers(top: Top, report: Report, most: int, spark: int) -> Table:
    table = _table(("broker", "in flight", "behind", "", "out/s", ""), spark)
    brokers = worst_first(report.snapshot)
    shown = brokers if len(brokers) <= most else brokers[: max(0, most - 1)]
    for broker in shown:
        flow = top.brokers.get(broker.id) or Flow()
        table.add_row(
            Text(f"{broker.id} {broker.state}", style="" if broker.state == "healthy" else "yellow"),
            f"{broker.in_flight:,}",
            f"{behind(broker, report.snapshot):,}",
            "",
            f"{flow.newest[1]:,.0f}",
            _line_of(flow.out, spark, "out"),
        )
    if rest := len(brokers) - len(shown):
        table.add_row(Text(f"and {rest:,} more", style="dim"))
    return table


def _table(heads: Sequence[str], spark: int) -> Table:
    """A name, then numbers; columns without a head are charts."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(heads[0], no_wrap=True, overflow="ellipsis", width=_NAME_CELLS)
    for head in heads[1:]:
        # A line that ends in nothing ends in blanks, which justifying to the right would take away.
        justify: JustifyMethod = "right" if head else "left"
        table.add_column(head, justify=justify, no_wrap=True, min_width=_NUMBER_CELLS if head else spark)
    return table


def _line_of(values: Iterable[float], spark: int, way: str) -> Text:
    return Text(sparkline(values, spark), style=_STYLES[way])
