"""Shared by the commands that run a job over whole spools, here or on Spark: options, and the engine."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated

import typer

from cli.terminal import errors
from cli.terminal.errors import BadArgument
from cli.terminal.output import Form

if TYPE_CHECKING:
    from cli.config.config import Config
    from pipeline.embedded.engine import DuckEngine

_LOOK_S = 0.25
Spools = Annotated[
    list[str] | None,
    typer.Argument(metavar="SPOOL", help="A directory, or a glob of several; else the configured one."),
]
ArchiveView = Annotated[
    str | None, typer.Option("--archive", metavar="DIR", help="The archive that the view `archive` reads.")
]
RowForm = Annotated[
    Form, typer.Option("--form", metavar="FORM", help="table, json (an object a line) or csv.")
]
BootstrapServers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers", metavar="HOST:PORT", help="Addresses of Kafka (default: as configured)."
    ),
]


def spool_paths(named: list[str] | None, settings: Config) -> list[str]:
    """The spools that are meant."""
    return named or [str(settings.spool.directory)]


def kafka_properties(settings: Config, bootstrap_servers: str | None) -> dict[str, str]:
    """librdkafka's properties, as configured but for the address. Raises BadArgument, BadProperty."""
    from cli.config.config import EMBEDDED
    from dispatch.options import demand_credentials

    properties = dict(settings.dispatch.kafka)
    demand_credentials(properties)
    if bootstrap_servers:
        properties.pop("metadata.broker.list", None)  # librdkafka's other name for it
        properties["bootstrap.servers"] = bootstrap_servers
    if properties.get("bootstrap.servers") == EMBEDDED:
        raise BadArgument("the embedded Kafka has another address each time; give --bootstrap-servers")
    return properties


def complain_of_damage(paths: list[str]) -> bool:
    """Name each segment that no job reads, since its header is damaged; whether there is one."""
    from cli.terminal.output import complain
    from pipeline.source.plan import list_unreadable

    unreadable = list_unreadable(paths)
    for place in unreadable:
        complain(f"{place} has a damaged header: nothing of it was read; see `brucectl inspect verify`")
    return bool(unreadable)


def demand(*packages: str, extra: str = "query") -> None:
    """Raise MissingEngine unless these, which this extra brings, are installed."""
    from pipeline.errors import MissingEngine

    if missing := [name for name in packages if not find_spec(name)]:
        without = "; the same command of brucectl spark does without" if extra == "query" else ""
        named = " and ".join(missing)
        raise MissingEngine(
            f"{named} not installed: install bruce with its extra, bruce-spool[{extra}]{without}"
        )


@contextmanager
def engine(*, bar: bool = True) -> Iterator[DuckEngine]:
    """DuckDB in this process; an interrupt ends the command with a sentence. Raises MissingEngine.

    `bar`: show on a terminal how far it is; nothing else may be written there meanwhile.
    """
    demand("duckdb", "pyarrow", "sqlframe")
    from pipeline.embedded.engine import DuckEngine

    opened = DuckEngine()
    with interruptible(), _row_bar(opened) if bar else nullcontext():
        yield opened


@contextmanager
def _row_bar(opened: DuckEngine) -> Iterator[None]:
    """On a terminal, show how many rows are read until the context ends."""
    from cli.terminal.output import error_console
    from cli.terminal.progress import Progress

    console = error_console()
    if not console.is_terminal:
        yield
        return
    ended = Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            bar.show(*opened.progress())

    with Progress("reading", "rows", console=console, paced=False) as bar:
        looking = Thread(target=look, daemon=True)
        looking.start()
        try:
            yield
        finally:
            ended.set()
            looking.join()


@contextmanager
def interruptible() -> Iterator[None]:
    """End the command with a sentence at an interrupt."""
    from cli.terminal.output import complain

    try:
        yield
    except KeyboardInterrupt:
        # Streams that are open to Spark cannot be closed in order any more, and would say so.
        sys.unraisablehook = lambda _: None
        complain("interrupted: the job has not come to its end; the same command may be given again")
        raise typer.Exit(errors.INTERRUPTED) from None


@contextmanager
def going_on(what: str) -> Iterator[None]:
    """Work that Control-C is the end of. On a terminal, say that it goes on, and that it has ended."""
    from cli.terminal.output import complain, error_console

    shown = error_console().is_terminal
    if shown:
        complain(f"{what} until Control-C")
    with suppress(KeyboardInterrupt):
        yield
    if shown:
        # Over the ^C of the terminal.
        complain("\rended: the same command goes on from here")


def stop_signals() -> Event:
    """Set by SIGTERM and SIGINT from now on."""
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
