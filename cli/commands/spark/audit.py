"""`brucectl spark audit`: what became of every message."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.arguments import ConfigFile, examples
from cli.commands.spark.options import (
    BootstrapServers,
    Conf,
    Master,
    Spools,
    job_session,
    kafka_properties,
    spool_paths,
)

EXAMPLES = examples(
    "brucectl spark audit /var/lib/bruce --bootstrap-servers kafka1:9092",
    "brucectl spark audit '/mnt/fleet/*/bruce' --config /etc/bruce/bruce.toml --json",
)


def audit(
    spools: Spools = None,
    *,
    bootstrap_servers: BootstrapServers = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="Only this topic; may be given again. Else all in the spools.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    master: Master = None,
    conf: Conf = None,
    config: ConfigFile = None,
) -> None:
    """Count what became of every message in a spool: compare it with what is in Kafka, one by one.

    Each message is delivered once, duplicated, discarded (the daemon said why), backlog (not delivered
    yet), or lost. Of those in Kafka it tells which are altered, and which came behind a later one with the
    same partition key. Foreign records are in Kafka only. Exits 1 when anything is lost or altered, or
    cannot be read in the spool. Needs Java 17, and records that carry the header bruce-id.
    """
    from cli.config import load_config
    from cli.exits import FINE, FOUND
    from cli.output import show_json, show_rows

    settings = load_config(config)
    properties = kafka_properties(settings, bootstrap_servers)
    with job_session(master, conf) as session:
        from pipeline.audit import COUNTS
        from pipeline.runner import run_audit

        report = run_audit(session, spool_paths(spools, settings), properties, topic)
    if as_json:
        show_json(report.as_json())
    else:
        counts = [*report.topics.items(), ("all", report.total)]
        show_rows(["topic", *COUNTS], [[name, *(found[count] for count in COUNTS)] for name, found in counts])
        typer.echo(report.sentence())
    raise typer.Exit(FINE if report.sound else FOUND)
