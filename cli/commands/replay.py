"""`brucectl replay`: send again what the spool still keeps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands.arguments import (
    AsJson,
    ConfigFile,
    Keys,
    OtherKafka,
    PartitionKeys,
    SendThem,
    Since,
    SpoolDirectory,
    Timeout,
    Topics,
    ToTopic,
    Uids,
    Until,
    examples,
    file_errors,
)
from cli.terminal import errors
from cli.terminal.errors import BadArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.config.config import Config
    from cli.replay.replay import Replayed
    from cli.replay.state import Order
    from cli.terminal.progress import Progress

EXAMPLES = examples(
    "brucectl replay --from -2h",
    "brucectl replay --from -2h --yes",
    "brucectl replay --from 2026-03-01T09:00 --to 2026-03-01T10:00 --topic clicks --rate 500 --yes",
    "brucectl replay --key customer-4711 --to-topic clicks-again --yes",
    "brucectl replay --spool /mnt/copy --from 0 --kafka other-cluster.toml --yes",
    "brucectl replay --discards --from 0 --topic clicks --yes",
)
VERSION = 1


def replay(
    *,
    since: Since = None,
    until: Until = None,
    topic: Topics = None,
    key: Keys = None,
    partition_key: PartitionKeys = None,
    uid: Uids = None,
    to_topic: ToTopic = None,
    kafka: OtherKafka = None,
    yes: SendThem = False,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, metavar="N", help="Limit to N messages a second.")
    ] = None,
    at_least_once: Annotated[
        bool,
        typer.Option(
            "--at-least-once",
            help="Use no transactions, if Kafka grants none: a replay that is killed and begun again sends "
            "what was in flight twice.",
        ),
    ] = False,
    discards: Annotated[
        bool,
        typer.Option("--discards", help="Send what the discard file has, through the daemon's socket."),
    ] = False,
    timeout: Timeout = None,
    spool: SpoolDirectory = None,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            metavar="DIR",
            help="Keep the state of unfinished replays in this directory; else bruce-replay in "
            "$XDG_STATE_HOME or ~/.local/state.",
        ),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Send messages to Kafka again, as far as their segments are kept, delivered or not.

    Without --yes they are counted, by topic, and nothing is sent. --from 0 means everything that is kept.

    They go as they went at first: key, value, timestamp, header bruce-id, and order within a partition. A
    header bruce-replay says when the replay began, in ms since the epoch, in digits. A daemon may be at work
    beside it: to it these are no new messages, and what it has delivered stays so. The spool is only read: a
    copy that may not be written will do, and so will its segments/ alone.

    A replay that was interrupted, by Ctrl-C, SIGKILL or --timeout, goes on when the same command is given
    again: with the messages that were meant at first, and without sending again what was sent. They go in
    transactions for that: a consumer with isolation.level=read_committed sees each of them once.

    Nothing is held back for it: room for new messages comes first. Messages that are removed to make room
    while they are being replayed are counted (gone), and the rest is sent.

    With --discards, what [dispatch] discard_file has is handed to the daemon as new messages: --from and --to
    then mean sequence numbers, or times of the discard. The file stays as it is, and the same command sends
    all of it again; when the time was over, it says by which --from to go on.

    Prints the messages by topic, with the times of the first and the last. With --json one document of
    version 1: dry_run, topics (topic, messages, first, last: times in UTC), messages, sent, refused (by
    reason), left, seconds, reachable, kept_from (the first sequence number that is kept), begun (when this
    replay began, if it is not finished, or null), trouble (why nothing could be sent, or null), interrupted,
    gone, unreadable, resume_from (with --discards, the --from of what is left, or null). Exits with 1 when
    Kafka refused some for good, some are left, or gone; with 3 when no broker was reachable; with 130 after
    Control-C, once what is in flight has its answer.
    """
    from cli.config.config import config_for
    from cli.replay.state import Order
    from cli.terminal.output import show_json
    from cli.terminal.progress import Progress

    order = Order(since, until, topic or (), key or (), partition_key or (), uid or (), to_topic)
    if yes:
        order.check_says_something()
    chosen = config_for(config, spool, kafka)
    with file_errors(), Progress("replaying" if yes else "counting") as progress:
        if discards:
            if key or partition_key or uid or kafka or rate:
                raise BadArgument("with --discards say which by --from, --to and --topic only")
            result, forget = _again(chosen, order, progress, timeout, yes=yes), None
        else:
            mode = "at_least_once" if at_least_once else "exactly_once"
            chosen = dataclasses.replace(chosen, dispatch=dataclasses.replace(chosen.dispatch, mode=mode))
            result, forget = _replay(chosen, order, state, progress, timeout, rate, yes=yes)
    if as_json:
        show_json(_document(result, dry_run=not yes))
    else:
        _show(result, order, dry_run=not yes)
    if forget:
        with file_errors():
            forget()
    if result.left and result.interrupted:
        raise typer.Exit(errors.INTERRUPTED)
    if result.left and yes:
        raise typer.Exit(errors.FOUND if result.reachable else errors.UNREACHABLE)
    raise typer.Exit(errors.FOUND if result.refused or result.gone else errors.FINE)


def _again(config: Config, order: Order, progress: Progress, timeout: float | None, *, yes: bool) -> Replayed:
    from cli.replay.replay import Resend

    again = Resend(config.dispatch.discard_file, order.wanted(), order.to_topic)
    if not yes:
        return again.count()
    ingest = config.ingest
    return again.send(
        ingest.datagram_socket,
        ingest.stream_address,
        progress.show,
        timeout,
        ingest.max_stream_message_bytes,
    )


def _replay(
    config: Config,
    order: Order,
    state: Path | None,
    progress: Progress,
    timeout: float | None,
    rate: float | None,
    *,
    yes: bool,
) -> tuple[Replayed, Callable[[], None] | None]:
    """(the result, a function to call when the user has been told of it)."""
    from cli.replay.replay import Replay
    from cli.replay.state import default_directory

    task = Replay(config, order, state.absolute() if state else default_directory())
    if not yes:
        return task.count(progress.show), None
    result = task.send(progress.show, timeout, rate)
    return result, None if result.left else task.forget


def _document(result: Replayed, *, dry_run: bool) -> dict[str, object]:
    from cli.terminal.output import as_utc
    from spool.words import utc

    shown = dataclasses.asdict(result)
    begun, resume = shown.pop("begun_ms"), shown.pop("resume_from")
    shown["topics"] = [
        {"topic": c.topic, "messages": c.messages, "first": utc(c.first_ns), "last": utc(c.last_ns)}
        for c in result.topics
    ]
    shown["begun"] = None if begun is None else utc(begun * 1_000_000)
    shown["resume_from"] = None if dry_run or resume is None else as_utc(resume)
    return {"version": VERSION, "dry_run": dry_run, **shown}


def _show(result: Replayed, order: Order, *, dry_run: bool) -> None:
    from cli.terminal.output import as_utc, complain, show_rows, topic_rows
    from spool.words import agreeing, counted, reason_in_words

    first = order.wanted().first
    if 0 < first < result.kept_from:
        complain(f"messages below {result.kept_from} are no longer kept")
    heads = ("topic", "messages", "first received", "last received")
    show_rows(heads, topic_rows(result.topics), clip=("topic",))
    all_of_them = counted(result.messages, "message")
    for reason, count in result.refused.items():
        complain(f"{agreeing(count, 'message', 'was', 'were')} refused for good: {reason_in_words(reason)}")
    if result.gone:
        complain(f"bruce removed {result.gone:,} of {all_of_them}, unsent, to make room")
    if dry_run:
        _say_count(result, order)
    elif result.left:
        why = f"; {result.trouble}" if result.trouble else ""
        goes_on = "the same command goes on"
        if result.resume_from is not None:
            goes_on = f"--from {as_utc(result.resume_from)} goes on with the rest"
        complain(f"{result.left:,} of {all_of_them} left{why}: {goes_on}")
    else:
        complain(f"{counted(result.sent, 'message')} sent in {result.seconds:.1f} s")


def _say_count(result: Replayed, order: Order) -> None:
    from cli.terminal.output import complain
    from spool.words import counted, utc

    if result.unreadable:
        complain(f"{counted(result.unreadable, 'message')} on the way cannot be read: see `inspect verify`")
    where = f"to topic {order.to_topic}" if order.to_topic else "to the topics they were sent to at first"
    goes_on = ""
    if result.begun_ms is not None:
        goes_on = f", begun at {utc(result.begun_ms * 1_000_000)} and not finished"
    complain(f"nothing was sent; --yes sends {counted(result.left, 'message')} {where}{goes_on}")
