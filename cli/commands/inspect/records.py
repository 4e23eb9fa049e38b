"""`brucectl inspect records`: the messages themselves."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.arguments import (
    AsJson,
    ConfigFile,
    Since,
    SpoolDirectory,
    Topics,
    Until,
    examples,
)
from cli.commands.inspect.options import Files, Limit, NoValues

EXAMPLES = examples(
    "brucectl inspect records --limit 20",
    "brucectl inspect records --from -2h --topic clicks --json | jq .value",
    "brucectl inspect records --follow --topic orders",
    "brucectl inspect records --no-values /mnt/dead-host/00000000000000450560.seg",
)


def records(
    files: Files = None,
    *,
    spool: SpoolDirectory = None,
    since: Since = None,
    until: Until = None,
    topic: Topics = None,
    limit: Limit = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what is committed from now on, or from --from on.")
    ] = False,
    no_values: NoValues = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Print messages in the order of the log, delivered ones that are still kept included.

    One line each, its columns separated by tabs: sequence number, when it was received, topic, partition key,
    timestamp, key, value; then "not committed" where a power loss could still take it. With --json one object
    a line: sequence, received (UTC, to the ns), topic, partition_key, timestamp (the sender's, in ms), key
    (null: none), value, uid, pid, committed (null: no index says so); what is not UTF-8 stands in base64
    under topic_base64, key_base64, value_base64. With --no-values the lengths stand there instead, under
    key_bytes and value_bytes.

    Exits with 1 when something on the way could not be read; all else is printed nevertheless.
    """
    from cli.commands.inspect.printing import print_records
    from cli.span import parse_span

    print_records(
        files,
        spool,
        config,
        span=parse_span(since, until, topic or ()),
        limit=limit,
        values=not no_values,
        as_json=as_json,
        on_and_on=follow,
    )
