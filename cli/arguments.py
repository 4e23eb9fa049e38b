"""Options that several commands share, and the examples that end each command's help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Read this file instead of $BRUCE_CONFIG or /etc/bruce/bruce.toml."
    ),
]


def examples(*lines: str) -> str:
    r"""The epilog of a command's help: its examples, one a line, kept as they are (the \b says so)."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
