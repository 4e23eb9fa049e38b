"""`brucectl inspect records`: the messages themselves."""

from __future__ import annotations

import itertools
import json
from typing import Annotated

import typer

from cli import exits
from cli.arguments import (
    AsJson,
    ConfigFile,
    Since,
    SpoolDirectory,
    Topics,
    Until,
    examples,
    file_errors,
)
from cli.commands.inspect.options import Files, segment_files

EXAMPLES = examples(
    "brucectl inspect records --limit 20",
    "brucectl inspect records --from -2h --topic clicks --json | jq .value",
    "brucectl inspect records --no-values /mnt/dead-host/00000000000000450560.seg",
)


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
        found = itertools.islice(
            select(segment_files(files, spool, config), span, note, fleeting=not files), limit
        )
        if as_json:
            show_lines((json.dumps(as_object(*one, values=not no_values)) for one in found), cut=False)
        else:
            show_lines(("\t".join(as_columns(*one, values=not no_values)) for one in found), cut=True)
    raise typer.Exit(exits.FOUND if damaged else exits.FINE)
