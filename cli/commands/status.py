"""`brucectl status`: one look, whether or not the daemon lives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import ConfigFile, examples

EXAMPLES = examples(
    "brucectl status",
    "brucectl status --json | jq .backlog",
    "brucectl status --spool /mnt/dead-host/var/lib/bruce",
)


def status(
    *,
    spool: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The spool to look at; else the configured one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    config: ConfigFile = None,
) -> None:
    """Show watermarks, counts, backlog, workers and brokers of a spool.

    The figures come from the spool's files, so they are right with the daemon dead too; then no workers are
    listed. Watermarks are the next sequence number that is not yet accepted, written, synced, delivered.
    """
    from cli.output import show_json, show_status
    from cli.snapshot import take_snapshot

    directory = spool
    if directory is None:
        from cli.config import load_config

        directory = load_config(config).spool.directory
    snapshot = take_snapshot(directory)
    if as_json:
        show_json(snapshot.as_json())
    else:
        show_status(snapshot)
