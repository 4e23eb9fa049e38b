"""`brucectl audit`: what became of every message."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from cli.commands.arguments import ConfigFile, examples, file_errors
from cli.commands.jobs import BootstrapServers, Spools, engine, kafka_properties, spool_paths
from cli.commands.witness import audit_by_witness
from cli.terminal.errors import BadArgument

if TYPE_CHECKING:
    from cli.config.config import Config
    from pipeline.audit_job import AuditOptions
    from pipeline.audit_report import Report

EXAMPLES = examples(
    "brucectl audit",
    "brucectl audit '/srv/spools/*/bruce' --config /etc/bruce/bruce.toml --json",
    "brucectl audit --by hour --by host --parquet audit.parquet",
    "brucectl audit --witness",
)


class Dimension(StrEnum):
    """A dimension that counts are grouped by."""

    PARTITION = "partition"
    HOUR = "hour"
    HOST = "host"


Audited = Annotated[
    list[str] | None, typer.Option(help="Only this topic; may be given again. Else all in the spools.")
]
By = Annotated[
    list[Dimension] | None,
    typer.Option("--by", metavar="WHAT", help="Also by partition, hour or host; repeatable."),
]
Unstamped = Annotated[
    bool, typer.Option("--unstamped", help="Tell records by topic, key, value and time, not by bruce-id.")
]
ToParquet = Annotated[
    Path | None, typer.Option("--parquet", metavar="FILE", help="Write the counts to this file, too.")
]
ByWitness = Annotated[
    bool, typer.Option("--witness", help="Ask the witness, which has read Kafka by now: at once.")
]
Document = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def audit(
    spools: Spools = None,
    *,
    bootstrap_servers: BootstrapServers = None,
    topic: Audited = None,
    by: By = None,
    unstamped: Unstamped = False,
    witness: ByWitness = False,
    parquet: ToParquet = None,
    as_json: Document = False,
    config: ConfigFile = None,
) -> None:
    """Count what became of every message in a spool: compare it with what is in Kafka, one by one.

    Each message is delivered once, duplicated, discarded (the daemon said why), backlog (not delivered
    yet), withheld (in Kafka, behind a transaction that is open), expired (delivered, and Kafka has dropped
    records of its age since), or lost. Of those in Kafka it tells which are altered, which came behind a
    later one with the same partition key (reordered), and which are in another partition than the
    partitioners of the configuration choose (misplaced; known for spools with marks, and not where a function
    of your own chooses). Foreign records are in Kafka only. Exits 1 when anything is lost or altered, or
    cannot be read in the spool; an audit that cannot be finished exits 4.

    Unreadable messages are those that damage or EIO hides: where Kafka has them, they count by topic. On a
    terminal a second table has each message in one row, and their sum.

    Records are identified by their header bruce-id. With --unstamped by their contents: of messages that are
    alike, as many are delivered as there are records; a message that was altered then counts as lost, and its
    record as foreign.

    DuckDB does it in this process, without Java; brucectl spark audit does the same for a fleet on a cluster.
    With --witness it reads nothing of Kafka, but asks the witness (`brucectl witness run`), in [witness]
    directory: by tier what is missing, there more than once, or altered, also where retention has taken it
    from both sides, and between which tiers it went missing. Of a block of 4,096 messages that is altered,
    it compares the messages one by one, if spool and Kafka still have them. Exits 3 when nothing is wrong
    as far as it goes, but the witness has stopped, or does not watch one of these spools.

    With --json one document of version 1; bruce-json(5) has it. Needs bruce-spool[query], with --witness
    bruce-spool[witness].
    """
    from cli.config.config import load_config

    settings = load_config(config)
    if witness:
        if topic or by or unstamped or parquet or bootstrap_servers:
            raise BadArgument("a witness has read whole topics: give --witness with SPOOL and --json alone")
        audit_by_witness(settings, spool_paths(spools, settings), as_json=as_json)
    properties = kafka_properties(settings, bootstrap_servers)
    with engine() as duckdb:
        from pipeline.audit_job import run_audit

        options = options_of(settings, topic, by, unstamped=unstamped)
        report = run_audit(duckdb, spool_paths(spools, settings), properties, options)
    tell(report, parquet, as_json=as_json)


def options_of(
    settings: Config, topics: list[str] | None, by: list[Dimension] | None, *, unstamped: bool
) -> AuditOptions:
    """The subject of an audit, and the configured partitioners."""
    from pipeline.audit_job import AuditOptions

    dimensions = list(dict.fromkeys(by or ()))
    return AuditOptions(topics, dimensions, unstamped, settings.dispatch.partitioner, settings.partitioners)


def tell(report: Report, parquet: Path | None, *, as_json: bool) -> NoReturn:
    """Print the report, and exit as it says."""
    from cli.terminal.errors import FINE, FOUND
    from cli.terminal.output import show_json, show_rows, terminal

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
