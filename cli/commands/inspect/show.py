"""`brucectl inspect show`: everything that is known of one message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import AsJson, ConfigFile, SpoolDirectory, examples, file_errors
from cli.commands.inspect.options import Files, NoValues, segment_files
from cli.commands.spark.options import BootstrapServers, kafka_properties

if TYPE_CHECKING:
    from cli.message import Message
    from spool.files import Unreadable
    from spool.layout import Layout

EXAMPLES = examples(
    "brucectl inspect show 4711",
    "brucectl inspect show 4711 --kafka",
    "brucectl inspect show 450571 /mnt/dead-host/00000000000000450560.seg --json",
)


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

    When it was received and from whom; the segment, frame and place it lies in; whether it is committed,
    delivered or discarded, and why; its partition, chosen again, with the reason; key and value. With
    --kafka its records there, by the header bruce-id, from its own time on.

    With --json one document of version 1; bruce-json(5) has it. Exits with 1 when the message cannot be read,
    or is not there.
    """
    from cli.config import load_config
    from cli.errors import NotFound
    from cli.message import describe, to_json
    from cli.message_view import page
    from cli.output import show_json, show_lines
    from spool.layout import Layout
    from spool.locate import Located, locate

    settings = load_config(config)
    layout = None if files else Layout(spool or settings.spool.directory)
    with file_errors():
        found = locate(segment_files(files, spool, config), sequence, fleeting=not files)
    if not isinstance(found, Located):
        raise NotFound(_why_not(sequence, found, layout))
    message = describe(found, layout, settings.partitioners)
    if kafka or bootstrap_servers:
        message = _in_kafka(message, kafka_properties(settings, bootstrap_servers))
    if as_json:
        show_json(to_json(message, values=not no_values))
    else:
        show_lines(page(message, values=not no_values), cut=False)


def _why_not(sequence: int, found: Unreadable | None, layout: Layout | None) -> str:
    """Why a message cannot be shown."""
    from cli.snapshot import account_of
    from spool.catalogue import Catalogue
    from spool.frame import SEQUENCE

    if found is not None:
        return (
            f"message {sequence} cannot be read: {found.path} is damaged at byte {found.offset}; "
            "see `brucectl inspect verify`"
        )
    if layout is None:
        return f"none of these files holds message {sequence}"
    kept, following = Catalogue(layout).segments, int(account_of(layout).tail[SEQUENCE])
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
    from dispatch.search import Wanted, find_records

    found = message.found
    topic = found.batch.topics.names[int(found.batch.topic[found.row])].decode("utf-8", "replace")
    wanted = Wanted(topic, message.stamp, message.earliest_ms)
    return replace(message, records=find_records(properties, wanted, message.choice.partition))
