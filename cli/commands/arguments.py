"""Arguments that several commands share: options, the files that they read, the origin of a report, examples.

The examples end a command's help.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

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

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE]...", help="Segment files by themselves, instead of a spool."),
]
Hashes = Annotated[
    bool, typer.Option("--hashes", help="With --json, also the sha256 of each file that was looked at.")
]
Limit = Annotated[int | None, typer.Option(min=0, max=sys.maxsize, metavar="N", help="Stop after N of them.")]
NoValues = Annotated[
    bool, typer.Option("--no-values", help="Show how long key and value are, not what they hold.")
]


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


def segment_files(files: list[Path] | None, spool: Path | None, config: Path | None) -> list[Path]:
    """The segment files that are meant. Raises BadArgument, NoSpool."""
    from spool.format.segment import list_files
    from spool.index.identity import read_identity
    from spool.layout import Layout

    if not files:
        layout = Layout(configured_spool(spool, config))
        read_identity(layout)
        return list_files(layout)
    if spool is not None:
        raise BadArgument("give either segment files or --spool, not both")
    for path in files:
        if path.is_dir():
            raise BadArgument(f"{path} is a directory; if it is a spool, give it as --spool {path}")
    # A file in a spool is never a link; one that an operator names may be.
    return [path.resolve() if path.is_symlink() else path for path in files]


def provenance(files: Iterable[Path] | None = None) -> dict[str, Any]:
    """The origin of a JSON report, so that it can be compared with others, and with the files, later.

    The keys are `tool`, `host`, `boot_id`, `made` (UTC), and `sha256` with the hashes of these files.

    Files that are gone meanwhile are left out. Raises OSError for those that cannot be read.
    """
    import socket
    import uuid
    from importlib.metadata import version

    from spool.log.recovery import boot_id
    from spool.storage.parallel import in_order

    origin: dict[str, Any] = {
        "tool": f"bruce {version('bruce-spool')}",
        "host": socket.gethostname(),
        "boot_id": str(uuid.UUID(bytes=boot_id())),
        "made": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    }
    if files is not None:
        origin["sha256"] = dict(in_order(_hash, list(files)))
    return origin


def files_of(directory: Path) -> list[Path]:
    """Every file of a spool, for `provenance`, in order."""
    from spool.storage.disk import is_regular

    return sorted(path for path in directory.rglob("*") if is_regular(path))


def _hash(path: Path) -> Iterator[tuple[str, str]]:
    """(path, sha256 of the file); nothing where it is gone."""
    import hashlib

    from spool.storage.disk import opened

    with suppress(FileNotFoundError), opened(path) as file:
        yield str(path), hashlib.file_digest(file, "sha256").hexdigest()


def examples(*lines: str) -> str:
    r"""The epilog of a command's help: its examples, one a line, kept as they are (the \b says so)."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
