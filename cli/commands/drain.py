"""`brucectl drain`: wait until everything is delivered, and deliver it where no daemon does."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands.arguments import (
    AsJson,
    ConfigFile,
    OtherKafka,
    SpoolDirectory,
    Timeout,
    Topics,
    examples,
    file_errors,
)
from cli.terminal import errors

if TYPE_CHECKING:
    from cli.replay.drain import Drained

EXAMPLES = examples(
    "brucectl drain",
    "brucectl drain --timeout 600 --json",
    "brucectl drain --stop-intake",
    "brucectl drain --topic orders",
    "brucectl drain --spool /mnt/dead-host/var/lib/bruce --config /etc/bruce/bruce.toml",
)
VERSION = 1


def drain(
    *,
    topic: Topics = None,
    stop_intake: Annotated[
        bool,
        typer.Option("--stop-intake", help="Let a daemon receive nothing meanwhile; its senders wait."),
    ] = False,
    spool: SpoolDirectory = None,
    kafka: OtherKafka = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Wait until everything is delivered that was accepted when this began.

    If a daemon runs, it delivers. With --stop-intake it receives nothing until this command ends, be that by
    SIGKILL: senders wait in the socket, and lose nothing. If the command stalls, the daemon goes on after
    5 s. The drain then ends when everything that the daemon has received is delivered.

    If none runs, this command takes its place, locks included: messages that were received and not yet
    written when the daemon was killed are delivered too, by the topics and partitioners of its configuration.
    So a copy of a dead host's spool is delivered (--spool; --config or --kafka say where to), by one process
    at a time. It can be interrupted at any time, by SIGKILL as well, and goes on where it was. Of a copy on
    the host of its original only what the copy has is delivered: what waits in the memory of the original's
    dead daemon is the original's.

    With a daemon --kafka is refused: that delivers where its own configuration says.
    With --topic only messages of these topics are waited for; without a daemon only they are delivered.

    With --json one document of version 1: drained, delivered, discarded (both since it began), left (of
    what was waited for), backlog (of the whole spool), seconds, by_daemon, reachable, trouble (a sentence, or
    null). Exits with 1 when the time is over and messages are left, with 3 when no broker was reachable then.
    """
    from cli.config.config import config_for
    from cli.replay.drain import drain as run
    from cli.terminal.output import show_json
    from cli.terminal.progress import Progress

    chosen = config_for(config, spool, kafka)
    topics = frozenset(name.encode(errors="surrogateescape") for name in topic or ())
    with file_errors(), Progress("delivering") as progress:
        result = run(
            chosen, progress.show, timeout, topics, stop_intake=stop_intake, elsewhere=kafka is not None
        )
    if as_json:
        show_json({"version": VERSION, **dataclasses.asdict(result)})
    else:
        typer.echo(_sentence(result))
    if not result.drained:
        raise typer.Exit(errors.FOUND if result.reachable else errors.UNREACHABLE)


def _sentence(result: Drained) -> str:
    from spool.words import counted

    done = f"{counted(result.delivered, 'message')} delivered in {result.seconds:.1f} s"
    if result.discarded:
        done += f", {result.discarded:,} discarded"
    if result.drained:
        return f"drained: {done}"
    why = result.trouble or ("the time is over" if result.reachable else "no broker has answered in time")
    return f"not drained, {why}: {done}, {result.left:,} left"
