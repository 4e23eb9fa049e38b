"""`brucectl replay`: send again what the spool still keeps."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from cli import exits
from cli.arguments import AsJson, ConfigFile, Since, SpoolDirectory, Topics, Until, examples, file_errors
from cli.errors import BadArgument

if TYPE_CHECKING:
    from cli.replay import Replayed

EXAMPLES = examples(
    "brucectl replay --from -2h --dry-run",
    "brucectl replay --from 2026-03-01T09:00 --to 2026-03-01T10:00 --topic clicks",
    "brucectl replay --discards --from 0 --topic clicks",
    "brucectl replay --from 4711000 --to 4712000 --to-topic clicks-again",
)


def replay(
    *,
    since: Since = None,
    until: Until = None,
    topic: Topics = None,
    to_topic: Annotated[
        str | None, typer.Option("--to-topic", metavar="T", help="Send all of them to this topic instead.")
    ] = None,
    discards: Annotated[
        bool,
        typer.Option("--discards", help="Send what the discard file has, through the daemon's socket."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be sent; send nothing.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Give up after so many seconds; else never.")
    ] = None,
    spool: SpoolDirectory = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Send messages to Kafka again, as far as their segments are kept, delivered or not.

    They go as they went at first: key, value, timestamp, header, and order within a partition. A daemon may
    be at work beside it: to it these are no new messages, and what it has delivered stays so. --from 0 sends
    everything that is kept.

    With --discards, what [dispatch] discard_file has is handed to the daemon as new messages: --from and --to
    then mean sequence numbers, or times of the discard. The file stays as it is.

    Prints the messages by topic. With --json one document: dry_run, topics, messages, sent, refused (by
    reason), left, seconds, reachable, kept_from (the first sequence number that is kept). Exits with 1 when
    Kafka refused some for good, or the time is over and some are left; with 3 when no broker was reachable.
    """
    from cli.again import Again
    from cli.config import load_config
    from cli.output import show_json
    from cli.progress import Progress
    from cli.replay import Replay
    from cli.span import parse_span

    if since is None and until is None and not topic and not dry_run:
        raise BadArgument("say what to send again, with --from, --to or --topic; --from 0 is everything")
    chosen = load_config(config)
    if spool is not None:
        chosen = dataclasses.replace(
            chosen, spool=dataclasses.replace(chosen.spool, directory=spool.absolute())
        )
    span = parse_span(since, until, topic or ())
    with file_errors(), Progress("counting" if dry_run else "replaying") as progress:
        if discards:
            again = Again(chosen.dispatch.discard_file, span, to_topic)
            socket = chosen.ingest.datagram_socket
            result = again.count() if dry_run else again.send(socket, progress.show, timeout)
        else:
            task = Replay(chosen, span, to_topic)
            result = task.count(progress.show) if dry_run else task.send(progress.show, timeout)
    if as_json:
        show_json({"dry_run": dry_run, **dataclasses.asdict(result)})
    else:
        _show(result, span.first, dry_run=dry_run)
    if result.left and not dry_run:
        raise typer.Exit(exits.FOUND if result.reachable else exits.UNREACHABLE)
    raise typer.Exit(exits.FOUND if result.refused else exits.FINE)


def _show(result: Replayed, first: int, *, dry_run: bool) -> None:
    from cli.output import complain, show_rows

    if 0 < first < result.kept_from:
        complain(f"messages below {result.kept_from} are no longer kept")
    show_rows(("topic", "messages"), result.topics.items())
    for reason, count in result.refused.items():
        complain(f"{count:,} messages were refused for good: {reason}")
    if result.left and not dry_run:
        complain(f"{result.left:,} messages are left; {result.sent:,} were sent in {result.seconds:.1f} s")
