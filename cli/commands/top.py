"""`brucectl top`: what happens now, second by second."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from cli.arguments import ConfigFile, SpoolDirectory, examples, file_errors
from cli.commands.status import configured
from cli.errors import BadArgument

if TYPE_CHECKING:
    from cli.top import Top, Watcher

EXAMPLES = examples("brucectl top", "brucectl top --spool /var/lib/bruce")
EACH_S = 1.0
_ORDERS = {"r": "rate", "b": "backlog", "n": "name"}


def top(*, spool: SpoolDirectory = None, config: ConfigFile = None) -> None:
    """Watch a spool: rates as they change, by topic and by broker, what waits, and whether all is well.

    A look each second; a chart has a character for each, scaled to its own highest of two minutes. "in" is
    what was stored, "out" what was delivered or discarded; by topic it is not known while topics are
    estimated (~). A broker is behind by what was stored since the first message that waits for it. Unhealthy
    is what `brucectl status` calls so.

    Keys: q ends, p pauses and goes on, r, b and n sort topics by rate, backlog and name. Needs a terminal;
    for a pipe there is `brucectl status --json`. Nothing is written to the spool.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadArgument(
            "top needs a terminal to show and to hear keys; for a pipe there is `brucectl status`"
        )
    from cli.top import Top, Watcher

    directory, options = configured(spool, config)
    with file_errors(), Watcher(directory, options) as watcher:
        # Before the screen is taken: what cannot be looked at at all is said on it.
        state = Top()
        state.add(watcher.look())
        _show(watcher, state)


def _show(watcher: Watcher, state: Top) -> None:
    import time

    from rich.console import Console
    from rich.live import Live

    from cli.keys import Keys
    from cli.top_view import screen

    console, due = Console(), time.monotonic() + EACH_S
    with (
        suppress(KeyboardInterrupt, EOFError),
        Keys(sys.stdin.fileno()) as keys,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            live.update(screen(state, console.size), refresh=True)
            pressed = keys.read(due - time.monotonic())
            if "q" in pressed:
                return
            for key in pressed:
                _obey(state, key)
            if time.monotonic() >= due:
                due = time.monotonic() + EACH_S
                if not state.paused:
                    state.add(watcher.look())


def _obey(state: Top, key: str) -> None:
    from cli.top import Order

    if key in _ORDERS:
        state.order = Order(_ORDERS[key])
    elif key in "p ":
        state.paused = not state.paused
