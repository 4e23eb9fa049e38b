"""Building the index of a spool by hand: it is derived, and what it replaces goes to quarantine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from spool.committer import Committer
from spool.disk import make_directory, sync_directory
from spool.errors import BadSpool
from spool.frame import SEQUENCE
from spool.headers import damaged_headers
from spool.identity import read_identity
from spool.index import Index
from spool.layout import Layout
from spool.lock import Lock
from spool.page import Page
from spool.quarantine import free_place
from spool.recovery import boot_id, known_end, lost_end


def reindex(layout: Layout) -> tuple[int, int]:
    """Build the index of a spool that nobody has open; the old one goes to quarantine.

    (segment number, sequence) of the committed end. Raises SpoolBusy, NoSpool, BadSpool, OSError.
    """
    spool = read_identity(layout)
    make_directory(layout.quarantine)
    lock = Lock(layout.lock, "in use", note="repairing")
    try:
        if damaged := damaged_headers(layout):
            path = layout.segment(*damaged[0])
            raise BadSpool(f"{path} has a damaged segment header; see `brucectl inspect repair`")
        if (known := known_end(layout)) and lost_end(layout, spool, known[1]):
            # Without this index their numbers would be given to others, which the marks call delivered.
            raise BadSpool(
                f"messages that were committed are gone from the end of {layout.segments}, and only the "
                "index says so; see `brucectl inspect repair`"
            )
        return build_index(layout, spool, boot_id())
    finally:
        lock.release()


def build_index(layout: Layout, spool: bytes, boot: bytes) -> tuple[int, int]:
    """The same for a caller that has the lock, of the spool with this uuid in this boot, 16 bytes each."""
    if layout.index.exists():
        os.rename(layout.index, free_place(layout, "index"))
        sync_directory(layout.directory)
    index = Index(layout.index, spool, boot)
    try:
        with tempfile.TemporaryDirectory() as name:
            committer = Committer(layout, index, Page(Path(name) / "page"))
            committer.commit_all()
            return committer.number, int(committer.tail[SEQUENCE])
    finally:
        index.close()
