"""`brucectl status`: one look, whether or not the daemon lives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import exits
from cli.arguments import AsJson, ConfigFile, SpoolDirectory, examples, file_errors

if TYPE_CHECKING:
    from spool.options import SpoolOptions

EXAMPLES = examples(
    "brucectl status",
    "brucectl status --json | jq -r '.unhealthy[].sentence'",
    "brucectl status --max-age 1h --full-within 4h    # as a check of Nagios, or of a systemd timer",
    "sh -c 'brucectl status || exit 2'                # the same, CRITICAL and not WARNING to Nagios",
    "brucectl status --spool /mnt/dead-host/var/lib/bruce",
)


def status(
    *,
    spool: SpoolDirectory = None,
    max_age: Annotated[
        str, typer.Option(metavar="TIME", help="Unhealthy when a message waits for longer: 30s, 15m, 2h.")
    ] = "15m",
    full_within: Annotated[
        str, typer.Option(metavar="TIME", help="Unhealthy when at this rate the spool is full sooner.")
    ] = "1h",
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Show what an operator needs to know, on one screen; exits with 1 when the spool is unhealthy.

    Counts, rates of the last minute and quarter of an hour, watermarks, the oldest undelivered message, how
    long there is room at this rate, the backlog by topic, brokers, discards by reason, workers, and in
    words what is wrong. Watermarks are the next sequence number that is not yet accepted, written, synced,
    delivered. A broker is behind by what was stored since the first message that waits for it, whoever that
    is meant for. Topics marked ~ are estimated: a broker has been away for long.

    All but rates, brokers and workers comes from the spool's files: it is right with the daemon dead, too.
    Nothing is written.

    Each line that begins with "unhealthy" is one of these conditions: stopped (no daemon is running),
    release (one of another release than brucectl is, whose workers, brokers and rates cannot be seen), worker
    (a process of it is not running), trouble (nothing can be sent, or not to some topics), old (a message
    waits for longer than --max-age), full (no room, or a quota is used up), filling (full within
    --full-within at this rate), discards (messages were discarded in the last quarter of an hour), disk (the
    disk has refused something, does not give what is stored, or has no file where a segment should be), marks
    (they cannot be read). A broker that is away is none; what waits for it becomes old.

    Unhealthy is exit code 1, which Nagios and its kin call WARNING: sh -c 'brucectl status || exit 2' makes
    it CRITICAL.

    With --json one document of version 1: taken, healthy, unhealthy (condition, sentence), spool, watermarks,
    received, delivered, discarded, backlog, full, disk, workers, brokers, trouble, dead_lettered,
    acknowledgements, lent, unadopted, held, rates, topics, topics_estimated, oldest, room, last_trouble.
    """
    from cli.output import show_json, show_rows, terminal
    from cli.report import look_once
    from cli.span import parse_length
    from cli.status_lines import status_lines
    from spool.kernel import interpret_at_first
    from status.health import Limits, complaints

    limits = Limits(parse_length("--max-age", max_age), parse_length("--full-within", full_within))
    directory, options = configured(spool, config)
    interpret_at_first()
    with file_errors():
        report = look_once(directory, options)
    unhealthy = complaints(report, limits)
    if as_json:
        show_json(report.as_json(unhealthy))
    elif (console := terminal()) and console.is_terminal:
        from cli.status_view import show_screen

        show_screen(report, unhealthy, console)
    else:
        show_rows((), status_lines(report, unhealthy))
    raise typer.Exit(exits.FOUND if unhealthy else exits.FINE)


def configured(spool: Path | None, config: Path | None) -> tuple[Path, SpoolOptions | None]:
    """The directory that is meant, and its options where it is the configured one. Raises ConfigError."""
    if spool is not None:
        return spool, None
    from cli.config import load_config

    options = load_config(config).spool
    return options.directory, options
