"""`brucectl spark replay`: send again what spools, or an archive, still have."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from cli import exits
from cli.arguments import ConfigFile, Since, Topics, Until, examples
from cli.commands.spark.options import (
    BootstrapServers,
    Conf,
    Master,
    Spools,
    complain_of_damage,
    job_session,
    kafka_properties,
    spool_paths,
)
from cli.errors import BadArgument

if TYPE_CHECKING:
    from pipeline.sending import Sent

EXAMPLES = examples(
    "brucectl spark replay '/mnt/fleet/*/bruce' --from -2h --dry-run",
    "brucectl spark replay --archive /srv/archive --from 2026-03-01 --to 2026-03-02 --topic clicks",
)


def replay(
    spools: Spools = None,
    *,
    archive: Annotated[
        bool, typer.Option("--archive", help="What is named are archives of brucectl spark archive.")
    ] = False,
    since: Since = None,
    until: Until = None,
    topic: Topics = None,
    to_topic: Annotated[
        str | None, typer.Option("--to-topic", metavar="T", help="Send all of them to this topic instead.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be sent; send nothing.")
    ] = False,
    bootstrap_servers: BootstrapServers = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Give up after so many seconds; else never.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    master: Master = None,
    conf: Conf = None,
    config: ConfigFile = None,
) -> None:
    """Send messages to Kafka again, from any number of spools or from an archive, delivered or not.

    They go as they went at first: key, value, timestamp, header, and order within a partition; a header
    bruce-replay says when this was, in ms since the epoch. Daemons may be at work beside it: to them these
    are no new messages, and what they have delivered stays so. --from 0 sends everything that is kept.

    Prints the messages by topic. With --json one document of version 1: dry_run, messages, topics (messages
    by name), delivered, refused (by reason), left, unknown (topics that Kafka does not have), seconds. Exits
    with 1 when Kafka refused some for good, some are left, or a segment's header is damaged.
    """
    from cli.config import load_config
    from cli.output import show_json
    from cli.span import parse_span

    if since is None and until is None and not topic and not dry_run:
        raise BadArgument("say what to send again, with --from, --to or --topic; --from 0 is everything")
    if archive and not spools:
        raise BadArgument("name the archive")
    span = parse_span(since, until, topic or ())
    settings = load_config(config)
    options = dataclasses.replace(settings.dispatch, mode="at_least_once")
    if not dry_run:
        options = dataclasses.replace(options, kafka=kafka_properties(settings, bootstrap_servers))
    paths = spool_paths(spools, settings)
    with job_session(master, conf) as session:
        from pipeline.replay import asked, dry, read_again, run_replay

        stored, layouts = read_again(session, paths, archive=archive)
        wanted = asked(stored, span, to_topic)
        if dry_run:
            result = dry(wanted)
        else:
            result = run_replay(wanted, layouts, options, settings.partitioners, timeout_s=timeout)
    if as_json:
        show_json({**result.as_json(), "dry_run": dry_run})
    else:
        _show(result, dry_run=dry_run)
    damaged = not archive and complain_of_damage(paths)
    if damaged or (not dry_run and (result.left or result.refused)):
        raise typer.Exit(exits.FOUND)


def _show(result: Sent, *, dry_run: bool) -> None:
    from cli.output import complain, show_rows

    show_rows(("topic", "messages"), result.topics.items())
    for reason, count in result.refused.items():
        complain(f"{count:,} messages were refused for good: {reason}")
    if result.left and not dry_run:
        complain(f"{result.left:,} messages are left; {result.delivered:,} were sent")
