"""Quarantine: where bytes go that cannot be used. Nothing is thrown away unseen."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from spool.disk import sync_directory, write_file
from spool.layout import Layout

log = logging.getLogger("bruce.spool")


def keep(layout: Layout, name: str, data: bytes) -> None:
    """Put a copy of evidence in quarantine; without room for it, say so and go on."""
    try:
        write_file(layout.quarantine / name, data)
    except OSError as error:
        log.error("%s could not be kept in %s: %s", name, layout.quarantine, error.strerror)


def set_aside(layout: Layout, path: Path, reason: str) -> None:
    """Move a segment that cannot be used to quarantine."""
    os.rename(path, layout.quarantine / path.name)
    sync_directory(layout.segments)
    sync_directory(layout.quarantine)
    log.error("%s moved to %s: %s", path.name, layout.quarantine, reason)
