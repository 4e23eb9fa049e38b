"""The daemon's status worker: it serves the shared state, the metrics and the API.

It writes nothing, holds nothing that other workers wait for, and runs at a low priority: neither its end nor
its work delays intake or delivery.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from cli.inspect.discards import as_document, list_discards
from cli.status.figures import Looks
from cli.status.snapshot import list_full, list_workers
from ingest.supervisor import END
from spool.errors import SpoolError
from spool.index.environment import LMDB_REFUSES
from spool.shared.state import Field, bump, read_shared_state, read_text
from status.access import Access, NothingToTell
from status.figures import Figures
from status.health import Health
from status.web import Server
from status.witness import Witness

Found = TypeVar("Found")

_SAMPLES = 5
"""Of discarded messages, for each topic and reason."""


def serve(source: Source, access: Access, listener: socket.socket, beat: Callable[[], None]) -> None:
    """Serve the clients of a listening socket until the signal END; `beat` is called every few seconds."""
    Server(access, source).run(listener, END, beat)


class Source:
    """The figures to serve, as plain values. Each function waits for the disk; a thread may call it."""

    def __init__(
        self, directory: Path, shared: Path, inputs: Iterable[str], witness: Path | None = None
    ) -> None:
        """`directory`: of the spool. `shared`: the daemon's shared state. `inputs`: those that are open.

        `witness`: the directory of a witness whose verdict is shown, too.
        """
        self._directory, self._shared = directory, shared
        self._looks = Looks(directory, inputs, Witness(witness) if witness else None)

    def figures(self) -> Figures:
        """A look. Raises NothingToTell."""
        return _told(self._looks.look)

    def discards(self) -> dict[str, Any]:
        """As `brucectl discards --json` prints it. Raises NothingToTell."""
        listing = _told(lambda: list_discards(self._directory, frozenset(), frozenset()))
        return as_document(listing, _SAMPLES)

    def health(self) -> Health:
        """From the shared state alone."""
        shared = read_shared_state(self._shared)
        if shared is None:
            return Health([], [], 0, held=False)
        return Health(
            list_workers(shared),
            list(list_full(shared)),
            int(shared[Field.STARTED_NS]),
            held=bool(shared[Field.PAUSED]),
            lost_inputs=read_text(shared, Field.LOST_INPUTS) or "",
        )

    def refresh_metadata(self) -> None:
        """Let the delivery worker know. Raises NothingToTell."""
        _told(lambda: bump(self._shared, Field.METADATA_WANTED))


def _told(look: Callable[[], Found]) -> Found:
    try:
        return look()
    except (SpoolError, OSError, LMDB_REFUSES) as error:
        raise NothingToTell(f"the spool cannot be looked at: {error}") from error
