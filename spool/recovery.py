"""Opening a spool: whose it is, and what the last owner left behind.

The hard place is that after a power loss nothing can be told about what was written but not synced: a
disk may have kept frame 7 and lost frame 6, and sequence numbers that were given out may be gone. So when
the boot id differs, every segment without a footer is cut behind its last good frame and sealed, what
does not continue the chain goes to quarantine, and numbering goes on at the next multiple of 2^32: one
number never means two messages.

Within one boot nothing is cut: process death loses no stores, and a torn frame at the end is written
over by whoever salvages its burst.

Rejected: guessing from file times, or trusting the index, which is itself unsynced.
"""

from __future__ import annotations

import logging
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from spool.disk import make_directory, read_at, sync_directory, write_file
from spool.errors import BadSpool, NoSpool
from spool.format import HEAD_BYTES
from spool.frame import DIGEST, POSITION, Tail
from spool.layout import SPARE, Layout, parse_name
from spool.live import EPOCH, LiveSegment, end_of, live_segment, read_footer
from spool.lock import Lock
from spool.options import SpoolOptions
from spool.scan import read_header
from spool.segment import Identity, bound_spares, seal

log = logging.getLogger("bruce.spool")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class OpenSpool:
    """A spool that this process owns."""

    layout: Layout
    identity: Identity
    lock: Lock


def boot_id() -> bytes:
    """This boot of this host, 16 bytes."""
    return uuid.UUID(BOOT_ID.read_text().strip()).bytes


def read_identity(layout: Layout) -> bytes:
    """The uuid of a spool, 16 bytes. Raises NoSpool when the directory holds none."""
    try:
        return uuid.UUID(layout.identity.read_text().strip()).bytes
    except FileNotFoundError:
        pass
    except ValueError:
        log.warning("%s is damaged; the uuid is taken from the segments", layout.identity)
    for pair in layout.list_segments():
        try:
            return bytes(read_header(layout.segment(*pair))["spool"])
        except BadSpool:
            continue
    raise NoSpool(f"{layout.directory} holds no spool; see [spool] directory")


def open_spool(options: SpoolOptions) -> OpenSpool:
    """Own the spool, make it when there is none, and put its files in order.

    Raises SpoolBusy when somebody else owns it, UnknownVersion when a newer release wrote it, OSError.
    """
    layout = Layout(options.directory)
    for path in (layout.directory, layout.segments, layout.delivery, layout.quarantine):
        make_directory(path)
    lock = Lock(layout.lock, "the spool of a running bruce")
    try:
        spool = read_identity(layout)
    except NoSpool:
        spool = uuid.uuid4().bytes
    if not layout.identity.exists():
        write_file(layout.identity, f"{uuid.UUID(bytes=spool)}\n".encode())
    identity = Identity(spool, boot_id())
    _clean(layout)
    _settle(layout, identity)
    return OpenSpool(layout, identity, lock)


def _clean(layout: Layout) -> None:
    """Remove files that a crash left half made."""
    left = [path for path in layout.segments.iterdir() if path.suffix == ".tmp"]
    for path in left:
        path.unlink()
    if left:
        log.info("%d half-made files removed from %s", len(left), layout.segments)


def _settle(layout: Layout, identity: Identity) -> None:
    """Seal what another boot left open."""
    try:
        live = live_segment(layout)
    except BadSpool as error:
        _set_aside(layout, layout.segment(*layout.list_segments()[-1]), str(error))
        live = live_segment(layout)
        if live:
            _seal_unclean(layout, [live])
        return
    if live is None or bytes(live.header["boot"]) == identity.boot or _sealed(live.path):
        return
    log.warning("the host went down without warning; the log goes on at a new epoch")
    _seal_unclean(layout, _open_segments(layout))


def _sealed(path: Path) -> bool:
    with path.open("rb", buffering=0) as file:
        return read_footer(file.fileno()) is not None


def _open_segments(layout: Layout) -> list[LiveSegment]:
    """The segments at the end of the log that have no footer, in order."""
    named: list[LiveSegment] = []
    for pair in reversed(layout.list_segments()):
        path = layout.segment(*pair)
        if _sealed(path):
            break
        named.insert(0, LiveSegment(path, read_header(path)))
    return named + [LiveSegment(path, header) for path, header in bound_spares(layout)]


def _seal_unclean(layout: Layout, segments: list[LiveSegment]) -> None:
    """Seal a chain of segments; behind its first break, set aside."""
    before: Tail | None = None
    for segment in segments:
        if before is not None and int(segment.header["previous"]) != int(before[DIGEST]) & 0xFFFFFFFFFFFFFFFF:
            _set_aside(layout, segment.path, "it does not continue the segment before it")
            continue
        path = _name(layout, segment)
        before = end_of(LiveSegment(path, segment.header)).tail
        _keep_torn(layout, path, int(before[POSITION]))
        first = int(segment.header["first_sequence"])
        seal(path, next_sequence=(max(first, int(before[1])) // EPOCH + 1) * EPOCH)


def _name(layout: Layout, segment: LiveSegment) -> Path:
    parsed = parse_name(segment.path.name)
    if not parsed or parsed[1] != SPARE:
        return segment.path
    named = layout.segment(int(segment.header["first_sequence"]))
    os.rename(segment.path, named)
    sync_directory(layout.segments)
    return named


def _keep_torn(layout: Layout, path: Path, position: int) -> None:
    """Copy what stands behind the last good frame, as far as it is not zero, to quarantine."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        torn = read_at(file.fileno(), min(size - position, 64 << 20), position).rstrip(b"\0")
    if len(torn) > HEAD_BYTES // 8:
        write_file(layout.quarantine / f"{path.name}.torn", torn)
        log.warning("%s: %d bytes of a torn frame cut off, kept in %s", path, len(torn), layout.quarantine)


def _set_aside(layout: Layout, path: Path, reason: str) -> None:
    os.rename(path, layout.quarantine / path.name)
    sync_directory(layout.segments)
    sync_directory(layout.quarantine)
    log.error("%s moved to %s: %s", path.name, layout.quarantine, reason)
