"""`brucectl spark drain`: deliver what spools hold; `brucectl spark run`: do so as a stream."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands.arguments import ConfigFile, Timeout, examples
from cli.commands.jobs import (
    BootstrapServers,
    Spools,
    complain_of_damage,
    going_on,
    interruptible,
    kafka_properties,
    spool_paths,
)
from cli.commands.spark.options import Conf, Master, job_session, missing_topics, name_page
from cli.terminal import errors

if TYPE_CHECKING:
    from pipeline.delivery.sending import Sent
    from pipeline.session import Session

EXAMPLES = examples(
    "brucectl spark drain /var/lib/bruce",
    "brucectl spark drain '/mnt/fleet/*/bruce' --config bruce.toml --master spark://boss:7077",
)
RUN_EXAMPLES = examples(
    "brucectl spark run /var/lib/bruce",
    "brucectl spark run '/mnt/fleet/*/bruce' --config bruce.toml --master spark://boss:7077",
)


def drain(
    spools: Spools = None,
    *,
    bootstrap_servers: BootstrapServers = None,
    timeout: Timeout = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    master: Master = None,
    conf: Conf = None,
    config: ConfigFile = None,
) -> None:
    """Deliver what spools hold, of one host or a fleet: everything committed when this began.

    A daemon that lives goes on taking messages in, and lends delivery while this runs. Messages keep the
    order of their partition key; each task writes down what it delivered, so that no daemon sends it again.
    It can be interrupted at any time: run it again, or leave the rest to the daemon. Messages that Kafka will
    never take go to dead_letter_topic, or are discarded with their reason, and kept in the discard_file of
    the daemon that lives, or of this configuration where none does. Executors write to the spools'
    `delivery/outcomes`.

    A topic that Kafka does not have is waited for, for unknown_topic_seconds; then its messages are left as
    they are: no drain discards them. They are the daemon's, or the next drain's, once the topic is there; the
    daemon, and brucectl spark run, give them up in the end, as configured.

    Unreadable ranges (EIO) are skipped and named; their messages stay as they are, for the next drain, or the
    daemon, to deliver when the disk gives them.

    With --json one document of version 1: messages, topics (messages by name), delivered, refused (by
    reason), left, unknown (topics that Kafka does not have), seconds, unread (segments that the disk gives an
    error for), unknown_messages (messages of those topics, by name). Exits with 1 when messages are left, or
    a segment cannot be read, or its header is damaged.
    """
    from cli.config.config import load_config
    from cli.terminal.output import complain, show_json
    from pipeline.spark_release import check_requirements

    settings = load_config(config)
    options = dataclasses.replace(settings.dispatch, kafka=kafka_properties(settings, bootstrap_servers))
    paths = spool_paths(spools, settings)
    check_requirements()
    with interruptible(), ExitStack() as stack:
        from pipeline.delivery.drain import run_drain

        def start() -> Session:
            return stack.enter_context(job_session(master, conf))

        result = run_drain(start, paths, options, settings.partitioners, timeout_s=timeout)
    if as_json:
        show_json(result.as_json())
    else:
        typer.echo(f"{'not ' if result.left else ''}drained: {_done(result)}{_left(result)}")
    for place in result.unread:
        complain(f"{place}: what could not be read of it was left as it is; see to the disk, and drain again")
    if complain_of_damage(paths) or result.left or result.unread:
        raise typer.Exit(errors.FOUND)


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
    or lends delivery meanwhile. It may be killed and started again: the marks have what was delivered.
    Messages of topics that Kafka does not have wait for unknown_topic_seconds.
    Prints a line a batch; with --json a document of version 1, as brucectl
    spark drain has it.
    """
    from cli.config.config import load_config
    from cli.terminal.output import show_json

    def show(sent: Sent) -> None:
        if as_json:
            show_json(sent.as_json())
        else:
            typer.echo(_done(sent) + _left(sent))

    settings = load_config(config)
    options = dataclasses.replace(settings.dispatch, kafka=kafka_properties(settings, bootstrap_servers))
    paths = spool_paths(spools, settings)
    with job_session(master, conf, bar=False) as session:
        from pipeline.delivery.run import run_stream

        def deliver() -> None:
            run_stream(session, paths, options, settings.partitioners, show, once=once)

        complain_of_damage(paths)
        if once:
            name_page(session)
            deliver()
        else:
            name_page(session)
            with going_on("delivering what is there, and what comes,"):
                deliver()


def _done(sent: Sent) -> str:
    from spool.words import counted, reason_in_words

    done = f"{sent.delivered:,} of {counted(sent.messages, 'message')} delivered in {sent.seconds:.1f} s"
    refused = (f", {count:,} refused as {reason_in_words(reason)}" for reason, count in sent.refused.items())
    return done + "".join(refused)


def _left(sent: Sent) -> str:
    """The end of a sentence, with what is left; empty if nothing is."""
    return f", {sent.left:,} left{missing_topics(sent.unknown_messages)}" if sent.left else ""
