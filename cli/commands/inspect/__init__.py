"""`brucectl inspect`: what is in a spool, or in segment files by themselves; and putting it in order.

Nothing is ever written, except by `repair --apply` and `reindex`.
"""

from __future__ import annotations

from cli.commands.inspect import (
    carve,
    export,
    find,
    frames,
    records,
    repair,
    segments,
    show,
    timeline,
    verify,
)

HELP = (
    "Look into a spool, or segment files by themselves. "
    "Nothing is written, except by reindex and by repair --apply."
)

__all__ = [
    "HELP",
    "carve",
    "export",
    "find",
    "frames",
    "records",
    "repair",
    "segments",
    "show",
    "timeline",
    "verify",
]
