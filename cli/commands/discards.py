"""`brucectl discards`: what was received and will never be delivered, and why."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands.arguments import (
    AsJson,
    ConfigFile,
    SpoolDirectory,
    Topics,
    configured_spool,
    examples,
    file_errors,
)
from cli.terminal.errors import BadArgument

if TYPE_CHECKING:
    from cli.inspect.discards import Discarded, Example

EXAMPLES = examples(
    "brucectl discards",
    "brucectl discards --topic clicks --samples 20",
    "brucectl discards --from -1h",
    "brucectl discards --reason too_large --json | jq '.discards[].messages'",
)
_SHOWN_BYTES = 60


def discards(
    *,
    topic: Topics = None,
    reason: Annotated[
        list[str] | None,
        typer.Option("--reason", metavar="R", help="Only this reason; repeatable. See bruce-spool(5)."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Only what was still being discarded at this time or later: ISO 8601, or -30m, -2h, -7d.",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", min=0, metavar="N", help="Show N samples for each topic and reason.")
    ] = 1,
    spool: SpoolDirectory = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Show what was discarded since the spool began, by topic and reason, with samples. Nothing is written.

    Columns: topic, reason, messages, how many of them are in the dead-letter topic, first and last time.
    Malformed messages have no topic. Samples are first bytes of datagrams, as they were received. `brucectl
    replay --discards` sends again what the discard file has.

    Then the discards at intake by sender: uid, user, reason, messages. With --topic or --from they are left
    out: neither is kept by sender.

    With --json one document: version (1), discards (topic, reason, messages, dead_lettered, first, last),
    senders (sender, reason, messages; see brucectl-status), samples (sequence, topic, reason, time, data);
    times are UTC, null: not known; bytes that are not UTF-8 are in base64, under topic_base64, data_base64.

    Counts are those since the spool began, with --from, too: when each message was discarded is not kept.
    """
    from cli.inspect.discards import as_document, list_discards, newest, user_name
    from cli.inspect.records import parse_bound
    from cli.terminal.output import say, show_json, show_rows, terminal
    from spool.format.wire import Reason, reason_name
    from spool.native.kernel import interpret_at_first
    from spool.words import REASONS

    reasons = frozenset(reason or ())
    if unknown := reasons - {reason_name(known) for known in Reason}:
        raise BadArgument(f"there is no reason {min(unknown)!r}; bruce-spool(5) has them all")
    names = frozenset(name.encode(errors="surrogateescape") for name in topic or ())
    start = parse_bound("--from", since, time.time_ns()) if since else None
    if start and not start.is_time:
        raise BadArgument(f"--from {since}: expected a time, such as 2026-03-01T12:00:00 or -2h")
    directory = configured_spool(spool, config)
    interpret_at_first()
    with file_errors():
        found = list_discards(directory, names, reasons, start.value if start else 0)
    if as_json:
        show_json(as_document(found, samples))
        return
    heads = ("topic", "reason", "messages", "dead-lettered", "first", "last")
    rows = [_columns(row) for row in found.discards]
    show_rows(heads, rows, clip=("topic",), spare=("first", "dead-lettered"))
    if rows and terminal():
        say("")
        show_rows(
            ("reason", "why"), sorted({(row.reason, REASONS.get(row.reason, "-")) for row in found.discards})
        )
    if found.senders:
        typer.echo()
        rows = [(row.sender, user_name(row.sender), row.reason, row.messages) for row in found.senders]
        show_rows(("uid", "user", "reason", "messages"), rows)
    if shown := newest(found.examples, samples):
        typer.echo()
        show_rows(
            ("topic", "reason", "time", "sequence", "first bytes"),
            [_example(one) for one in shown],
            clip=("topic", "first bytes"),
            spare=("sequence",),
        )


def _columns(row: Discarded) -> tuple[object, ...]:
    from cli.terminal.output import topic_name

    times = (_time(row.first_ns), _time(row.last_ns))
    return topic_name(row.topic) or "-", row.reason, row.messages, row.dead_lettered, *times


def _example(one: Example) -> tuple[object, ...]:
    from cli.terminal.output import printable, topic_name

    number = "-" if one.sequence is None else str(one.sequence)
    data = printable(one.data[:_SHOWN_BYTES])
    return topic_name(one.topic) or "-", one.reason, _time(one.time_ns), number, data


def _time(ns: int) -> str:
    from spool.words import utc

    return utc(ns) if ns else "-"
