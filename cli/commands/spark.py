"""`brucectl spark`: jobs that read whole spools, on Spark."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.arguments import ConfigFile, examples
from cli.errors import BadArgument

HELP = "Run a job over whole spools, on Spark."

AUDIT_EXAMPLES = examples(
    "brucectl spark audit /var/lib/bruce --bootstrap-servers kafka1:9092",
    "brucectl spark audit '/mnt/fleet/*/bruce' --config /etc/bruce/bruce.toml --json",
)


def audit(
    spools: Annotated[
        list[str] | None,
        typer.Argument(metavar="SPOOL", help="A directory, or a glob of several; else the configured one."),
    ] = None,
    *,
    bootstrap_servers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where Kafka is; else as configured.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="Only this topic; may be given again. Else all in the spools.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    config: ConfigFile = None,
) -> None:
    """Count what became of every message in a spool: compare it with what is in Kafka, one by one.

    Each message is delivered once, duplicated, discarded (the daemon said why), backlog (not delivered
    yet), or lost. Of those in Kafka it tells which are altered, and which came behind a later one with the
    same partition key. Foreign records are in Kafka only. Exits 1 when anything is lost or altered, or
    cannot be read in the spool. Needs Java 17, and records that carry the header bruce-id.
    """
    from cli.config import EMBEDDED, load_config
    from cli.output import show_json, show_rows
    from pipeline.requirements import check_requirements

    settings = load_config(config)
    properties = dict(settings.dispatch.kafka)
    if bootstrap_servers:
        properties.pop("metadata.broker.list", None)  # librdkafka's other name for it
        properties["bootstrap.servers"] = bootstrap_servers
    if properties.get("bootstrap.servers") == EMBEDDED:
        raise BadArgument("the embedded Kafka has another address each time; give --bootstrap-servers")
    check_requirements()

    from cli.exits import FINE, FOUND
    from pipeline.audit import COUNTS
    from pipeline.runner import run_audit
    from pipeline.session import open_session

    with open_session() as session:
        report = run_audit(session, spools or [str(settings.spool.directory)], properties, topic)
    if as_json:
        show_json(report.as_json())
    else:
        counts = [*report.topics.items(), ("all", report.total)]
        show_rows(["topic", *COUNTS], [[name, *(found[count] for count in COUNTS)] for name, found in counts])
        typer.echo(report.sentence())
    raise typer.Exit(FINE if report.sound else FOUND)
