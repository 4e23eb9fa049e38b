"""What the commands of `brucectl inspect` share: which files they look at."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import configured_spool
from cli.errors import BadArgument

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE]...", help="Segment files by themselves, instead of a spool."),
]
Hashes = Annotated[
    bool, typer.Option("--hashes", help="With --json, also the sha256 of each file that was looked at.")
]
Limit = Annotated[int | None, typer.Option(min=0, max=sys.maxsize, metavar="N", help="Stop after so many.")]
NoValues = Annotated[
    bool, typer.Option("--no-values", help="Show how long key and value are, not what they hold.")
]


def segment_files(files: list[Path] | None, spool: Path | None, config: Path | None) -> list[Path]:
    """The segment files that are meant. Raises BadArgument, NoSpool."""
    from spool.files import list_files
    from spool.identity import read_identity
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
