"""`brucectl inspect`: what is in a spool, or in segment files by themselves. Nothing is ever written."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import exits
from cli.arguments import (
    AsJson,
    ConfigFile,
    Since,
    SpoolDirectory,
    Topics,
    Until,
    configured_spool,
    examples,
    file_errors,
)
from cli.errors import BadArgument

if TYPE_CHECKING:
    from spool.examination import Totals
    from spool.finding import Finding

RECORDS_EXAMPLES = examples(
    "brucectl inspect records --limit 20",
    "brucectl inspect records --from -2h --topic clicks --json | jq .value",
    "brucectl inspect records --no-values /mnt/dead-host/00000000000000450560.seg",
)
VERIFY_EXAMPLES = examples(
    "brucectl inspect verify",
    "brucectl inspect verify --spool /mnt/dead-host/var/lib/bruce --json",
    "brucectl inspect verify *.seg *.sent",
)

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE]...", help="Segment files by themselves, instead of a spool."),
]


def records(
    files: Files = None,
    *,
    spool: SpoolDirectory = None,
    since: Since = None,
    until: Until = None,
    topic: Topics = None,
    limit: Annotated[int | None, typer.Option(min=0, metavar="N", help="Stop after so many.")] = None,
    no_values: Annotated[
        bool, typer.Option("--no-values", help="Show how long key and value are, not what they hold.")
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Print messages in the order of the log, delivered ones that are still kept included.

    One line each, its columns separated by tabs: sequence number, when it was received, topic, partition key,
    timestamp, key, value. With --json one object a line: sequence, received (UTC, to the ns), topic,
    partition_key, timestamp (the sender's, in ms), key (null: none), value, uid, pid; what is not UTF-8
    stands in base64 under topic_base64, key_base64, value_base64. With --no-values the lengths stand there
    instead, under key_bytes and value_bytes.

    Exits with 1 when something on the way could not be read; all else is printed nevertheless.
    """
    from cli.output import complain, show_lines
    from cli.records import as_columns, as_object, select
    from cli.span import parse_span

    damaged: list[str] = []

    def note(sentence: str) -> None:
        damaged.append(sentence)
        complain(sentence)

    span = parse_span(since, until, topic or ())
    with file_errors():
        found = itertools.islice(select(_paths(files, spool, config), span, note, fleeting=not files), limit)
        if as_json:
            show_lines((json.dumps(as_object(*one, values=not no_values)) for one in found), cut=False)
        else:
            show_lines(("\t".join(as_columns(*one, values=not no_values)) for one in found), cut=True)
    raise typer.Exit(exits.FOUND if damaged else exits.FINE)


def verify(
    files: Files = None,
    *,
    spool: SpoolDirectory = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Check every byte that bruce relies on, without changing any.

    Headers, frames, checksums, the chain of digests within and across segments, footers against what the
    frames hold, and the index, the marks and the ledger against the segments. A daemon may be at work.

    With --json one document: spool (null for files), segments, frames, messages, bytes, damaged, findings:
    path, offset, severity (damage or note), kind, sentence. Exits with 1 when something is damaged. A
    torn end, as a crash leaves it, is none.
    """
    from cli.output import show_findings, show_json
    from cli.progress import Progress
    from spool.check import Check
    from spool.disk import allocated_bytes
    from spool.finding import Severity
    from spool.layout import Layout

    if files:
        directory, paths = None, _paths(files, spool, config)
    else:
        directory = configured_spool(spool, config)
        paths = list(Layout(directory).segments.glob("*"))
    started = time.monotonic()
    with file_errors(), Progress("verifying", "bytes") as progress:
        size = sum(map(allocated_bytes, paths))
        check = Check(lambda totals: progress.show(totals.bytes, size))
        found = list(check.files(paths) if directory is None else check.spool(Layout(directory)))
    damaged = any(finding.severity is Severity.DAMAGE for finding in found)
    if as_json:
        show_json(_report(directory, check.totals, found, damaged=damaged))
    else:
        show_findings(found, check.totals, time.monotonic() - started)
    raise typer.Exit(exits.FOUND if damaged else exits.FINE)


def _report(directory: Path | None, totals: Totals, found: list[Finding], *, damaged: bool) -> dict[str, Any]:
    return {
        "spool": None if directory is None else str(directory),
        **asdict(totals),
        "damaged": damaged,
        "findings": [{**asdict(finding), "path": str(finding.path)} for finding in found],
    }


def _paths(files: list[Path] | None, spool: Path | None, config: Path | None) -> list[Path]:
    """The segment files that are meant. Raises BadArgument, NoSpool."""
    from spool.files import list_files
    from spool.identity import read_identity
    from spool.layout import Layout

    if not files:
        layout = Layout(configured_spool(spool, config))
        read_identity(layout)
        return list_files(layout)
    if spool is not None:
        raise BadArgument("give either segment files or --spool, not both")
    for path in files:
        if path.is_dir():
            raise BadArgument(f"{path} is a directory; if it is a spool, give it as --spool {path}")
    return files
