"""Shared by the commands of `brucectl inspect`: the files that they read, and the origin of a report."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.commands.arguments import configured_spool
from cli.terminal.errors import BadArgument

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
