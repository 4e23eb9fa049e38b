"""Both programs begin here: they refuse packages that hide ours, and a command that looks steps aside."""

from __future__ import annotations

import os
import subprocess
import sys

from cli.start import POLITE
from spool.layout import Layout
from tests.cli.terminal.test_clashes import PYPROJECT
from tools.waiting import wait_until


def test_it_steps_aside(layout: Layout) -> None:
    """A command that looks leaves most of the cores to senders and the daemon, from the first moment on."""
    program = [sys.executable, "-c", "from cli.start import brucectl; brucectl()"]
    with subprocess.Popen(
        [*program, "inspect", "records", "--follow", "--spool", layout.directory]
    ) as looking:
        try:
            polite = os.getpriority(os.PRIO_PROCESS, 0) + POLITE
            wait_until(lambda: os.getpriority(os.PRIO_PROCESS, looking.pid) == polite, 60, "it to step aside")
        finally:
            looking.kill()


def test_programs_begin_where_clashes_are_refused() -> None:
    """Both console scripts go by cli.start, which imports nothing that could be hidden."""
    assert PYPROJECT["project"]["scripts"] == {"bruce": "cli.start:bruce", "brucectl": "cli.start:brucectl"}
