"""`brucectl inspect segments`: which files a log consists of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cli import exits
from cli.arguments import AsJson, ConfigFile, SpoolDirectory, configured_spool, examples, file_errors
from cli.commands.inspect.options import Files, segment_files

if TYPE_CHECKING:
    from spool.overview import Overview

VERSION = 1
EXAMPLES = examples(
    "brucectl inspect segments",
    "brucectl inspect segments --json | jq '.segments[] | select(.state != \"sent\")'",
    "brucectl inspect segments /mnt/dead-host/*.seg",
)


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
    from cli.output import complain, show_json, show_rows
    from spool.identity import read_identity
    from spool.layout import Layout
    from spool.overview import State, overview, segment_paths

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
        heads = ("file", "state", "number", "first", "next", "messages", "MiB", "last received", "topics")
        show_rows(heads, map(_row, found))
    for one in found:
        if one.trouble:
            complain(one.trouble)
    raise typer.Exit(exits.FOUND if any(one.state is State.DAMAGED for one in found) else exits.FINE)


def _document(directory: Path | None, found: list[Overview]) -> dict[str, Any]:
    from cli.records import as_text, as_utc

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


def _row(one: Overview) -> tuple[object, ...]:
    from cli.output import NOTHING
    from cli.records import as_local, printable

    names = [printable(name) for name, _ in sorted(one.topics, key=lambda topic: -topic[1])]
    more = f" and {len(names) - _TOPICS} more" if len(names) > _TOPICS else ""
    shown = ", ".join(names[:_TOPICS]) + more
    return (
        one.path.name,
        one.state.value + (", packed" if one.packed else ""),
        *(
            NOTHING if n is None else n
            for n in (one.number, one.first_sequence, one.next_sequence, one.messages)
        ),
        round(one.disk_bytes / (1 << 20), 1),
        as_local(one.last_received_ns) if one.last_received_ns else NOTHING,
        shown or NOTHING,
    )


_TOPICS = 3
"""Shown of one segment: those with most messages."""
