"""`brucectl archive`: spools to Parquet."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn

import typer

from cli.commands.arguments import AsJson, ConfigFile, examples
from cli.commands.jobs import Spools, demand, engine, going_on, spool_paths, stop_signals
from cli.terminal.errors import BadArgument

if TYPE_CHECKING:
    from pyiceberg.table import Table as OpenTable

    from pipeline.archive.files import Files
    from pipeline.archive.job import ArchiveReport
    from pipeline.embedded.engine import DuckEngine
    from pipeline.engine import Engine

EXAMPLES = examples(
    "brucectl archive --to /srv/archive",
    "brucectl archive --to /srv/archive --continuous --compact",
    "brucectl archive --to /srv/lake --table iceberg --continuous --compact",
)


class Table(StrEnum):
    """The form of an archive."""

    PARQUET = "parquet"
    ICEBERG = "iceberg"


AsTable = Annotated[Table, typer.Option("--table", help="As plain files, or as a table of Iceberg.")]
InCatalog = Annotated[
    str | None,
    typer.Option(
        "--catalog", metavar="NAME", help="A catalog of pyiceberg's configuration; --to names the table."
    ),
]
Compact = Annotated[bool, typer.Option("--compact", help="Then merge small files.")]
Continuous = Annotated[bool, typer.Option("--continuous", help="Go on, every 10 s, until SIGTERM or SIGINT.")]


def archive(
    spools: Spools = None,
    *,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The archive: a directory.")],
    table: AsTable = Table.PARQUET,
    catalog: InCatalog = None,
    compact: Compact = False,
    continuous: Continuous = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Add what is new in spools to an archive: Parquet files by topic and day.

    They are named as DIR/topic=orders/date=2026-11-21/*.parquet. Every committed message comes in once,
    delivered or not: DIR has how far each spool is archived, so the command can be repeated at any
    time, and after it was killed. A row has all that the message has, as its sender wrote it; the day is that
    of its reception, in UTC. Kafka is not asked.

    With --continuous it goes on with what comes, Kafka being there or not, and --compact merges now and then;
    a signal lets it finish what it is at. Exits 1 when messages could not be read in the spool, or left it
    after an earlier run and before this one ([spool] keep_delivered_hours keeps them).

    DuckDB does it in this process, without Java; brucectl spark archive does the same on a cluster, to any
    address that Hadoop knows. Either goes on with what the other has written. Needs bruce-spool[query].

    With --table iceberg DIR has the table bruce.messages, and its catalog: readers see each commit, also of a
    compaction, whole or not at all; a commit is made each minute. Iceberg's own files are not synced: it is
    for kills, not for power failures. Needs bruce-spool[iceberg].

    With --json one document of version 1, with --continuous one after the other: archive, messages, topics
    (messages by name), files, merged (small files), unreadable, missed (they left the spool), damaged
    (segments), spools (by uuid, the first sequence number that is not archived).
    """
    from cli.config.config import load_config

    paths = spool_paths(spools, load_config(config))
    how = Run(compact, continuous, as_json)
    with engine(bar=not continuous) as duckdb:
        sound, last = run(duckdb, _files(duckdb, to, table, catalog), paths, how)
    tell(last, how, sound=sound)


def _files(duckdb: DuckEngine, to: str, table: Table, catalog: str | None) -> Files:
    """Raises BadArgument, MissingEngine, JobFailed."""
    if (found := iceberg_table(to, table, catalog)) is None:
        from pipeline.embedded.archive import LocalFiles

        return LocalFiles(duckdb, to)
    from pipeline.embedded.iceberg import IcebergFiles

    return IcebergFiles(duckdb, found)


def iceberg_table(to: str, table: Table, catalog: str | None) -> OpenTable | None:
    """The table in a configured catalog, else in a directory; None for plain files.

    Raises BadArgument, MissingEngine, JobFailed.
    """
    if table is Table.PARQUET:
        if catalog:
            raise BadArgument("--catalog is for --table iceberg")
        from pipeline.archive.log import is_iceberg

        if is_iceberg(to):
            raise BadArgument(f"{to} is an Iceberg table: go on with --table iceberg, or give another folder")
        return None
    demand("pyiceberg", extra="iceberg")
    from pipeline.archive.iceberg import TABLE, configured_catalog, local_catalog, open_table

    known = configured_catalog(catalog) if catalog else local_catalog(to)
    return open_table(known, to if catalog else TABLE)


class Run(NamedTuple):
    """How an archive is written."""

    compact: bool
    continuous: bool
    as_json: bool


def run(job_engine: Engine, files: Files, paths: list[str], how: Run) -> tuple[bool, ArchiveReport | None]:
    """Archive: whether nothing was missing, and the report that is not printed yet."""
    from pipeline.archive.job import follow_archive, run_archive

    if not how.continuous:
        report = run_archive(job_engine, files, paths, compact=how.compact)
        return report.sound, report
    sound = True
    with going_on("archiving what is there, and what comes,"):
        for report in follow_archive(job_engine, files, paths, stop_signals(), compact=how.compact):
            _show(report, as_json=how.as_json)
            sound &= report.sound
    return sound, None


def tell(report: ArchiveReport | None, how: Run, *, sound: bool) -> NoReturn:
    """Print the report, if there is one, and exit."""
    from cli.terminal.errors import FINE, FOUND

    if report:
        _show(report, as_json=how.as_json)
    raise typer.Exit(FINE if sound else FOUND)


def _show(report: ArchiveReport, *, as_json: bool) -> None:
    from cli.terminal.output import show_json, show_rows, topic_name

    if as_json:
        show_json(report.as_json())
    else:
        # Two that are shown alike are one row.
        topics: Counter[str] = Counter()
        for name, count in report.topics.items():
            topics[topic_name(name)] += count
        show_rows(["topic", "messages"], topics.items(), clip=("topic",))
        typer.echo(report.sentence())
