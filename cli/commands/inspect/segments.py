"""`brucectl inspect segments`, `frames` and `timeline`: what a log consists of, without the messages."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands.arguments import (
    AsJson,
    ConfigFile,
    Files,
    Limit,
    Since,
    SpoolDirectory,
    Until,
    configured_spool,
    examples,
    file_errors,
    segment_files,
)
from cli.terminal import errors

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from cli.inspect.records import Committed
    from spool.format.segment_format import Record
    from spool.read.overview import Overview, Timeline

VERSION = 1
"""Of the documents of `segments` and `timeline`."""
_TOPICS = 3
"""Shown of one segment: those with most messages."""
EXAMPLES = examples(
    "brucectl inspect segments",
    "brucectl inspect segments --json | jq '.segments[] | select(.state != \"sent\")'",
    "brucectl inspect segments /mnt/dead-host/*.seg",
)
FRAMES_EXAMPLES = examples(
    "brucectl inspect frames --limit 20",
    "brucectl inspect frames --json | jq 'select(.discarded > 0)'",
    "brucectl inspect frames /mnt/dead-host/00000000000000450560.seg",
)
TIMELINE_EXAMPLES = examples(
    "brucectl inspect timeline",
    "brucectl inspect timeline --from -2h --step 1m",
    "brucectl inspect timeline --json /mnt/dead-host/*.seg",
)
MOST = 40
"""Intervals of a chart: a screen."""
MOST_WITH_STEP = 100_000
WIDTH = 40
"""Characters of the longest bar."""
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FULL = "█"


def segments(
    files: Files = None, *, spool: SpoolDirectory = None, as_json: AsJson = False, config: ConfigFile = None
) -> None:
    """List segment files: state, sequence numbers, messages, bytes of disk, times of reception, topics.

    States: spare (nothing in it yet), open (no footer: in use, or left so by a crash), sealed, sent (all in
    it is resolved), damaged (its header cannot be read). Only headers, footers and the index are read.

    With --json one document of version 1: spool (null for files), segments: path, state, packed, disk_bytes,
    number, first_sequence, next_sequence, messages, first_received, last_received, topics
    (topic, messages). Null: not known.
    Exits with 1 when a header is damaged.
    """
    from cli.terminal.output import complain, show_json
    from spool.index.identity import read_identity
    from spool.layout import Layout
    from spool.read.overview import State, overview, segment_paths

    with file_errors():
        if files:
            directory, found = None, list(overview(segment_files(files, spool, config), None))
        else:
            directory = configured_spool(spool, config)
            layout = Layout(directory)
            read_identity(layout)
            found = list(overview(segment_paths(layout), layout))
    if as_json:
        show_json(_document(directory, found))
    else:
        _show(found)
    for one in found:
        if one.trouble:
            complain(one.trouble)
    raise typer.Exit(errors.FOUND if any(one.state is State.DAMAGED for one in found) else errors.FINE)


def _document(directory: Path | None, found: list[Overview]) -> dict[str, Any]:
    from cli.terminal.output import as_text, as_utc

    return {
        "version": VERSION,
        "spool": None if directory is None else str(directory),
        "segments": [
            {
                "path": str(one.path),
                "state": one.state.value,
                "packed": one.packed,
                "disk_bytes": one.disk_bytes,
                "number": one.number,
                "first_sequence": one.first_sequence,
                "next_sequence": one.next_sequence,
                "messages": one.messages,
                "first_received": as_utc(one.first_received_ns) if one.first_received_ns else None,
                "last_received": as_utc(one.last_received_ns) if one.last_received_ns else None,
                "topics": [{**as_text("topic", name), "messages": count} for name, count in one.topics],
            }
            for one in found
        ],
    }


def _show(found: list[Overview]) -> None:
    """A table; spares, which have nothing in them yet, are a line below it."""
    from cli.terminal.output import FILE, say, show_rows, terminal
    from spool.read.overview import State
    from spool.words import counted, size_in_words

    heads = (FILE, "state", "number", "first", "next", "messages", "disk", "last received", "topics")
    spares = [one for one in found if one.state is State.SPARE] if terminal() else []
    rows = (_row(one) for one in found if one not in spares)
    show_rows(heads, rows, clip=(FILE, "topics"), spare=("number", "next", "first"))
    if spares:
        held = size_in_words(sum(one.disk_bytes for one in spares))
        say(f"and {counted(len(spares), 'empty spare')}: {held}")


def _row(one: Overview) -> tuple[object, ...]:
    from cli.terminal.output import NOTHING, size_cell, topic_name
    from spool.words import utc

    names = [topic_name(name) for name, _ in sorted(one.topics, key=lambda topic: -topic[1])]
    more = f" and {len(names) - _TOPICS} more" if len(names) > _TOPICS else ""
    shown = ", ".join(names[:_TOPICS]) + more
    return (
        one.path.name,
        one.state.value + (", packed" if one.packed else ""),
        *(
            NOTHING if n is None else n
            for n in (one.number, one.first_sequence, one.next_sequence, one.messages)
        ),
        size_cell(one.disk_bytes),
        utc(one.last_received_ns) if one.last_received_ns else NOTHING,
        shown or NOTHING,
    )


def frames(
    files: Files = None,
    *,
    spool: SpoolDirectory = None,
    limit: Limit = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Print every frame: one burst of the intake, as it was written.

    One line each: file, byte, first sequence number, messages, datagrams refused, bytes of body, when it was
    received, number of the burst, flags; "not committed" where a power loss could still take it. With --json
    one object a line: path, offset, first_sequence, messages, discarded, body_bytes, received, burst, xxh3,
    salvaged, poison, committed (null: no index says so).

    Exits with 1 when something on the way could not be read.
    """
    from cli.inspect.records import Committed
    from cli.terminal.output import complain, show_lines
    from spool.layout import Layout

    troubles = itertools.count()

    def note(sentence: str) -> None:
        next(troubles)
        complain(sentence)

    with file_errors():
        paths = segment_files(files, spool, config)
        committed = Committed(None if files else Layout(configured_spool(spool, config)))
        found = itertools.islice(_frames(paths, committed, note, fleeting=not files), limit)
        show_lines(map(json.dumps if as_json else _line, found), cut=not as_json)
    raise typer.Exit(errors.FOUND if next(troubles) else errors.FINE)


def _frames(
    paths: list[Path], committed: Committed, damaged: Callable[[str], None], *, fleeting: bool
) -> Iterator[dict[str, Any]]:
    from spool.errors import BadSpool
    from spool.read.files import Unreadable, of_segment, read_frames

    def of_file(path: Path) -> Iterator[dict[str, Any]]:
        try:
            for found in read_frames(path):
                if isinstance(found, Unreadable):
                    damaged(found.sentence)
                    continue
                for offset, head in zip(found[0].tolist(), found[1], strict=True):
                    yield _frame(path, offset, head, committed)
        except BadSpool as error:
            damaged(f"{error}")

    for path in paths:
        yield from of_segment(of_file, path) if fleeting else of_file(path)


def _frame(path: Path, offset: int, head: Record, committed: Committed) -> dict[str, Any]:
    from cli.terminal.output import as_utc
    from spool.format.segment_format import POISON, SALVAGED

    first, flags = int(head["first_sequence"]), int(head["flags"])
    return {
        "path": str(path),
        "offset": offset,
        "first_sequence": first,
        "messages": int(head["count"]),
        "discarded": int(head["discarded"]),
        "body_bytes": int(head["body_bytes"]),
        "received": as_utc(int(head["received_ns"])),
        "burst": int(head["burst"]),
        "xxh3": f"{int(head['digest']):016x}",
        "salvaged": bool(flags & SALVAGED),
        "poison": bool(flags & POISON),
        "committed": committed.covers(first),
    }


def _line(one: dict[str, Any]) -> str:
    words = [name for name in ("salvaged", "poison") if one[name]]
    words += ["not committed"] if one["committed"] is False else []
    names = ("offset", "first_sequence", "messages", "discarded", "body_bytes", "received", "burst")
    return "\t".join([Path(one["path"]).name, *(str(one[name]) for name in names), ", ".join(words) or "-"])


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
    from cli.inspect.records import parse_length, parse_span
    from cli.terminal.errors import BadArgument
    from cli.terminal.output import complain, show_json
    from spool.read import overview as times

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
        show_json(_timeline(found))
    else:
        _chart(found)
    raise typer.Exit(errors.FOUND if next(troubles) else errors.FINE)


def _timeline(found: Timeline) -> dict[str, Any]:
    from cli.terminal.output import as_utc

    columns = (found.start_ns, found.messages, found.bytes, found.discarded)
    return {
        "version": VERSION,
        "step_seconds": found.step_s,
        "intervals": [
            {"start": as_utc(start), "messages": messages, "bytes": size, "discarded": discarded}
            for start, messages, size, discarded in zip(*(column.tolist() for column in columns), strict=True)
        ],
    }


def _chart(found: Timeline) -> None:
    from cli.terminal.output import complain, room_beside, show_rows, size_cell
    from spool.words import utc

    if not len(found.start_ns):
        complain("nothing was received in that time, or nothing of it is kept")
        return
    heads = ("from", "messages", "a second", "size", "refused")
    rows = list(
        zip(
            (utc(start) for start in found.start_ns.tolist()),
            found.messages.tolist(),
            (found.messages / found.step_s).round(1).tolist(),
            map(size_cell, found.bytes.tolist()),
            found.discarded.tolist(),
            strict=True,
        )
    )
    chart = bars(found.messages, room_beside(heads, rows, WIDTH))
    # As wide as its widest bar: without a head.
    show_rows((*heads, ""), [(*row, bar) for row, bar in zip(rows, chart, strict=True)])


def bars(values: npt.NDArray[np.int64], width: int = WIDTH) -> list[str]:
    """One bar for each value, the longest `width` characters long; any value above 0 shows.

    `values`: int64[n].
    """
    import numpy as np

    most = max(int(values.max(initial=0)), 1)
    eighths = np.ceil(values * (8 * width / most)).astype(int).tolist()
    return [(_FULL * (n // 8) + _EIGHTHS[n % 8]).rstrip() for n in eighths]
