"""`brucectl witness run`: an audit that never sleeps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from cli.commands.arguments import ConfigFile, examples
from cli.commands.jobs import Spools, demand, going_on, kafka_properties, spool_paths, stop_signals
from cli.terminal.errors import BadArgument

if TYPE_CHECKING:
    from cli.config.config import Config
    from pipeline.witness.run import Place

HELP = "Watch Kafka for what is missing, without an end."
RUN_EXAMPLES = examples(
    "brucectl witness run",
    "brucectl witness run '/srv/spools/*/bruce' --tier east=east:9092 --tier west=west:9092/east.",
    "brucectl witness run --tier kafka=kafka:9092 --tier lake=iceberg:/srv/lake",
)
_ICEBERG = "iceberg"
Tiers = Annotated[
    list[str] | None,
    typer.Option(
        "--tier",
        metavar="NAME=PLACE",
        help="HOST:PORT of a cluster, with /PREFIX if a mirror names topics so; or iceberg:DIR; repeatable.",
    ),
]
Late = Annotated[
    float, typer.Option("--late", metavar="SECONDS", min=0.0, help="A message may take so long to a tier.")
]


def run(spools: Spools = None, *, tier: Tiers = None, late: Late = 60.0, config: ConfigFile = None) -> None:
    """Read each topic of Kafka once, in passing, and compare it with what the spools delivered.

    Until SIGTERM or SIGINT. It keeps in [witness] directory which messages of each spool it has seen, and
    which twice, and a sum over each block of 4,096 messages; the sums of the spools are in their segments,
    and stay when these go. So `brucectl audit --witness` says at once what is missing, or there twice, or
    altered, long after retention took it from both sides. After a kill it goes on where it was, exactly.

    A message is late when it is delivered and not seen, and missing after --late, once the tier is read to
    the end that it had then. The first run reads what Kafka still has; if Kafka has dropped records before,
    it judges what is delivered from now on.

    With several tiers, in the order in which messages reach them, it says where a message went missing. They
    have the properties of [kafka] but for the address. A mirror that renames topics, as MirrorMaker does,
    needs its PREFIX: `west=kafka-west:9092/east.`

    An archive as an Iceberg table may be a tier: `lake=iceberg:/srv/lake`, or `lake=iceberg:CATALOG:TABLE` of
    pyiceberg's configuration. It has every committed message, also those that wait or were discarded. A
    message is missing there once the archive says that it is past it. Run the witness more often than
    snapshots are removed (`archive --compact` keeps them a day): else it says so, and reads the table again.
    That needs bruce-spool[iceberg].

    The daemon's page and /metrics on the same host, and `brucectl doctor`, show what it found. Needs
    bruce-spool[witness].
    """
    from cli.config.config import load_config

    settings = load_config(config)
    directory = directory_of(settings)
    demand("pyarrow", "pyroaring", extra="witness")
    places = places_of(settings, tier)
    from pipeline.witness.run import watch

    with going_on("watching what is delivered"):
        watch(directory, spool_paths(spools, settings), places, stop_signals(), late_s=late)


def audit_by_witness(settings: Config, paths: list[str], *, as_json: bool) -> NoReturn:
    """Print what the witness has found, and exit as it says."""
    from cli.terminal.errors import FINE, FOUND, UNREACHABLE
    from cli.terminal.output import show_json, show_rows

    directory = directory_of(settings)
    demand("pyarrow", "pyroaring", extra="witness")
    from pipeline.witness.report import COUNTS, read_report

    # The state has the address of each tier; the rest of the way is as configured.
    report = read_report(directory, paths, lambda servers: kafka_properties(settings, servers))
    if as_json:
        show_json(report.as_json())
    else:
        show_rows(("tier", "spool", "host", *COUNTS), report.cells(), spare=("host",))
        for line in report.lines():
            typer.echo(line)
    raise typer.Exit((FINE if report.tells_all else UNREACHABLE) if report.sound else FOUND)


def directory_of(settings: Config) -> Path:
    """The directory of the witness. Raises BadArgument."""
    if settings.witness.directory is None:
        raise BadArgument("no directory for a witness is configured: set [witness] directory in bruce.toml")
    return settings.witness.directory


def places_of(settings: Config, tiers: list[str] | None) -> dict[str, Place]:
    """The tiers by name, in order. Raises BadArgument, BadProperty."""
    from pipeline.witness.kafka_tier import TIER
    from pipeline.witness.kafka_tier import Place as Cluster

    if not tiers:
        return {TIER: Cluster(kafka_properties(settings, None))}
    places: dict[str, Place] = {}
    for told in tiers:
        name, _, place = told.partition("=")
        address, _, prefix = place.partition("/")
        if not name or not address or name in places:
            raise BadArgument(
                f"--tier {told!r} is no NAME=HOST:PORT, nor NAME=iceberg:DIR, with a name of its own"
            )
        lake = _lake(place)
        places[name] = lake or Cluster(kafka_properties(settings, address), prefix)
    return places


def _lake(place: str) -> Place | None:
    """The archive that iceberg:DIR or iceberg:CATALOG:TABLE names; None for a cluster.

    Raises MissingEngine.
    """
    kind, _, where = place.partition(":")
    # A host may have that name.
    if kind != _ICEBERG or not where or where.partition("/")[0].isdigit():
        return None
    demand("pyiceberg", extra="iceberg")
    from pipeline.witness.lake_tier import LakePlace

    catalog, _, table = where.partition(":")
    return LakePlace("", catalog, table) if table and "/" not in where else LakePlace(where)
