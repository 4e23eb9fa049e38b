"""The commands of `brucectl inspect`: they look into a spool, or segment files by themselves, and mend it.

`segments` shows what a log consists of, `messages` what is in it; `carve` finds messages in a disk image;
`repair` verifies a spool and repairs it. Only `repair --apply` and `reindex` write to a spool.

`cli.app` alone imports this folder. Of other commands it imports `cli.commands.arguments` alone.

    "find": command("inspect.messages", "find", "FIND_EXAMPLES"),  # in cli.app
"""

from __future__ import annotations

HELP = (
    "Look into a spool, or segment files by themselves. "
    "Nothing is written, except by reindex and by repair --apply."
)
