"""The daemon's status worker: it serves the page, the metrics and the API.

It writes nothing and holds nothing that others wait for, and runs at a low priority: neither its end nor its
work is felt where messages are taken in and delivered.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from cli.config import Config
from cli.discards import as_document, list_discards
from cli.figures import Looks
from cli.room import list_full
from cli.snapshot import list_workers
from ingest.supervisor import END
from spool.errors import SpoolError
from spool.page import Field, bump, read_page
from status.access import open_access
from status.errors import NothingToTell
from status.figures import Figures
from status.vital import Vital
from status.web import Server

Found = TypeVar("Found")

_NICE = 5
_SAMPLES = 5
"""Of discarded messages, for each topic and reason."""


def serve(config: Config, page: Path) -> None:
    """Serve until told to END. `page`: the shared one of the daemon. Raises BadAccess."""
    os.nice(_NICE)
    Server(config.status, open_access(config.status), Source(config, page)).run(END)


class Source:
    """What is served, as plain values. Each function waits for the disk, and may be called by a thread."""

    def __init__(self, config: Config, page: Path) -> None:
        self._directory, self._page = config.spool.directory, page
        self._looks = Looks(config.spool.directory)

    def figures(self) -> Figures:
        """A look. Raises NothingToTell."""
        return _told(self._looks.look)

    def discards(self) -> dict[str, Any]:
        """As `brucectl discards --json` prints it. Raises NothingToTell."""
        listing = _told(lambda: list_discards(self._directory, frozenset(), frozenset()))
        return as_document(listing, _SAMPLES)

    def vital(self) -> Vital:
        """From the shared page alone."""
        page = read_page(self._page)
        if page is None:
            return Vital([], [], 0, held=False)
        return Vital(
            list_workers(page),
            list(list_full(page)),
            int(page[Field.STARTED_NS]),
            held=bool(page[Field.HELD]),
        )

    def refresh_metadata(self) -> None:
        """Let the delivery worker know. Raises NothingToTell."""
        _told(lambda: bump(self._page, Field.METADATA_WANTED))


def _told(look: Callable[[], Found]) -> Found:
    try:
        return look()
    except (SpoolError, OSError) as error:
        raise NothingToTell(f"the spool cannot be looked at: {error}") from error
