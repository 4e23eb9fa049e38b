"""`brucectl spark archive`: the spools of a fleet to Parquet, on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands.archive import AsTable, Compact, Continuous, InCatalog, Run, Table, iceberg_table, run, tell
from cli.commands.arguments import AsJson, ConfigFile, examples
from cli.commands.jobs import Spools, spool_paths
from cli.commands.spark.options import Conf, Master, job_session, name_page

if TYPE_CHECKING:
    from pipeline.archive.files import Files
    from pipeline.session import Session

EXAMPLES = examples(
    "brucectl spark archive '/mnt/fleet/*/bruce' --to /srv/archive --continuous --compact",
    "brucectl spark archive '/mnt/fleet/*/bruce' --to hdfs://namenode/bruce --compact --master yarn",
    "brucectl spark archive '/mnt/fleet/*/bruce' --table iceberg --catalog prod --to lake.bruce",
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
    table: AsTable = Table.PARQUET,
    catalog: InCatalog = None,
    compact: Compact = False,
    continuous: Continuous = False,
    as_json: AsJson = False,
    master: Master = None,
    conf: Conf = None,
    config: ConfigFile = None,
) -> None:
    """Add what is new in the spools of a fleet to an archive, on Spark: brucectl archive, on a cluster.

    The files, tables of Iceberg, the report and the exit codes are those of brucectl-archive(1), and either
    goes on with what the other has written. Needs Java 17.

    With --json the document of brucectl archive, version 1.
    """
    from cli.config.config import load_config

    paths = spool_paths(spools, load_config(config))
    how = Run(compact, continuous, as_json)
    with job_session(master, conf, bar=not continuous) as session:
        from pipeline.job import explained
        from pipeline.spark_engine import SparkEngine

        with explained():
            files = _files(session, to, table, catalog)
        if continuous:
            name_page(session)
        sound, last = run(SparkEngine(session), files, paths, how)
    tell(last, how, sound=sound)


def _files(session: Session, to: str, table: Table, catalog: str | None) -> Files:
    """Raises BadArgument, MissingEngine, JobFailed."""
    if (found := iceberg_table(to, table, catalog)) is None:
        from pipeline.archive.spark import SparkFiles

        return SparkFiles(session, to)
    from pipeline.archive.spark_iceberg import SparkIcebergFiles

    return SparkIcebergFiles(session, found)
