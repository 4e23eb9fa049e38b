"""`brucectl spark drain`: deliver what spools hold."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from cli import exits
from cli.arguments import ConfigFile, examples
from cli.commands.spark.options import (
    BootstrapServers,
    Conf,
    Master,
    Spools,
    complain_of_damage,
    job_session,
    kafka_properties,
    missing_topics,
    spool_paths,
)

if TYPE_CHECKING:
    from pipeline.sending import Sent

EXAMPLES = examples(
    "brucectl spark drain /var/lib/bruce",
    "brucectl spark drain '/mnt/fleet/*/bruce' --config bruce.toml --master spark://boss:7077",
)


def drain(
    spools: Spools = None,
    *,
    bootstrap_servers: BootstrapServers = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Give up after so many seconds; else never.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    master: Master = None,
    conf: Conf = None,
    config: ConfigFile = None,
) -> None:
    """Deliver what spools hold, of one host or a fleet: everything committed when this began.

    A daemon that lives goes on taking messages in, and lends delivery for as long as this runs. Messages
    keep the order of their partition key; each task writes down what it delivered, so that no daemon sends
    it again. It can be interrupted at any time: run it again, or leave the rest to the daemon. Messages that
    Kafka will never take go to dead_letter_topic, or are discarded with their reason, and kept in the
    discard_file of the daemon that lives, or of this configuration where none does. Executors write to the
    spools' `delivery/outcomes`.

    A topic that Kafka does not have is waited for, for unknown_topic_seconds; then its messages are left as
    they are: no drain discards them. They are the daemon's, or the next drain's, once the topic is there; the
    daemon, and brucectl spark run, give them up in the end, as configured.

    What the disk gives an error for is passed by and named; its messages stay as they are, for the next
    drain, or the daemon, to deliver when the disk gives them.

    With --json one document of version 1: messages, topics (messages by name), delivered, refused (by
    reason), left, unknown (topics that Kafka does not have), seconds, unread (segments that the disk gives an
    error for), unknown_messages (messages of those topics, by name). Exits with 1 when messages are left, or
    a segment cannot be read, or its header is damaged.
    """
    from cli.config import load_config
    from cli.output import complain, show_json

    settings = load_config(config)
    options = dataclasses.replace(settings.dispatch, kafka=kafka_properties(settings, bootstrap_servers))
    paths = spool_paths(spools, settings)
    with job_session(master, conf) as session:
        from pipeline.drain import run_drain

        result = run_drain(session, paths, options, settings.partitioners, timeout_s=timeout)
    if as_json:
        show_json(result.as_json())
    else:
        typer.echo(_sentence(result))
    for place in result.unread:
        complain(f"{place}: what could not be read of it was left as it is; see to the disk, and drain again")
    if complain_of_damage(paths) or result.left or result.unread:
        raise typer.Exit(exits.FOUND)


def _sentence(result: Sent) -> str:
    done = f"{result.delivered:,} of {result.messages:,} messages delivered in {result.seconds:.1f} s"
    done += "".join(f", {count:,} refused ({reason})" for reason, count in result.refused.items())
    if not result.left:
        return f"drained: {done}"
    return f"not drained: {done}, {result.left:,} left{missing_topics(result.unknown_messages)}"
