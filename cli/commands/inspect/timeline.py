"""`brucectl inspect timeline`: when how much came in."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import exits
from cli.arguments import AsJson, ConfigFile, Since, SpoolDirectory, Until, examples, file_errors
from cli.commands.inspect.options import Files, segment_files

if TYPE_CHECKING:
    from spool.timeline import Timeline

VERSION = 1
MOST = 40
"""Intervals of a chart: a screen."""
MOST_WITH_STEP = 100_000
EXAMPLES = examples(
    "brucectl inspect timeline",
    "brucectl inspect timeline --from -2h --step 1m",
    "brucectl inspect timeline --json /mnt/dead-host/*.seg",
)


def timeline(
    files: Files = None,
    *,
    spool: SpoolDirectory = None,
    since: Since = None,
    until: Until = None,
    step: Annotated[
        str | None, typer.Option(metavar="TIME", help="Length of an interval: 10s, 5m, 1h, 1d.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Chart messages, bytes and refused datagrams over time, of what the spool still keeps.

    By when they were received. Without --step in as many intervals as a screen shows. Bytes are those of
    the stored datagrams with what is noted of their senders, before any compression.

    With --json one document of version 1: step_seconds, intervals: start (UTC), messages, bytes, discarded.
    Exits with 1 when something on the way could not be read.
    """
    from cli.errors import BadArgument
    from cli.output import complain, show_json
    from cli.span import parse_length, parse_span
    from spool import timeline as times

    seconds, troubles = parse_length("--step", step) if step else None, itertools.count()

    def note(sentence: str) -> None:
        next(troubles)
        complain(sentence)

    span = parse_span(since, until)
    most = MOST_WITH_STEP if seconds else MOST
    with file_errors():
        paths = segment_files(files, spool, config)
        try:
            found = times.timeline(paths, span, most, note, seconds, fleeting=not files)
        except times.TooManyIntervals as error:
            raise BadArgument(
                f"--step {step} cuts what is kept into {error.count:,} intervals, and {most:,} is the most: "
                "give a longer one, or --from and --to"
            ) from None
    if as_json:
        show_json(_document(found))
    else:
        _show(found)
    raise typer.Exit(exits.FOUND if next(troubles) else exits.FINE)


def _document(found: Timeline) -> dict[str, Any]:
    from cli.records import as_utc

    columns = (found.start_ns, found.messages, found.bytes, found.discarded)
    return {
        "version": VERSION,
        "step_seconds": found.step_s,
        "intervals": [
            {"start": as_utc(start), "messages": messages, "bytes": size, "discarded": discarded}
            for start, messages, size, discarded in zip(*(column.tolist() for column in columns), strict=True)
        ],
    }


def _show(found: Timeline) -> None:
    from cli.chart import WIDTH, bars
    from cli.output import complain, room_beside, show_rows
    from cli.records import as_local

    if not len(found.start_ns):
        complain("nothing was received in that time, or nothing of it is kept")
        return
    heads = ("from", "messages", "a second", "MiB", "refused")
    rows = list(
        zip(
            (as_local(start, "seconds") for start in found.start_ns.tolist()),
            found.messages.tolist(),
            (found.messages / found.step_s).round(1).tolist(),
            (found.bytes / (1 << 20)).round(1).tolist(),
            found.discarded.tolist(),
            strict=True,
        )
    )
    chart = bars(found.messages, room_beside(heads, rows, WIDTH))
    # As wide as its widest bar: without a head.
    show_rows((*heads, ""), [(*row, bar) for row, bar in zip(rows, chart, strict=True)])
