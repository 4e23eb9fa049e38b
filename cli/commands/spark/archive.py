"""`brucectl spark archive`: the spools of a fleet to Parquet, on a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.commands.archive import Compact, Continuous, Run, run
from cli.commands.arguments import AsJson, ConfigFile, examples
from cli.commands.jobs import Spools, spool_paths
from cli.commands.spark.options import Conf, Master, job_session, name_page

EXAMPLES = examples(
    "brucectl spark archive '/mnt/fleet/*/bruce' --to /srv/archive --continuous --compact",
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
    compact: Compact = False,
    continuous: Continuous = False,
    as_json: AsJson = False,
    master: Master = None,
    conf: Conf = None,
    config: ConfigFile = None,
) -> None:
    """Add what is new in the spools of a fleet to an archive, on Spark: brucectl archive, on a cluster.

    The files, the report and the exit codes are those of brucectl-archive(1). Needs Java 17.

    With --json the document of brucectl archive, version 1.
    """
    from cli.config.config import load_config

    paths = spool_paths(spools, load_config(config))
    with job_session(master, conf, bar=not continuous) as session:
        from pipeline.archive.spark import SparkFiles
        from pipeline.job import explained
        from pipeline.spark_engine import SparkEngine

        with explained():
            files = SparkFiles(session, to)
        if continuous:
            name_page(session)
        run(SparkEngine(session), files, paths, Run(compact, continuous, as_json))
