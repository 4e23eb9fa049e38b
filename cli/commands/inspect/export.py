"""`brucectl inspect export`: messages for other programs, without loss."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from cli import exits
from cli.arguments import ConfigFile, Since, SpoolDirectory, Topics, Until, examples, file_errors
from cli.commands.inspect.options import Files, Limit, segment_files
from cli.errors import BadArgument

VERSION = 1
EXAMPLES = examples(
    "brucectl inspect export --from -2h > messages.jsonl",
    "brucectl inspect export --spool /mnt/dead-host/bruce --report origin.json > messages.jsonl",
    "brucectl inspect export --datagrams /mnt/dead-host/*.seg | brucectl send --datagrams",
)


def export(
    files: Files = None,
    *,
    datagrams: Annotated[
        bool, typer.Option("--datagrams", help="The datagrams as they were received, one behind the other.")
    ] = False,
    spool: SpoolDirectory = None,
    since: Since = None,
    until: Until = None,
    topic: Topics = None,
    limit: Limit = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Write to this file where the messages come from."),
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Write messages to standard output: JSON lines as of `inspect records --json`, or original datagrams.

    A datagram begins with its length, so that a stream of them can be taken apart: `brucectl send
    --datagrams` hands them to a daemon again, as new messages. Exits with 1 when something on the way could
    not be read.

    The report of --report is a JSON document of version 1: whole (nothing on the way could not be read);
    tool, host, boot_id, made, and sha256 of the segment files.
    """
    paths = segment_files(files, spool, config)
    try:
        _export(files, spool, config, paths, since, until, topic, limit, datagrams=datagrams)
    except typer.Exit as ended:
        if report is not None:
            _write_report(report, paths, whole=ended.exit_code == exits.FINE)
        raise


def _write_report(report: Path, paths: list[Path], *, whole: bool) -> None:
    from cli.provenance import provenance

    with file_errors():
        document = {"version": VERSION, "whole": whole, **provenance(paths)}
        report.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _export(
    files: list[Path] | None,
    spool: Path | None,
    config: Path | None,
    paths: list[Path],
    since: str | None,
    until: str | None,
    topic: list[str] | None,
    limit: int | None,
    *,
    datagrams: bool,
) -> NoReturn:
    from cli.commands.inspect.printing import print_records
    from cli.output import complain
    from cli.records import select
    from cli.span import parse_span

    span = parse_span(since, until, topic or ())
    if not datagrams:
        print_records(files, spool, config, span=span, limit=limit, values=True, as_json=True)
    if sys.stdout.isatty():
        raise BadArgument("datagrams are no text: send them to a file, or to `brucectl send --datagrams`")
    troubles = itertools.count()

    def note(sentence: str) -> None:
        next(troubles)
        complain(sentence)

    with file_errors():
        found = select(paths, span, note, fleeting=not files)
        for batch, row in itertools.islice(found, limit):
            sys.stdout.buffer.write(batch.datagram(row))
        sys.stdout.buffer.flush()
    raise typer.Exit(exits.FOUND if next(troubles) else exits.FINE)
