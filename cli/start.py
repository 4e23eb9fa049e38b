"""The entry points of `bruce` and `brucectl`: they check that Python imports our packages, and not others.

Packages of others with our names would end in a traceback without a cause.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from cli.terminal.clashes import HOME, find_clashes

POLITE = 12
"""A fifteenth of what others get of a core that both want (sched(7))."""
USAGE = 2
"""The exit code of cli.terminal.errors, which may be hidden, too."""


def bruce() -> NoReturn:
    """Run the daemon's program."""
    refuse_clashes()
    from cli import app  # noqa: PLC0415  (it imports what may be hidden)

    app.bruce()


def brucectl() -> NoReturn:
    """Run the operator's program."""
    if sys.argv[1:2] == ["inspect"]:
        step_aside()
    refuse_clashes()
    from cli import app  # noqa: PLC0415  (it imports what may be hidden)

    app.brucectl()


def step_aside() -> None:
    """Lower our priority: `brucectl inspect` competes with senders and the daemon for the cores.

    Not SCHED_IDLE: on a host that is busy all the time, a look would take minutes.
    """
    os.nice(POLITE)


def refuse_clashes() -> None:
    """End, with one sentence, when Python would import others in place of our packages."""
    first = next((clash for clash in find_clashes(sys.path) if clash.first), None)
    if first:
        sys.stderr.write(
            f"the package {first.package} in {first.place} hides that of bruce, in {HOME}: "
            "take it out of PYTHONPATH, or give bruce an environment of its own\n"
        )
        raise SystemExit(USAGE)
