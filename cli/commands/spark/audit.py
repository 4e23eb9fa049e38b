"""`brucectl spark audit`: what became of every message."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands.arguments import ConfigFile, examples, file_errors
from cli.commands.spark.options import (
    BootstrapServers,
    Conf,
    Master,
    Spools,
    job_session,
    kafka_properties,
    spool_paths,
)

if TYPE_CHECKING:
    from pipeline.audit_report import Report

EXAMPLES = examples(
    "brucectl spark audit /var/lib/bruce --bootstrap-servers kafka1:9092",
    "brucectl spark audit '/mnt/fleet/*/bruce' --config /etc/bruce/bruce.toml --json",
    "brucectl spark audit --by hour --by host --parquet audit.parquet",
)


class Dimension(StrEnum):
    """A dimension that counts are grouped by."""

    PARTITION = "partition"
    HOUR = "hour"
    HOST = "host"


def audit(
    spools: Spools = None,
    *,
    bootstrap_servers: BootstrapServers = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="Only this topic; may be given again. Else all in the spools.")
    ] = None,
    by: Annotated[
        list[Dimension] | None,
        typer.Option("--by", metavar="WHAT", help="Also by partition, hour or host; repeatable."),
    ] = None,
    unstamped: Annotated[
        bool, typer.Option("--unstamped", help="Tell records by topic, key, value and time, not by bruce-id.")
    ] = False,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="Write the counts to this file, too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    master: Master = None,
    conf: Conf = None,
    config: ConfigFile = None,
) -> None:
    """Count what became of every message in a spool: compare it with what is in Kafka, one by one.

    Each message is delivered once, duplicated, discarded (the daemon said why), backlog (not delivered
    yet), withheld (in Kafka, behind a transaction that is open), expired (delivered, and Kafka has dropped
    records of its age since), or lost. Of those in Kafka it tells which are altered, which came behind a
    later one with the same partition key (reordered), and which are in another partition than the
    partitioners of the configuration choose (misplaced; known for spools with marks, and not where a function
    of your own chooses). Foreign records are in Kafka only. Exits 1 when anything is lost or altered, or
    cannot be read in the spool; an audit that cannot be finished exits 4. Needs Java 17.

    Unreadable messages are those that damage or EIO hides: where Kafka has them, they count by topic. On a
    terminal a second table has each message in one row, and their sum.

    Records are identified by their header bruce-id. With --unstamped by their contents: of messages that are
    alike, as many are delivered as there are records; a message that was altered then counts as lost, and its
    record as foreign.

    Kafka is read by Spark's own connector where the session has its jars (--conf spark.jars=...) and can be
    told the [kafka] properties that lead to the brokers; else by bruce's own source.

    With --json one document of version 1; bruce-json(5) has it.
    """
    from cli.config.config import load_config
    from cli.terminal.errors import FINE, FOUND
    from cli.terminal.output import show_json, show_rows, terminal

    settings = load_config(config)
    properties = kafka_properties(settings, bootstrap_servers)
    with job_session(master, conf) as session:
        from pipeline.audit_job import AuditOptions, run_audit

        partitioner, dimensions = settings.dispatch.partitioner, list(dict.fromkeys(by or ()))
        options = AuditOptions(topic, dimensions, unstamped, partitioner, settings.partitioners)
        report = run_audit(session, spool_paths(spools, settings), properties, options)
    if parquet:
        with file_errors():
            report.write_parquet(str(parquet))
    if as_json:
        show_json(report.as_json())
    else:
        idle = [name for name, count in report.total.items() if not count]
        heads = ("topic", *report.by, *report.total)
        show_rows(heads, _rows(report), clip=("topic",), spare=(*idle, "stored"))
        if terminal():
            typer.echo()
            show_rows(("each message once", "messages"), report.rows())
            typer.echo()
        for line in report.explanations():
            typer.echo(line)
        typer.echo(report.sentence())
    raise typer.Exit(FINE if report.sound else FOUND)


def _rows(report: Report) -> list[list[object]]:
    """The groups, of which those whose topics are shown alike are one row, and their sum."""
    from cli.terminal.output import NOTHING, topic_name

    groups: dict[tuple[object, ...], Counter[str]] = {}
    for group in report.groups:
        named = (topic_name(group["topic"]), *(group[dimension] for dimension in report.by))
        groups.setdefault(named, Counter()).update({name: group[name] for name in report.total})
    groups["all", *[None] * len(report.by)] = Counter(report.total)
    return [
        [*(NOTHING if cell is None else cell for cell in named), *(counts[name] for name in report.total)]
        for named, counts in groups.items()
    ]
