"""The programs `bruce` and `brucectl`: their commands, one line each."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from cli.commands.inspect import HELP as INSPECT
from cli.commands.spark import HELP as SPARK
from cli.commands.witness import HELP as WITNESS
from cli.terminal.program import command, enter, group, new_app
from spool.native.kernel import interpret_at_first

configuration = new_app(
    "Look at bruce.toml, or make one of a Bruce's or a Dory's.",
    {
        "check": command("config", "check", "CHECK_EXAMPLES"),
        "show": command("config", "show", "SHOW_EXAMPLES"),
        "convert": command("config", "convert", "CONVERT_EXAMPLES"),
    },
)

inspection = new_app(
    INSPECT,
    {
        "segments": command("inspect.segments"),
        "frames": command("inspect.segments", "frames", "FRAMES_EXAMPLES"),
        "records": command("inspect.messages", "records"),
        "show": command("inspect.messages", "show", "SHOW_EXAMPLES"),
        "find": command("inspect.messages", "find", "FIND_EXAMPLES"),
        "export": command("inspect.messages", "export", "EXPORT_EXAMPLES"),
        "timeline": command("inspect.segments", "timeline", "TIMELINE_EXAMPLES"),
        "carve": command("inspect.carve"),
        "verify": command("inspect.repair", "verify", "VERIFY_EXAMPLES"),
        "repair": command("inspect.repair"),
        "reindex": command("inspect.repair", "reindex", "REINDEX_EXAMPLES"),
    },
)

jobs = new_app(
    SPARK,
    {
        "audit": command("spark.audit"),
        "archive": command("spark.archive"),
        "query": command("spark.query"),
        "stats": command("spark.stats"),
        "drain": command("spark.drain"),
        "replay": command("spark.replay"),
        "run": command("spark.drain", "run", "RUN_EXAMPLES"),
        "witness": command("spark.witness"),
    },
)

witnesses = new_app(WITNESS, {"run": command("witness", "run", "RUN_EXAMPLES")})

daemon = new_app(
    "Take messages from local programs, keep them on disk, and deliver them to Kafka.",
    {
        "run": command("daemon", "run"),
        "compile": command("daemon", "compile_loops", "COMPILE_EXAMPLES"),
        "hold-socket": command("daemon", "hold_socket", "HOLD_SOCKET_EXAMPLES"),
    },
    add_completion=True,
)

control = new_app(
    "Look into, feed and steer bruce, the durable way into Kafka.",
    {
        "status": command("status"),
        "top": command("status", "top", "TOP_EXAMPLES"),
        "trace": command("trace"),
        "query": command("query"),
        "audit": command("audit"),
        "stats": command("stats"),
        "archive": command("archive"),
        "send": command("send"),
        "drain": command("drain"),
        "replay": command("replay"),
        "discards": command("discards"),
        "doctor": command("doctor"),
        "config": group("config", configuration),
        "inspect": group("inspect", inspection),
        "witness": group("witness", witnesses),
        "spark": group("spark", jobs),
    },
    add_completion=True,
)


@inspection.callback()
def _look() -> None:
    interpret_at_first()


def _print_version(wanted: bool) -> None:  # noqa: FBT001  (Typer calls it with the option's value)
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415  (it takes the time of all other imports here)

        typer.echo(f"bruce {version('bruce-spool')}")
        raise typer.Exit


@daemon.callback()
@control.callback()
def _top(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def bruce() -> NoReturn:
    """Run the daemon's program."""
    enter(daemon, "bruce")


def brucectl() -> NoReturn:
    """Run the operator's program."""
    enter(control, "brucectl")
