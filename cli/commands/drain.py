"""`brucectl drain`: wait until everything is delivered, and deliver it where no daemon does."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from cli import exits
from cli.arguments import AsJson, ConfigFile, SpoolDirectory, examples, file_errors

if TYPE_CHECKING:
    from cli.drain import Drained

EXAMPLES = examples(
    "brucectl drain",
    "brucectl drain --timeout 600 --json",
    "brucectl drain --spool /mnt/dead-host/var/lib/bruce --config /etc/bruce/bruce.toml",
)


def drain(
    *,
    spool: SpoolDirectory = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Give up after so many seconds; else never.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Wait until everything is delivered that was accepted when this began.

    Where a daemon runs, it delivers. Where none does, this command takes its place, locks included: what was
    received and not yet written when the daemon was killed is delivered too. It can be interrupted at any
    time and goes on where it was.

    With --json one document: drained, delivered, discarded (both since it began), backlog, seconds,
    by_daemon, reachable, trouble (a sentence, or null). Exits with 1 when the time is over and messages are
    left, with 3 when no broker was reachable at that time.
    """
    from cli.config import load_config
    from cli.drain import drain as run
    from cli.output import show_json
    from cli.progress import Progress

    chosen = load_config(config)
    if spool is not None:
        chosen = dataclasses.replace(
            chosen, spool=dataclasses.replace(chosen.spool, directory=spool.absolute())
        )
    with file_errors(), Progress("delivering") as progress:
        result = run(chosen, progress.show, timeout)
    if as_json:
        show_json(dataclasses.asdict(result))
    else:
        typer.echo(_sentence(result))
    if not result.drained:
        raise typer.Exit(exits.FOUND if result.reachable else exits.UNREACHABLE)


def _sentence(result: Drained) -> str:
    done = f"{result.delivered:,} messages delivered in {result.seconds:.1f} s"
    if result.discarded:
        done += f", {result.discarded:,} discarded"
    if result.drained:
        return f"drained: {done}"
    why = result.trouble or ("the time is over" if result.reachable else "no broker can be reached")
    return f"not drained, {why}: {done}, {result.backlog:,} left"
