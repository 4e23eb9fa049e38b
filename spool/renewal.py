"""After a failed sync: what a segment holds goes into a fresh file, and the suspect one to quarantine.

The hard place is that a failed sync cannot be repeated. The kernel has told its error once and calls the
pages clean, on the disk or not: the next sync of the same file succeeds without having written them. So
the file is never synced again and believed. Its bytes are still to be had, from memory, or else they do
not verify; they are written to another file, which is synced, and takes the suspect's name in one rename.
Frames, sequence numbers and the chain of digests stay as they are: to whoever reads, nothing has happened.

Nobody may store into the suspect any more when it is renewed: the appender has gone on to the next segment,
or is gone itself. Whoever knows that says so; see spool.committer.

Rejected: appending the frames behind others in the next segment (they would be there twice, or under new
numbers, after a crash in between), and writing them over themselves in place (whether the filesystem gives
them other blocks is its own affair).
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

import numpy as np

from spool.crash_point import reach
from spool.disk import PAGE_BYTES, make_anew, open_to_read, read_at, sync_directory, write_at
from spool.errors import ReadFailed
from spool.frame import POSITION, Tail, tail_at_start
from spool.layout import Layout
from spool.scan import Scan, read_header
from spool.segment import seal

log = logging.getLogger("bruce.keeper")

_COPY_BYTES = 1 << 20


def renew(layout: Layout, path: Path) -> None:
    """Put a fresh and synced file with the same frames in the place of a suspect segment.

    It ends behind the last good frame, so that nothing is ever appended to it. Raises OSError, BadSpool; the
    suspect is where it was then, or renewed without the directory being known to be synced: do it again.
    """
    fresh = path.with_suffix(path.suffix + ".tmp")
    fd = make_anew(fresh)
    try:
        _copy(path, fd)
        tail = tail_at_start(read_header(fresh))
        for _ in Scan(fd, tail).all():
            continue
        os.ftruncate(fd, int(tail[POSITION]))
        os.fsync(fd)
        reach("renew.synced")
        _keep(layout, path)
        reach("renew.kept")
        os.rename(fresh, path)
        reach("renew.named")
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    sync_directory(layout.segments)


def _copy(path: Path, target: int) -> None:
    source = open_to_read(path)
    try:
        copy_readable(source, target)
    finally:
        os.close(source)


def copy_readable(source: int, target: int) -> None:
    """Copy a file; what cannot be read becomes zeros, as zeros become holes."""
    size = os.fstat(source).st_size
    for offset in range(0, size, _COPY_BYTES):
        data = _read(source, min(_COPY_BYTES, size - offset), offset)
        if np.frombuffer(data, np.uint8).any():
            write_at(target, data, offset)
    os.ftruncate(target, size)


def _read(fd: int, length: int, offset: int) -> bytes:
    with contextlib.suppress(OSError):
        return read_at(fd, length, offset)
    parts = []
    for at in range(offset, offset + length, PAGE_BYTES):
        part = min(PAGE_BYTES, offset + length - at)
        try:
            parts.append(read_at(fd, part, at))
        except OSError as error:
            log.error("%d bytes at %d of a segment cannot be read: %s", part, at, error.strerror)
            parts.append(bytes(part))
    return b"".join(parts)


def _keep(layout: Layout, path: Path) -> None:
    """Keep the suspect file as evidence: the last one only, since a bad disk makes many."""
    for old in layout.quarantine.glob("*.suspect"):
        old.unlink(missing_ok=True)
    try:
        os.link(path, layout.quarantine / f"{path.name}.suspect")
    except OSError as error:
        log.warning("%s is not kept in %s: %s", path.name, layout.quarantine, error.strerror)


def seal_surely(layout: Layout, path: Path, *, next_sequence: int | None = None) -> Tail:
    """Seal a segment (spool.segment.seal); when its sync fails, in a fresh file. Raises as both do.

    What cannot be read is not copied: in a fresh file it would be gone.
    """
    try:
        return seal(path, next_sequence=next_sequence)
    except (FileNotFoundError, ReadFailed):
        raise
    except OSError as error:
        log.error("%s could not be sealed: %s; it is sealed in a fresh file", path, error.strerror)
    renew(layout, path)
    return seal(path, next_sequence=next_sequence)
