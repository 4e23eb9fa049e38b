"""`brucectl spark query`: SQL over spools and archives."""

from __future__ import annotations

from itertools import chain, islice
from typing import Annotated

import typer

from cli.arguments import ConfigFile, examples
from cli.commands.spark.options import Conf, Master, Spools, job_session, spool_paths, task_bar
from cli.output import Form

EXAMPLES = examples(
    "brucectl spark query 'SELECT topic, count(*) FROM spool GROUP BY topic'",
    "brucectl spark query \"SELECT * FROM spool WHERE topic = 'orders' LIMIT 10\" --form json",
    "brucectl spark query 'SELECT count(*) FROM archive GROUP BY date' --archive /srv/archive",
)


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A question in Spark's SQL.")],
    spools: Spools = None,
    *,
    archive: Annotated[
        str | None, typer.Option("--archive", metavar="DIR", help="What the view `archive` reads.")
    ] = None,
    form: Annotated[
        Form, typer.Option("--form", metavar="FORM", help="table, json (an object a line) or csv.")
    ] = Form.table,
    master: Master = None,
    conf: Conf = None,
    config: ConfigFile = None,
) -> None:
    """Ask spools and archives in SQL: the views are `spool` and `archive`.

    A row is a message: host, spool, segment, frame_offset, sequence, received_at, created_at, timestamp_ms,
    kind, topic, partition_key, key, value, uid, pid, delivered; an archive has date, and neither segment nor
    delivered. Conditions on topic, sequence and times keep segments closed that hold nothing of it. Where
    the SQL says `damaged`, damaged ranges are rows, too. `delivered` is null where a spool's marks cannot be
    read, as of a copy in an object store. Times are UTC. Nothing can be written.

    Wrong SQL exits 2. Needs Java 17.
    """
    from cli.config import load_config
    from cli.rows import write_rows

    paths = spool_paths(spools, load_config(config))
    with job_session(master, conf, bar=False) as session:
        from pipeline.failure import explained
        from pipeline.query import query as ask
        from pipeline.query import wrong_sql

        with explained(), wrong_sql():
            found = ask(session, sql, paths, archive)
            rows = found.toLocalIterator()
            with task_bar(session):
                first = list(islice(rows, 1))
            write_rows(found.columns, chain(first, rows), form)
