"""Quarantine: where bytes go that cannot be used. Nothing is thrown away unseen."""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path

from spool.disk import sync_directory, write_file
from spool.layout import Layout

log = logging.getLogger("bruce.spool")


def free_place(layout: Layout, name: str) -> Path:
    """Where something can lie under this name, beside what came before: NAME, NAME.1, NAME.2 ..."""
    names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(1)))
    return next(path for path in map(layout.quarantine.joinpath, names) if not path.exists())


def keep(layout: Layout, name: str, data: bytes) -> None:
    """Put a copy of evidence in quarantine; without room for it, say so and go on."""
    try:
        write_file(free_place(layout, name), data)
    except OSError as error:
        log.error("%s could not be kept in %s: %s", name, layout.quarantine, error.strerror)


def set_aside(layout: Layout, path: Path, reason: str) -> None:
    """Move a file that cannot be used to quarantine."""
    os.rename(path, free_place(layout, path.name))
    sync_directory(path.parent)
    sync_directory(layout.quarantine)
    log.error("%s moved to %s: %s", path.name, layout.quarantine, reason)
