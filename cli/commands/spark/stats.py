"""`brucectl spark stats`: rates, sizes, skew and discards of spools."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments import AsJson, ConfigFile, Topics, examples
from cli.commands.spark.options import Conf, Master, Spools, complain_of_damage, job_session, spool_paths

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = examples(
    "brucectl spark stats",
    "brucectl spark stats '/mnt/fleet/*/bruce' --hours --topic orders",
    "brucectl spark stats --json | jq '.topics[] | {topic, peak}'",
)
_HEADS = ("messages", "MiB", "peak/s", "median B", "p99 B", "most B", "keys", "top key", "its share")
_DISCARDS = ("spool", "topic", "reason", "messages")
_DISCARD_HOURS = ("spool", "hour", "reason", "messages")


def stats(
    spools: Spools = None,
    *,
    hours: Annotated[bool, typer.Option("--hours", help="A row for each hour, too.")] = False,
    topic: Topics = None,
    as_json: AsJson = False,
    master: Master = None,
    conf: Conf = None,
    config: ConfigFile = None,
) -> None:
    """Measure what spools hold: how many messages of each topic, how large, how fast, how evenly by key.

    The peak is the busiest second; bytes are those of keys and values; a partition key counts as key where
    there is one. The number of keys is good to 5%, and the most frequent key is right when it is frequent.
    Discards are those of the spools' whole lives, by topic and reason; --hours has those by hour that kept
    segments tell the time of, unless a topic is named. With --json one document of version 1: total, topics
    (each with its hours), discards (spool, topic, reason, messages), discard_hours (spool, hour, reason,
    messages); bruce-json(5) has the figures. Needs Java 17.
    """
    from cli.config import load_config
    from cli.output import show_json, show_rows

    paths = spool_paths(spools, load_config(config))
    with job_session(master, conf) as session:
        from pipeline.stats_report import run_stats

        found = run_stats(session, paths, topic)
    complain_of_damage(paths)
    discards = list(_discards(paths, topic))
    by_hour = [] if topic else list(_discard_hours(paths))
    if as_json:
        told = [dict(zip(_DISCARDS, row, strict=True)) for row in discards]
        timed = [dict(zip(_DISCARD_HOURS, row, strict=True)) for row in by_hour]
        show_json({**found, "discards": told, "discard_hours": timed})
        return
    rows = [(one["topic"], "all", *_columns(one)) for one in found["topics"]]
    if hours:
        rows = [
            row
            for one, whole in zip(found["topics"], rows, strict=True)
            for row in (*((one["topic"], hour["hour"], *_columns(hour)) for hour in one["hours"]), whole)
        ]
    show_rows(("topic", "hour", *_HEADS), rows)
    if discards:
        typer.echo()
        show_rows(("spool", "topic", "discarded because of", "messages"), discards)
    if hours and by_hour:
        typer.echo()
        show_rows(("spool", "hour", "discarded because of", "messages"), by_hour)


def _columns(figures: dict[str, Any]) -> tuple[object, ...]:
    top = figures["top_keys"][:1]
    return (
        figures["messages"],
        round(figures["bytes"] / (1 << 20), 1),
        figures["peak"],
        figures["median_bytes"],
        figures["p99_bytes"],
        figures["most_bytes"],
        figures["keys"],
        top[0]["key"] if top else "-",
        f"{top[0]['messages'] / figures['messages']:.0%}" if top else "-",
    )


def _discards(paths: list[str], topics: list[str] | None) -> Iterator[tuple[object, ...]]:
    """(directory, topic, reason, messages) of each spool; the topic is empty where nobody knows it."""
    from cli.discards import list_discards
    from cli.records import printable
    from pipeline.plan import find_spools

    names = frozenset(name.encode(errors="surrogateescape") for name in topics or ())
    for layout in find_spools(paths):
        for row in list_discards(Path(layout.directory), names, frozenset()).discards:
            yield str(layout.directory), printable(row.topic), row.reason, row.messages


def _discard_hours(paths: list[str]) -> Iterator[tuple[object, ...]]:
    """(directory, hour, reason, messages) of each spool, in order."""
    from pipeline.discard_hours import discard_hours
    from pipeline.plan import find_spools
    from spool.wire import reason_name

    for layout in find_spools(paths):
        for (hour, reason), messages in sorted(discard_hours(layout).items()):
            at = datetime.fromtimestamp(3600 * hour, UTC)
            yield str(layout.directory), f"{at:%Y-%m-%dT%H:00:00Z}", reason_name(reason), messages
