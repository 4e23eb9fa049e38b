"""`brucectl query`: SQL over spools and archives, in this process."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.commands.arguments import ConfigFile, examples
from cli.commands.jobs import ArchiveView, RowForm, Spools, demand, interruptible, spool_paths
from cli.terminal.output import Form

EXAMPLES = examples(
    "brucectl query 'SELECT topic, count(*) FROM spool GROUP BY ALL'",
    "brucectl query \"SELECT * FROM spool WHERE topic = 'orders' LIMIT 10\" --form json",
    "brucectl query 'SELECT date, count(*) FROM archive GROUP BY ALL' --archive /srv/archive",
)


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A question in DuckDB's SQL.")],
    spools: Spools = None,
    *,
    archive: ArchiveView = None,
    form: RowForm = Form.table,
    config: ConfigFile = None,
) -> None:
    """Ask the spools of this host, and archives, in SQL; the views are `spool` and `archive`.

    DuckDB answers in this process, without Java; brucectl spark query asks a fleet on a cluster. A row is a
    message: host, spool, segment, frame_offset, sequence, received_at, created_at, timestamp_ms, kind, topic,
    partition_key, to_partition (that its sender names), key, value, headers (a list of key and value), uid,
    pid, delivered; an archive has date, and neither segment nor delivered. If the SQL names `damaged` or
    `unread`, ranges that are damaged, or that the disk cannot read, are rows, too. Times are UTC.

    The SQL reads these views and no other file, and SQL that writes is refused. Wrong SQL exits 2. Needs
    bruce-spool[query].
    """
    from cli.config.config import load_config
    from cli.terminal.output import write_rows

    demand("duckdb", "pyarrow")
    from pipeline.archive.log import is_iceberg
    from pipeline.embedded.query import ask

    if archive and is_iceberg(archive):
        demand("pyiceberg", extra="iceberg")

    with interruptible(), ask(sql, spool_paths(spools, load_config(config)), archive) as answer:
        write_rows(answer.columns, answer.rows(), form)
