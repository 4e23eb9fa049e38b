"""`brucectl spark archive`: spools to Parquet."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.arguments import AsJson, ConfigFile, examples
from cli.commands.spark.options import Conf, Master, Spools, job_session, spool_paths

EXAMPLES = examples(
    "brucectl spark archive /var/lib/bruce --to /srv/archive",
    "brucectl spark archive '/mnt/fleet/*/bruce' --to hdfs://namenode/bruce --compact --master yarn",
)


def archive(
    spools: Spools = None,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="DIR", help="The archive: a directory, or an address that Hadoop knows."
        ),
    ],
    compact: Annotated[bool, typer.Option("--compact", help="Then merge small files.")] = False,
    as_json: AsJson = False,
    master: Master = None,
    conf: Conf = None,
    config: ConfigFile = None,
) -> None:
    """Add what is new in spools to an archive: Parquet files by topic and day.

    They are named as DIR/topic=orders/date=2026-11-21/*.parquet. Every committed message comes in once,
    delivered or not: how far each spool is archived stands in DIR, so the command can be repeated at any
    time, and after it was killed. A row has all that the message has, as its sender wrote it; the day is that
    of its reception, in UTC. Kafka is not asked. Exits 1 when messages could
    not be read in the spool. Needs Java 17.
    """
    from cli.config import load_config
    from cli.exits import FINE, FOUND
    from cli.output import show_json, show_rows

    settings = load_config(config)
    with job_session(master, conf) as session:
        from pipeline.archiving import run_archive

        report = run_archive(session, spool_paths(spools, settings), to, compact=compact)
    if as_json:
        show_json(report.as_json())
    else:
        show_rows(["topic", "messages"], report.topics.items())
        typer.echo(report.sentence())
    raise typer.Exit(FOUND if report.unreadable else FINE)
