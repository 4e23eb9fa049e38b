"""`brucectl spark replay`: send again what spools, or an archive, still have."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands.arguments import (
    ConfigFile,
    Keys,
    PartitionKeys,
    SendThem,
    Since,
    Timeout,
    Topics,
    ToTopic,
    Uids,
    Until,
    examples,
)
from cli.commands.jobs import BootstrapServers, Spools, complain_of_damage, kafka_properties, spool_paths
from cli.commands.spark.options import Conf, Master, job_session, missing_topics
from cli.terminal import errors
from cli.terminal.errors import BadArgument

if TYPE_CHECKING:
    from pipeline.delivery.replay import Replayed

EXAMPLES = examples(
    "brucectl spark replay '/mnt/fleet/*/bruce' --from -2h",
    "brucectl spark replay '/mnt/fleet/*/bruce' --from -2h --key customer-4711 --yes",
    "brucectl spark replay --archive /srv/archive --from 2026-03-01 --topic clicks --yes",
)
VERSION = 2


def replay(
    spools: Spools = None,
    *,
    archive: Annotated[
        bool, typer.Option("--archive", help="SPOOL names archives of brucectl spark archive.")
    ] = False,
    since: Since = None,
    until: Until = None,
    topic: Topics = None,
    key: Keys = None,
    partition_key: PartitionKeys = None,
    uid: Uids = None,
    to_topic: ToTopic = None,
    yes: SendThem = False,
    bootstrap_servers: BootstrapServers = None,
    timeout: Timeout = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    master: Master = None,
    conf: Conf = None,
    config: ConfigFile = None,
) -> None:
    """Send messages to Kafka again, from any number of spools or from an archive, delivered or not.

    Without --yes they are counted, by topic, and nothing is sent. --from 0 means everything that is kept.

    They go as they went at first: key, value, timestamp, header bruce-id, and order within a partition; a
    header bruce-replay says when this was, in ms since the epoch, in digits. Daemons may be at work beside
    it: to them these are no new messages, and what they have delivered stays so. Nothing is written down in
    a spool: the same command sends all of it once more.

    Nothing is held back for it either: room for new messages comes first. Messages that are removed to make
    room, between being counted and being sent, are counted (gone), and the rest is sent. So is what went
    since the same words were counted without --yes, or since they were sent and interrupted: until all is
    sent, what was counted is kept in mind in $XDG_STATE_HOME/bruce-replay, ~/.local/state/bruce-replay by
    default.

    Unreadable ranges (EIO) are skipped and named; the rest is counted, and sent.

    Prints the messages by topic, with the times of the first and the last. With --json one document of
    version 2: dry_run, topics (topic, messages, first, last: times in UTC), messages, sent, refused (by
    reason), left, gone, unknown (topics that Kafka does not have), seconds, unread (segments that the disk
    gives an error for). Exits with 1 when Kafka refused some for good, some are left, or gone, or a segment
    cannot be read, or its header is damaged.
    """
    from cli.config.config import load_config
    from cli.replay.state import Order, default_directory
    from cli.terminal.output import complain, show_json

    order = Order(since, until, topic or (), key or (), partition_key or (), uid or (), to_topic)
    if yes:
        order.check_says_something()
    if archive and not spools:
        raise BadArgument("name the archive")
    wanted = order.wanted()
    settings = load_config(config)
    options = dataclasses.replace(settings.dispatch, mode="at_least_once")
    if yes:
        options = dataclasses.replace(options, kafka=kafka_properties(settings, bootstrap_servers))
    paths = spool_paths(spools, settings)
    with job_session(master, conf) as session:
        from pipeline.delivery.replay import Note, StoredMessages, dry, run_replay

        kept = StoredMessages(session, paths, archive=archive)
        if not archive:
            kept.note = Note(default_directory() / f"spark-{order.name(kept.spools(), '')}.json")
        result = (
            run_replay(kept, wanted, options, settings.partitioners, to_topic=to_topic, timeout_s=timeout)
            if yes
            else dry(kept, wanted)
        )
    if as_json:
        show_json(_document(result, dry_run=not yes))
    else:
        _show(result, to_topic, dry_run=not yes)
    for place in result.unread:
        complain(f"{place}: what could not be read of it is not among them; see to the disk, and repeat this")
    damaged = not archive and complain_of_damage(paths)
    if damaged or result.unread or (yes and (result.left or result.gone or result.refused)):
        raise typer.Exit(errors.FOUND)


def _document(result: Replayed, *, dry_run: bool) -> dict[str, object]:
    from spool.words import utc

    shown = dataclasses.asdict(result)
    shown["topics"] = [
        {"topic": c.topic, "messages": c.messages, "first": utc(c.first_ns), "last": utc(c.last_ns)}
        for c in result.topics
    ]
    return {"version": VERSION, "dry_run": dry_run, **shown}


def _show(result: Replayed, to_topic: str | None, *, dry_run: bool) -> None:
    from cli.terminal.output import complain, show_rows, topic_rows
    from spool.words import agreeing, counted, reason_in_words

    heads = ("topic", "messages", "first received", "last received")
    show_rows(heads, topic_rows(result.topics), clip=("topic",))
    for reason, count in result.refused.items():
        complain(f"{agreeing(count, 'message', 'was', 'were')} refused for good: {reason_in_words(reason)}")
    of = f"of {counted(result.messages, 'message')}"
    counts = {c.topic: c.messages for c in result.topics}
    if to_topic:
        counts = {to_topic: sum(counts.values())}
    if result.gone:
        complain(f"bruce removed {result.gone:,} {of}, unsent, to make room")
    if dry_run:
        where = f"to topic {to_topic}" if to_topic else "to the topics they were sent to at first"
        complain(f"nothing was sent; --yes sends {counted(result.messages, 'message')} {where}")
    elif result.left:
        why = missing_topics({name: counts[name] for name in result.unknown})
        complain(f"{result.left:,} {of} left, {result.sent:,} sent{why}")
    else:
        complain(f"{counted(result.sent, 'message')} sent in {result.seconds:.1f} s")
