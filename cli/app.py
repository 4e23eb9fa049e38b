"""The programs `bruce` and `brucectl`: their commands, one line each."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from cli.commands import (
    config,
    discards,
    doctor,
    drain,
    inspect,
    replay,
    run,
    send,
    spark,
    status,
    top,
    trace,
)
from cli.entry import enter


def _new_app(help_text: str) -> typer.Typer:
    return typer.Typer(
        help=help_text,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
        rich_markup_mode=None,  # help is what `man` shows, on every terminal
        pretty_exceptions_enable=False,  # a traceback with locals would show the payload of messages
    )


daemon = _new_app("Take messages from local programs, keep them on disk, and deliver them to Kafka.")
control = _new_app("Look into, feed and steer bruce, the durable way into Kafka.")

daemon.command("run", epilog=run.EXAMPLES)(run.run)
control.command("status", epilog=status.EXAMPLES)(status.status)
control.command("top", epilog=top.EXAMPLES)(top.top)
control.command("trace", epilog=trace.EXAMPLES)(trace.trace)
control.command("send", epilog=send.EXAMPLES)(send.send)
control.command("drain", epilog=drain.EXAMPLES)(drain.drain)
control.command("replay", epilog=replay.EXAMPLES)(replay.replay)
control.command("discards", epilog=discards.EXAMPLES)(discards.discards)
control.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor)

configuration = _new_app(config.HELP)
configuration.command("check", epilog=config.CHECK_EXAMPLES)(config.check)
configuration.command("show", epilog=config.SHOW_EXAMPLES)(config.show)
configuration.command("convert", epilog=config.CONVERT_EXAMPLES)(config.convert)
control.add_typer(configuration, name="config")

inspection = _new_app(inspect.HELP)
inspection.command("segments", epilog=inspect.segments.EXAMPLES)(inspect.segments.segments)
inspection.command("frames", epilog=inspect.frames.EXAMPLES)(inspect.frames.frames)
inspection.command("records", epilog=inspect.records.EXAMPLES)(inspect.records.records)
inspection.command("show", epilog=inspect.show.EXAMPLES)(inspect.show.show)
inspection.command("find", epilog=inspect.find.EXAMPLES)(inspect.find.find)
inspection.command("export", epilog=inspect.export.EXAMPLES)(inspect.export.export)
inspection.command("timeline", epilog=inspect.timeline.EXAMPLES)(inspect.timeline.timeline)
inspection.command("carve", epilog=inspect.carve.EXAMPLES)(inspect.carve.carve)
inspection.command("verify", epilog=inspect.verify.EXAMPLES)(inspect.verify.verify)
inspection.command("repair", epilog=inspect.repair.EXAMPLES)(inspect.repair.repair)
inspection.command("reindex", epilog=inspect.repair.REINDEX_EXAMPLES)(inspect.repair.reindex)
control.add_typer(inspection, name="inspect")

jobs = _new_app(spark.HELP)
jobs.command("audit", epilog=spark.audit.EXAMPLES)(spark.audit.audit)
jobs.command("archive", epilog=spark.archive.EXAMPLES)(spark.archive.archive)
jobs.command("query", epilog=spark.query.EXAMPLES)(spark.query.query)
jobs.command("stats", epilog=spark.stats.EXAMPLES)(spark.stats.stats)
jobs.command("drain", epilog=spark.drain.EXAMPLES)(spark.drain.drain)
jobs.command("replay", epilog=spark.replay.EXAMPLES)(spark.replay.replay)
jobs.command("run", epilog=spark.run.EXAMPLES)(spark.run.run)
control.add_typer(jobs, name="spark")


def _print_version(wanted: bool) -> None:  # noqa: FBT001  (Typer calls it with the option's value)
    if wanted:
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
