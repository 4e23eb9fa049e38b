"""`brucectl spark run`: deliver as a stream."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import ConfigFile, examples
from cli.commands.spark.options import (
    BootstrapServers,
    Conf,
    Master,
    Spools,
    complain_of_damage,
    going_on,
    job_session,
    kafka_properties,
    missing_topics,
    name_page,
    spool_paths,
)

if TYPE_CHECKING:
    from pipeline.sending import Sent

EXAMPLES = examples(
    "brucectl spark run /var/lib/bruce",
    "brucectl spark run '/mnt/fleet/*/bruce' --config bruce.toml --master spark://boss:7077",
)


def run(
    spools: Spools = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="End when what is there now is delivered.")] = False,
    bootstrap_servers: BootstrapServers = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a batch.")] = False,
    master: Master = None,
    conf: Conf = None,
    config: ConfigFile = None,
) -> None:
    """Deliver what spools hold and take in, of one host or a fleet, until it is interrupted.

    One streaming query does a delivery worker's work, for hosts whose daemon has [dispatch] engine = "spark"
    or lends delivery meanwhile. It may be killed and started again: what was delivered stands in the marks.
    Messages of topics that Kafka does not have wait for unknown_topic_seconds.
    Prints a line a batch; with --json a document of version 1, as brucectl
    spark drain has it.
    """
    from cli.config import load_config
    from cli.output import show_json

    def show(sent: Sent) -> None:
        if as_json:
            show_json(sent.as_json())
        else:
            typer.echo(_sentence(sent))

    settings = load_config(config)
    options = dataclasses.replace(settings.dispatch, kafka=kafka_properties(settings, bootstrap_servers))
    paths = spool_paths(spools, settings)
    with job_session(master, conf, bar=False) as session:
        from pipeline.run import run_stream

        def deliver() -> None:
            run_stream(session, paths, options, settings.partitioners, show, once=once)

        complain_of_damage(paths)
        if once:
            name_page(session)
            deliver()
        else:
            with going_on(session, "delivering what is there, and what comes,"):
                deliver()


def _sentence(sent: Sent) -> str:
    done = f"{sent.delivered:,} of {sent.messages:,} messages delivered in {sent.seconds:.1f} s"
    done += "".join(f", {count:,} refused ({reason})" for reason, count in sent.refused.items())
    return done + (f", {sent.left:,} left{missing_topics(sent.unknown_messages)}" if sent.left else "")
