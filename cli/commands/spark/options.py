"""Shared by the commands of `brucectl spark`: their options, and the session that a job runs in."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from cli.terminal import errors
from cli.terminal.errors import BadArgument
from cli.terminal.output import Form
from spool.words import clipped_line, counted

if TYPE_CHECKING:
    from cli.config.config import Config
    from pipeline.session import Session

_NAMED = 5
"""Topics of one sentence; --json has all."""

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
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Run Spark there: local[2], spark://HOST:7077, yarn (default: here, on every core).",
    ),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A property of Spark; repeatable.")
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


def missing_topics(messages: Mapping[str, int]) -> str:
    """That Kafka does not have these topics, and how many messages are of each; or an empty text."""
    if not messages:
        return ""
    named = [
        f"{clipped_line(topic)} ({counted(count, 'message')})"
        for topic, count in list(messages.items())[:_NAMED]
    ]
    more = f" and {counted(len(messages) - _NAMED, 'other')}" if len(messages) > _NAMED else ""
    return f"; Kafka does not have the topic{'s' * (len(messages) > 1)} {', '.join(named)}{more}"


def parse_conf(given: list[str] | None) -> dict[str, str]:
    """Spark's properties from KEY=VALUE. Raises BadArgument."""
    found = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise BadArgument(f"--conf {text}: it takes KEY=VALUE, as spark.driver.memory=4g")
        found[key] = value
    return found


@contextmanager
def job_session(master: str | None, conf: list[str] | None, *, bar: bool = True) -> Iterator[Session]:
    """A session for one job, with a `task_bar` unless that is left to the job.

    Raises BadArgument, MissingSpark; an interrupt ends the command with a sentence.
    """
    from cli.terminal.output import error_console
    from pipeline.spark_release import check_requirements

    settings = parse_conf(conf)
    check_requirements()

    from pipeline.session import LOCAL, open_session

    if error_console().is_terminal:
        settings = {"spark.ui.enabled": "true", **settings}
    with (
        interruptible(),
        open_session(master or LOCAL, settings) as session,
        task_bar(session) if bar else nullcontext(),
    ):
        yield session


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
def task_bar(session: Session) -> Iterator[None]:
    """On a terminal, say where Spark's own page is, and show how many tasks are done until the context ends.

    Anything else that is written to the same terminal meanwhile mixes with it.
    """
    from cli.terminal.output import error_console
    from cli.terminal.progress import Progress
    from pipeline.session import watch

    console = error_console()
    if not console.is_terminal:
        yield
        return
    name_page(session)
    # Tasks are of all sizes, and become known stage by stage: no rate tells when the last one is done.
    with Progress("Spark", "tasks", console=console, paced=False) as bar, watch(session, bar.show):
        yield


@contextmanager
def going_on(session: Session, what: str) -> Iterator[None]:
    """Work that Control-C is the end of. On a terminal, say that it goes on, and that it has ended."""
    from cli.terminal.output import complain, error_console

    shown = error_console().is_terminal
    name_page(session)
    if shown:
        complain(f"{what} until Control-C")
    with suppress(KeyboardInterrupt):
        yield
    if shown:
        # Over the ^C of the terminal.
        complain("\rended: the same command goes on from here")


def name_page(session: Session) -> None:
    """On a terminal, say where Spark's own page is, on a line that stays, and is whole on narrow ones."""
    from cli.terminal.output import complain, error_console

    url = session.sparkContext.uiWebUrl
    if url and error_console().is_terminal:
        complain(f"Spark's own page, while this runs: {url}")
