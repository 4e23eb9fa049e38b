"""`brucectl spark query`: SQL over the spools of a fleet, and archives."""

from __future__ import annotations

from itertools import chain, islice
from typing import Annotated

import typer

from cli.commands.arguments import ConfigFile, examples
from cli.commands.jobs import ArchiveView, RowForm, Spools, spool_paths
from cli.commands.spark.options import Conf, Master, job_session, task_bar
from cli.terminal.output import Form

EXAMPLES = examples(
    "brucectl spark query 'SELECT topic, count(*) FROM spool GROUP BY topic'",
    "brucectl spark query \"SELECT * FROM spool WHERE topic = 'orders' LIMIT 10\" --form json",
    "brucectl spark query 'SELECT count(*) FROM archive GROUP BY date' --archive /srv/archive",
)


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A question in Spark's SQL.")],
    spools: Spools = None,
    *,
    archive: ArchiveView = None,
    form: RowForm = Form.table,
    master: Master = None,
    conf: Conf = None,
    config: ConfigFile = None,
) -> None:
    """Ask spools and archives in SQL: the views are `spool` and `archive`.

    A row is a message: host, spool, segment, frame_offset, sequence, received_at, created_at, timestamp_ms,
    kind, topic, partition_key, to_partition (that its sender names), key, value, headers (an array of key
    and value), uid, pid, delivered; an archive has date, and neither segment nor delivered. If the SQL names
    `damaged`, damaged ranges are rows, too. `delivered` is null if a spool's marks cannot be read, as in a
    copy in an object store. Times are UTC. SQL that writes is refused.

    Wrong SQL exits 2. Needs Java 17.
    """
    from cli.config.config import load_config
    from cli.terminal.output import write_rows

    paths = spool_paths(spools, load_config(config))
    with job_session(master, conf, bar=False) as session:
        from pipeline.job import explained
        from pipeline.spark_query import query as ask
        from pipeline.spark_query import wrong_sql

        with explained(), wrong_sql():
            found = ask(session, sql, paths, archive)
            rows = found.toLocalIterator()
            with task_bar(session):
                first = list(islice(rows, 1))
            write_rows(found.columns, chain(first, rows), form)
