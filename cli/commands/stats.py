"""`brucectl stats`: rates, sizes, skew and discards of spools."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands.arguments import AsJson, ConfigFile, Topics, examples
from cli.commands.jobs import Spools, complain_of_damage, engine, spool_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

EXAMPLES = examples(
    "brucectl stats",
    "brucectl stats '/srv/spools/*/bruce' --hours --topic orders",
    "brucectl stats --json | jq '.topics[] | {topic, peak}'",
)
_HEADS = ("messages", "size", "peak/s", "median B", "p99 B", "most B", "keys", "top key", "its share")
_DISCARDS = ("spool", "topic", "reason", "messages")
_DISCARD_HOURS = ("spool", "hour", "reason", "messages")
Hours = Annotated[bool, typer.Option("--hours", help="A row for each hour, too.")]


def stats(
    spools: Spools = None,
    *,
    hours: Hours = False,
    topic: Topics = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Measure what spools hold: how many messages of each topic, how large, how fast, how evenly by key.

    The peak is the busiest second; bytes are those of keys and values; a partition key counts as key where
    there is one. The number of keys is good to 5%. Discards are those of the spools' whole lives, by topic
    and reason; --hours has those by hour that kept segments tell the time of, unless a topic is named. DuckDB
    does it in this process, without Java; brucectl spark stats does the same for a fleet on a cluster.

    With --json one document of version 1: total, topics (each with its hours), discards (spool, topic,
    reason, messages), discard_hours (spool, hour, reason, messages); bruce-json(5) has the figures. Needs
    bruce-spool[query].
    """
    from cli.config.config import load_config

    paths = spool_paths(spools, load_config(config))
    with engine() as duckdb:
        from pipeline.stats import run_stats

        found = run_stats(duckdb, paths, topic)
    tell(found, paths, topic, hours=hours, as_json=as_json)


def tell(
    found: dict[str, Any], paths: list[str], topics: list[str] | None, *, hours: bool, as_json: bool
) -> None:
    """Print the figures, and the discards beside them."""
    from cli.terminal.output import show_json

    complain_of_damage(paths)
    discards = list(_discards(paths, topics))
    by_hour = [] if topics else list(_discard_hours(paths))
    if as_json:
        told = [dict(zip(_DISCARDS, row, strict=True)) for row in discards]
        timed = [dict(zip(_DISCARD_HOURS, row, strict=True)) for row in by_hour]
        show_json({**found, "discards": told, "discard_hours": timed})
        return
    _show(found["topics"], discards, by_hour, hours=hours)


def _show(
    topics: Sequence[dict[str, Any]],
    discards: Sequence[tuple[str, str, str, int]],
    by_hour: Sequence[tuple[object, ...]],
    *,
    hours: bool,
) -> None:
    from cli.terminal.output import show_rows, topic_name

    rows = [(topic_name(one["topic"]), "all", *_columns(one)) for one in topics]
    if hours:
        rows = [
            row
            for one, whole in zip(topics, rows, strict=True)
            for row in (*((whole[0], hour["hour"], *_columns(hour)) for hour in one["hours"]), whole)
        ]
    spare = ("keys", "median B", "most B", "top key", "its share")
    show_rows(("topic", "hour", *_HEADS), rows, clip=("topic", "top key"), spare=spare)
    if discards:
        typer.echo()
        alike: Counter[tuple[str, str, str]] = Counter()
        for directory, name, reason, messages in discards:
            alike[directory, topic_name(name), reason] += messages
        heads = ("spool", "topic", "discarded because of", "messages")
        summed = ((*named, messages) for named, messages in alike.items())
        show_rows(heads, _with_words(summed), clip=("spool", "topic"))
    if hours and by_hour:
        typer.echo()
        heads = ("spool", "hour", "discarded because of", "messages")
        show_rows(heads, _with_words(by_hour), clip=("spool",))


def _with_words(discards: Iterable[tuple[object, ...]]) -> Iterator[tuple[object, ...]]:
    """Rows whose last but one cell is a reason, with its words."""
    from spool.words import reason_in_words

    for *where, reason, messages in discards:
        yield *where, reason_in_words(str(reason)), messages


def _columns(figures: dict[str, Any]) -> tuple[object, ...]:
    from cli.terminal.output import printable, size_cell

    top = figures["top_keys"][:1]
    return (
        figures["messages"],
        size_cell(figures["bytes"]),
        figures["peak"],
        figures["median_bytes"],
        figures["p99_bytes"],
        figures["most_bytes"],
        figures["keys"],
        printable(str(top[0]["key"])) if top else "-",
        f"{top[0]['messages'] / figures['messages']:.0%}" if top else "-",
    )


def _discards(paths: list[str], topics: list[str] | None) -> Iterator[tuple[str, str, str, int]]:
    """(directory, topic, reason, messages) of each spool; the topic is empty where it is not known."""
    from cli.inspect.discards import list_discards
    from cli.terminal.output import printable
    from pipeline.source.plan import find_spools

    names = frozenset(name.encode(errors="surrogateescape") for name in topics or ())
    for layout in find_spools(paths):
        for row in list_discards(Path(layout.directory), names, frozenset()).discards:
            yield str(layout.directory), printable(row.topic), row.reason, row.messages


def _discard_hours(paths: list[str]) -> Iterator[tuple[object, ...]]:
    """(directory, hour, reason, messages) of each spool, in order."""
    from pipeline.discard_hours import discard_hours
    from pipeline.source.plan import find_spools
    from spool.format.wire import reason_name

    for layout in find_spools(paths):
        for (hour, reason), messages in sorted(discard_hours(layout).items()):
            at = datetime.fromtimestamp(3600 * hour, UTC)
            yield str(layout.directory), f"{at:%Y-%m-%dT%H:00:00Z}", reason_name(reason), messages
