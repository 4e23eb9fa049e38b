"""The death of every process at once, with and without `bruce hold-socket`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tools.adversaries.attack import Holder
from tools.adversaries.neighbours import KillAll
from tools.bruce_process import ROOT, Bruce
from tools.waiting import wait_until

if TYPE_CHECKING:
    from tools.adversaries.arena import Arena

_HELD, _HOLD_S = "holding ", 60.0
_COMMAND = "import sys; from cli.app import bruce; sys.argv.insert(1, 'hold-socket'); bruce()"


class KillHeld(KillAll):
    """Every process of bruce dies at once, repeatedly, beside `bruce hold-socket`: nothing is lost."""

    name = "kill-all-held"
    holder = Holder.HOLD_SOCKET

    def before(self, arena: Arena) -> None:
        arena.at_end.enter_context(hold_socket(arena.bruce))


class KillUnheld(KillAll):
    """Every process dies at once, without a holder of the socket: the messages in its queue may be lost."""

    name = "kill-all-unheld"
    holder = Holder.NOBODY


@contextmanager
def hold_socket(bruce: Bruce) -> Iterator[None]:
    """A holder of the sockets of this daemon, until the block ends."""
    path = bruce.directory / "holder.log"
    with path.open("w") as log:
        command = [sys.executable, "-c", _COMMAND, "--config", str(bruce.config)]
        process = subprocess.Popen(command, cwd=ROOT, env=bruce.environ, stdout=log, stderr=log)
    try:
        wait_until(lambda: _HELD in path.read_text(), _HOLD_S, f"bruce hold-socket to hold; see {path}")
        yield
    finally:
        process.kill()
        process.wait()
