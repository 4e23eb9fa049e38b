"""`brucectl send`: what a program does to hand bruce a message, from the shell."""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from bruce_client.message import Message, in_batches, to_bytes
from cli.commands.arguments import ConfigFile, examples
from cli.terminal.errors import BadArgument, CliError

if TYPE_CHECKING:
    from cli.config.settings import IngestOptions

EXAMPLES = examples(
    """brucectl send --topic clicks '{"page": 7}'""",
    "brucectl send --topic clicks --partition-key 42 --timestamp 1700000000123 hello",
    "brucectl send --topic clicks --header content-type=text/plain --partition 3 hello",
    "brucectl send --topic users --key 4711 --null-value",
    "brucectl send --topic clicks - < value.json",
    "tail -f access.log | brucectl send --topic access --lines",
    "brucectl send --topic access --lines --batch < access.log",
    "brucectl inspect export --datagrams *.seg | brucectl send --datagrams",
)
_LENGTH = struct.Struct(">i")


def send(
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="The value of the message; - is standard input.")
    ] = None,
    *,
    topic: Annotated[str | None, typer.Option(help="The topic that it is for.")] = None,
    key: Annotated[str, typer.Option(help="The key of the Kafka record; none when it is empty.")] = "",
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A header of the record; again for more of them."),
    ] = None,
    null_value: Annotated[
        bool, typer.Option("--null-value", help="In place of a VALUE: null, which deletes the key.")
    ] = False,
    partition: Annotated[
        int | None, typer.Option(min=0, help="The partition that it goes to, whatever its key.")
    ] = None,
    partition_key: Annotated[
        int | None, typer.Option(help="Messages with the same number stay in order, in one partition.")
    ] = None,
    timestamp: Annotated[
        int | None, typer.Option(metavar="MS", help="Of the Kafka record, in ms since the epoch; else now.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Send each line of standard input as a message.")
    ] = False,
    batch: Annotated[
        bool,
        typer.Option("--batch", help="With --lines: as many in a datagram as there is room for."),
    ] = False,
    datagrams: Annotated[
        bool,
        typer.Option(
            "--datagrams", help="Send what `inspect export --datagrams` wrote, from standard input."
        ),
    ] = False,
    socket_path: Annotated[
        Path | None,
        typer.Option(
            "--socket", metavar="PATH", help="The daemon's datagram socket; else the configured one."
        ),
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Hand the daemon one message, or one per line of standard input, or exported ones.

    It returns when the daemon's socket has taken the message: from then on bruce answers for it. It waits
    while the queue of the socket is full. A message that is larger than a datagram goes by the stream socket
    or the TCP port of the configuration, and is sent when it is stored; with --socket only if that is the
    configured one, since the stream may be another daemon's.
    """
    if (value is not None) + null_value + lines + datagrams != 1:
        raise BadArgument(
            "give either a VALUE or --null-value, or --lines or --datagrams to send what standard input has"
        )
    if batch and not lines:
        raise BadArgument("--batch goes with --lines")
    if datagrams:
        given = (topic, key, header, partition, partition_key, timestamp)
        if given != (None, "", None, None, None, None):
            raise BadArgument("--datagrams takes none of the options that make a message, such as --topic")
        found = _exported(sys.stdin.buffer)
    elif topic is None:
        raise BadArgument("--topic is missing: a message is for one")
    else:
        values = _lines() if lines else iter([None if value is None else _value(value)])
        one = _message(topic, key, header or (), partition, partition_key, timestamp)
        found = _encoded(topic, (one._replace(value=value) for value in values))
        found = (data for _, data in in_batches(found)) if batch else found
    from cli.replay.sending import send_all

    ingest = _configured(config, socket_path)
    if ingest is not None:
        most = ingest.max_stream_message_bytes
        send_all(ingest.datagram_socket, found, ingest.stream_address, most_bytes=most)
    elif socket_path is not None:
        why = "--socket is not the configured one, whose stream may be another daemon's"
        send_all(socket_path, found, no_stream=why)


def _value(text: str) -> bytes:
    from spool.format.segment_format import MAX_BODY_BYTES

    # One byte more than any message may have: it is refused by its size then.
    return sys.stdin.buffer.read(MAX_BODY_BYTES + 1) if text == "-" else text.encode(errors="surrogateescape")


def _lines() -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n")


def _exported(stream: BinaryIO) -> Iterator[bytes]:
    """Datagrams that lie one behind the other, each beginning with its length. Raises BadArgument."""
    from spool.format.segment_format import MAX_BODY_BYTES

    place = 0
    while length := stream.read(_LENGTH.size):
        (size,) = _LENGTH.unpack(length.ljust(_LENGTH.size, b"\xff"))
        rest = stream.read(size - _LENGTH.size) if _LENGTH.size < size <= MAX_BODY_BYTES else b""
        if len(rest) != size - _LENGTH.size:
            raise BadArgument(
                f"at byte {place} of standard input there is no whole datagram; all before it is sent"
            )
        place += size
        yield length + rest


def _message(
    topic: str,
    key: str,
    headers: Iterable[str],
    partition: int | None,
    partition_key: int | None,
    timestamp: int | None,
) -> Message:
    """The message without its value. Raises BadArgument."""
    pairs = []
    for header in headers:
        name, equals, text = header.partition("=")
        if not equals:
            raise BadArgument(f"--header is NAME=VALUE, and {header!r} has no =")
        pairs.append((name, text.encode(errors="surrogateescape")))
    topic_bytes, key_bytes = (text.encode(errors="surrogateescape") for text in (topic, key))
    return Message(topic_bytes, None, key_bytes or None, pairs, partition, partition_key, timestamp)


def _encoded(topic: str, messages: Iterable[Message]) -> Iterator[bytes]:
    """Raises BadArgument."""
    for message in messages:
        try:
            yield to_bytes(message, time.time_ns() // 1_000_000)
        except ValueError as error:
            raise BadArgument(f"no message for topic {topic!r}: {error}") from None
        except struct.error:
            raise BadArgument(
                "a timestamp is a number of 64 bits, a partition or a partition key one of 32"
            ) from None


def _configured(config: Path | None, socket_path: Path | None) -> IngestOptions | None:
    """The inputs of the daemon; None if the socket is not that of the configuration. Raises ConfigError."""
    from cli.config.config import load_config

    if socket_path is None:
        return load_config(config).ingest
    # One that is named needs no configuration that can be used.
    with suppress(CliError, OSError):
        ingest = load_config(config).ingest
        return ingest if os.path.samefile(socket_path, ingest.datagram_socket) else None
    return None
