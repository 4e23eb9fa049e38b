"""Shared by the commands of `brucectl spark`: their options, and the session that a job runs in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands.jobs import interruptible
from cli.terminal.errors import BadArgument
from spool.words import clipped_line, counted

if TYPE_CHECKING:
    from pipeline.session import Session

_NAMED = 5
"""Topics of one sentence; --json has all."""

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
    from cli.terminal.output import complain, error_console
    from pipeline.spark_release import check_requirements

    settings = parse_conf(conf)
    check_requirements()

    from pipeline.class_data import is_missing
    from pipeline.session import LOCAL, open_session

    first = master is None and is_missing()
    if error_console().is_terminal:
        settings = {"spark.ui.enabled": "true", **settings}
    with interruptible(), open_session(master or LOCAL, settings) as session:
        with task_bar(session) if bar else nullcontext():
            yield session
        if first and error_console().is_terminal:
            complain("keeping Spark's classes in an archive, once: later jobs start sooner")


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


def name_page(session: Session) -> None:
    """On a terminal, say where Spark's own page is, on a line that stays, and is whole on narrow ones."""
    from cli.terminal.output import complain, error_console

    url = session.sparkContext.uiWebUrl
    if url and error_console().is_terminal:
        complain(f"Spark's own page, while this runs: {url}")
