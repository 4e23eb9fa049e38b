"""Options that several commands share, and the examples that end each command's help."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cli.terminal.errors import BadArgument
from cli.terminal.output import is_of_output
from spool.errors import BadSpool

_OF_WRITING = (errno.EROFS, errno.ENOSPC, errno.EDQUOT)

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Read this file instead of $BRUCE_CONFIG or /etc/bruce/bruce.toml."
    ),
]

SpoolDirectory = Annotated[
    Path | None,
    typer.Option("--spool", metavar="DIR", help="The spool to work on; else the configured one."),
]
OtherKafka = Annotated[
    Path | None,
    typer.Option(
        "--kafka", metavar="FILE", help="Send to the cluster that the [kafka] table of this file names."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="SEQ|TIME",
        help="Begin with this sequence number, or with what was received at this time: "
        "ISO 8601, local without an offset, or -30m, -2h, -7d.",
    ),
]
Until = Annotated[
    str | None, typer.Option("--to", metavar="SEQ|TIME", help="Stop before this one, given in the same way.")
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="T", help="Only this topic; repeatable.")
]

Keys = Annotated[list[str] | None, typer.Option("--key", metavar="K", help="Only with this key; repeatable.")]
PartitionKeys = Annotated[
    list[int] | None,
    typer.Option("--partition-key", metavar="N", help="Only with this partition key; repeatable."),
]
Uids = Annotated[
    list[int] | None, typer.Option("--uid", metavar="N", help="Only of this sender; repeatable.")
]
ToTopic = Annotated[
    str | None, typer.Option("--to-topic", metavar="T", help="Send all of them to this topic instead.")
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", min=0, metavar="S", help="Give up after S seconds (default: wait for ever)."),
]
SendThem = Annotated[bool, typer.Option("--yes", help="Send them; else they are only counted.")]


@contextmanager
def file_errors() -> Iterator[None]:
    """Make one sentence of what the file system refuses. Raises BadArgument; BadSpool as it is."""
    try:
        yield
    except OSError as error:
        # A disk that fails, or a pipe in the spool, is no wrong argument.
        if is_of_output(error) or isinstance(error, BadSpool):
            raise
        done = "written" if error.errno in _OF_WRITING else "read"
        raise BadArgument(
            f"{error.filename or 'a file'} cannot be {done}: {error.strerror or error}"
        ) from None


def configured_spool(named: Path | None, config: Path | None) -> Path:
    """The directory of the spool that is meant. Raises ConfigError."""
    if named is not None:
        return named
    from cli.config.config import load_config  # it brings librdkafka along

    return load_config(config).spool.directory


def examples(*lines: str) -> str:
    r"""The epilog of a command's help: its examples, one a line, kept as they are (the \b says so)."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
