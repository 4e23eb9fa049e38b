"""`brucectl inspect records`, `find`, `export` and `show`: the messages themselves."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from cli.commands.arguments import (
    AsJson,
    ConfigFile,
    Files,
    Limit,
    NoValues,
    Since,
    SpoolDirectory,
    Topics,
    Until,
    configured_spool,
    examples,
    file_errors,
    provenance,
    segment_files,
)
from cli.commands.jobs import BootstrapServers, kafka_properties
from cli.terminal import errors
from cli.terminal.errors import BadArgument

if TYPE_CHECKING:
    from cli.inspect.message import Message
    from cli.inspect.records import Committed
    from spool.format.batch import Batch
    from spool.layout import Layout
    from spool.read.files import Span, Unreadable
    from spool.read.patterns import Pattern

EXAMPLES = examples(
    "brucectl inspect records --limit 20",
    "brucectl inspect records --from -2h --topic clicks --json | jq .value",
    "brucectl inspect records --follow --topic orders",
    "brucectl inspect records --no-values /mnt/dead-host/00000000000000450560.seg",
)
FIND_EXAMPLES = examples(
    "brucectl inspect find customer-4711 --from -2h",
    "brucectl inspect find --hex 00ff17 --topic clicks --json",
    "brucectl inspect find --regex '^\\{\"order\": ?[0-9]+' --no-values",
)
EXPORT_EXAMPLES = examples(
    "brucectl inspect export --from -2h > messages.jsonl",
    "brucectl inspect export --spool /mnt/dead-host/bruce --report origin.json > messages.jsonl",
    "brucectl inspect export --datagrams /mnt/dead-host/*.seg | brucectl send --datagrams",
)
SHOW_EXAMPLES = examples(
    "brucectl inspect show 4711",
    "brucectl inspect show 4711 --kafka",
    "brucectl inspect show 450571 /mnt/dead-host/00000000000000450560.seg --json",
)
VERSION = 1


def records(
    files: Files = None,
    *,
    spool: SpoolDirectory = None,
    since: Since = None,
    until: Until = None,
    topic: Topics = None,
    limit: Limit = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what is committed from now on, or from --from on.")
    ] = False,
    no_values: NoValues = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Print messages in the order of the log, delivered ones that are still kept included.

    One line each, its columns separated by tabs: sequence number, when it was received, topic, partition key,
    timestamp, key, value; then "not committed" where a power loss could still take it. With --json one object
    a line: sequence, received (UTC, to the ns), topic, partition_key, to_partition (that its sender names),
    timestamp (the sender's, in ms), key and value (null: none), headers (name, value), uid, pid, committed
    (null: no index says so); bytes that are not UTF-8 are in base64, under topic_base64, key_base64,
    value_base64. With --no-values the lengths of key and value come instead, under key_bytes and value_bytes.

    Exits with 1 when something on the way could not be read; all else is printed nevertheless.
    """
    from cli.inspect.records import parse_span

    _print_records(
        files,
        spool,
        config,
        span=parse_span(since, until, topic or ()),
        limit=limit,
        values=not no_values,
        as_json=as_json,
        on_and_on=follow,
    )


def find(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Text in a key or a value.")],
    files: Files = None,
    *,
    hexadecimal: Annotated[bool, typer.Option("--hex", help="PATTERN is bytes, in hexadecimal.")] = False,
    regex: Annotated[
        bool, typer.Option("--regex", help="PATTERN is a regular expression (Python's, over bytes).")
    ] = False,
    spool: SpoolDirectory = None,
    since: Since = None,
    until: Until = None,
    topic: Topics = None,
    limit: Limit = None,
    no_values: NoValues = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Print the messages whose key or value holds a pattern, as `inspect records` prints them.

    With --json the objects of `brucectl inspect records`. Exits with 1 when none does, or when something on
    the way could not be read.
    """
    from cli.inspect.records import parse_span

    _print_records(
        files,
        spool,
        config,
        span=parse_span(since, until, topic or ()),
        pattern=_parse(pattern, hexadecimal=hexadecimal, regex=regex),
        limit=limit,
        values=not no_values,
        as_json=as_json,
    )


def _parse(text: str, *, hexadecimal: bool, regex: bool) -> Pattern:
    """The pattern to search for. Raises BadArgument."""
    from spool.read.patterns import Plain, Regex

    if hexadecimal and regex:
        raise BadArgument("give either --hex or --regex: a regular expression takes bytes as \\x00")
    if not text:
        raise BadArgument("PATTERN is empty: every message holds it; see `brucectl inspect records`")
    if hexadecimal:
        try:
            return Plain(bytes.fromhex(text))
        except ValueError:
            raise BadArgument(f"--hex {text}: it takes pairs of hexadecimal digits, as 00ff17") from None
    if not regex:
        return Plain(text.encode("utf-8", "surrogateescape"))
    try:
        return Regex(text.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise BadArgument(f"--regex {text}: {error}") from None


def export(
    files: Files = None,
    *,
    datagrams: Annotated[
        bool, typer.Option("--datagrams", help="The datagrams as they were received, one behind the other.")
    ] = False,
    spool: SpoolDirectory = None,
    since: Since = None,
    until: Until = None,
    topic: Topics = None,
    limit: Limit = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Write to this file where the messages come from."),
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Write messages to standard output: JSON lines as of `inspect records --json`, or original datagrams.

    A datagram begins with its length, so that a stream of them can be taken apart: `brucectl send
    --datagrams` hands them to a daemon again, as new messages. Exits with 1 when something on the way could
    not be read.

    The report of --report is a JSON document of version 1: whole (nothing on the way could not be read);
    tool, host, boot_id, made, and sha256 of the segment files.
    """
    paths = segment_files(files, spool, config)
    try:
        _export(files, spool, config, paths, since, until, topic, limit, datagrams=datagrams)
    except typer.Exit as ended:
        if report is not None:
            _write_report(report, paths, whole=ended.exit_code == errors.FINE)
        raise


def _write_report(report: Path, paths: list[Path], *, whole: bool) -> None:
    with file_errors():
        document = {"version": VERSION, "whole": whole, **provenance(paths)}
    try:
        report.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadArgument(f"{report} cannot be written: {error.strerror or error}") from None


def _export(
    files: list[Path] | None,
    spool: Path | None,
    config: Path | None,
    paths: list[Path],
    since: str | None,
    until: str | None,
    topic: list[str] | None,
    limit: int | None,
    *,
    datagrams: bool,
) -> NoReturn:
    from cli.inspect.records import parse_span, select
    from cli.terminal.output import complain

    span = parse_span(since, until, topic or ())
    if not datagrams:
        _print_records(files, spool, config, span=span, limit=limit, values=True, as_json=True)
    if sys.stdout.isatty():
        raise BadArgument("datagrams are no text: send them to a file, or to `brucectl send --datagrams`")
    troubles = itertools.count()

    def note(sentence: str) -> None:
        next(troubles)
        complain(sentence)

    with file_errors():
        found = select(paths, span, note, fleeting=not files)
        for batch, row in itertools.islice(found, limit):
            sys.stdout.buffer.write(batch.datagram(row))
        sys.stdout.buffer.flush()
    raise typer.Exit(errors.FOUND if next(troubles) else errors.FINE)


def show(
    sequence: Annotated[int, typer.Argument(min=0, metavar="SEQ", help="The message's sequence number.")],
    files: Files = None,
    *,
    spool: SpoolDirectory = None,
    kafka: Annotated[bool, typer.Option("--kafka", help="Look for its record in Kafka, too.")] = False,
    bootstrap_servers: BootstrapServers = None,
    no_values: NoValues = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Show everything that is known of one message.

    When it was received and from whom; its segment, frame and place; whether it is committed,
    delivered or discarded, and why; its partition, chosen again, with the reason; key and value. With
    --kafka its records there, by the header bruce-id, from its own time on.

    With --json one document of version 1; bruce-json(5) has it. Exits with 1 when the message cannot be read,
    or is not there.
    """
    from cli.config.config import load_config
    from cli.inspect.message import describe, page, to_json
    from cli.terminal.errors import NotFound
    from cli.terminal.output import show_json, show_lines
    from spool.layout import Layout
    from spool.read.files import Located, locate

    settings = load_config(config)
    layout = None if files else Layout(spool or settings.spool.directory)
    with file_errors():
        found = locate(segment_files(files, spool, config), sequence, fleeting=not files)
    if not isinstance(found, Located):
        raise NotFound(_why_not(sequence, found, layout))
    message = describe(found, layout, settings)
    if kafka or bootstrap_servers:
        message = _in_kafka(message, kafka_properties(settings, bootstrap_servers))
    if as_json:
        show_json(to_json(message, values=not no_values))
    else:
        show_lines(page(message, values=not no_values), cut=False)


def _why_not(sequence: int, found: Unreadable | None, layout: Layout | None) -> str:
    """Why a message cannot be shown."""
    from cli.status.snapshot import account_of
    from spool.format.frame import SEQUENCE
    from spool.index.segment_list import SegmentList

    if found is not None:
        return (
            f"message {sequence} cannot be read: {found.path} is damaged at byte {found.offset}; "
            "see `brucectl inspect verify`"
        )
    if layout is None:
        return f"none of these files holds message {sequence}"
    kept, following = SegmentList(layout).segments, int(account_of(layout).tail[SEQUENCE])
    if sequence >= following:
        return f"message {sequence} is not there yet: the next will be {following}"
    if not kept or sequence < kept[0].first_sequence:
        first = kept[0].first_sequence if kept else following
        return (
            f"message {sequence} is kept no more, the oldest is {first}: it was resolved, and its segment "
            "removed; `brucectl spark audit` looks for its record in Kafka, `brucectl discards` for the rest"
        )
    return f"no message has the number {sequence}: it was passed over when a boot ended badly, or it is lost"


def _in_kafka(message: Message, properties: Mapping[str, str]) -> Message:
    """With the places of its records. Raises Unreachable, BadProperty."""
    from dispatch.consumer import Wanted, find_records

    found = message.found
    topic = found.batch.topics.names[int(found.batch.topic[found.row])].decode("utf-8", "replace")
    wanted = Wanted(topic, message.stamp, message.earliest_ms)
    return replace(message, records=find_records(properties, wanted, message.choice.partition))


def _print_records(
    files: list[Path] | None,
    spool: Path | None,
    config: Path | None,
    *,
    span: Span,
    pattern: Pattern | None = None,
    limit: int | None,
    values: bool,
    as_json: bool,
    on_and_on: bool = False,
) -> NoReturn:
    """Print what is asked for, then leave: FOUND when something could not be read, or nothing had `pattern`.

    `on_and_on`: go on with what comes. Raises BadArgument, NoSpool.
    """
    from cli.inspect.records import Committed, follow, select
    from cli.terminal.output import complain, show_lines
    from spool.layout import Layout

    layout = None if files else Layout(configured_spool(spool, config))
    if on_and_on and layout is None:
        raise BadArgument("--follow needs a spool: a file by itself does not say what is committed")
    committed, troubles, printed = Committed(layout), itertools.count(), itertools.count()

    def note(sentence: str) -> None:
        next(troubles)
        complain(sentence)

    def found() -> Iterator[tuple[Batch, int]]:
        paths = segment_files(files, spool, config)
        if on_and_on and layout is not None:
            return follow(layout, span, pattern, note)
        return select(paths, span, note, pattern=pattern, fleeting=not files)

    # Control-C is the only end of --follow, and may come anywhere.
    with file_errors(), suppress(*([KeyboardInterrupt] if on_and_on else [])):
        lines = map(_shape(committed, values=values, as_json=as_json), itertools.islice(found(), limit))
        show_lines(_counted(lines, printed), cut=not as_json)
    missed = pattern is not None and not next(printed)
    raise typer.Exit(errors.FOUND if next(troubles) or missed else errors.FINE)


def _counted(lines: Iterator[str], count: Iterator[int]) -> Iterator[str]:
    for line in lines:
        next(count)
        yield line


def _shape(committed: Committed, *, values: bool, as_json: bool) -> Callable[[tuple[Batch, int]], str]:
    from cli.inspect.records import as_columns, as_object

    def to_json(one: tuple[Batch, int]) -> str:
        says = committed.covers(int(one[0].sequence[one[1]]))
        return json.dumps({**as_object(*one, values=values), "committed": says})

    def to_line(one: tuple[Batch, int]) -> str:
        mark = ["not committed"] if committed.covers(int(one[0].sequence[one[1]])) is False else []
        return "\t".join([*as_columns(*one, values=values), *mark])

    return to_json if as_json else to_line
