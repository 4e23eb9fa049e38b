"""A spool at a glance: a screen for people. What a pipe gets is in cli.status_lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from cli.output import NOTHING
from cli.records import printable
from cli.status_lines import behind, notes
from status.health import in_words
from status.report import Complaint, RateView, Report, RoomView
from status.snapshot import BrokerView, SenderView, Snapshot

MOST_ROWS = 8
"""Topics, and brokers, on a screen; in a pipe there are all."""
_NAME_CELLS = 26
_MIB = 1 << 20
_LONG_HOURS = 30 * 24


def show_screen(report: Report, unhealthy: Sequence[Complaint], console: Console) -> None:
    """Write it to a terminal."""
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
    yield f"{growth:+,.1f}"


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
        "disk": f"{snapshot.spool.bytes / _MIB:,.1f} MiB, delivered segments and spares included",
        "discards": ", ".join(f"{reason} {count:,}" for reason, count in snapshot.discarded.items())
        or "none",
        "senders": ", ".join(_sender(one) for one in snapshot.senders[:MOST_ROWS]) or "none",
        "workers": ", ".join(
            f"{worker.role} {worker.pid}" + (f" ({worker.restarts} restarts)" if worker.restarts else "")
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
    share = f"{room.waiting_bytes / _MIB:,.1f} of {room.capacity_bytes / _MIB:,.1f} MiB wait"
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
        table.add_row(Text(printable(topic)), f"{about}{count:,}")
    if rest := report.topics[MOST_ROWS:]:
        table.add_row(f"and {len(rest):,} more", f"{about}{sum(count for _, count in rest):,}", style="dim")
    return table


def _brokers(snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in ("broker", "state", "in flight", "behind"):
        table.add_column(head, justify="left" if head == "state" else "right", no_wrap=True)
    worst = worst_first(snapshot)
    for broker in worst[:MOST_ROWS]:
        style = None if broker.state == "healthy" else "yellow"
        counts = (f"{count:,}" for count in (broker.in_flight, behind(broker, snapshot)))
        table.add_row(str(broker.id), broker.state, *counts, style=style)
    if rest := worst[MOST_ROWS:]:
        table.add_row("", f"and {len(rest):,} more", style="dim")
    return table


def worst_first(snapshot: Snapshot) -> list[BrokerView]:
    """The brokers, those that are well at the end."""
    return sorted(snapshot.brokers, key=lambda broker: (broker.state == "healthy", broker.id))
