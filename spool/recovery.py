"""Opening a spool: what the last owner left behind is put in order.

The hard place is that after a power loss nothing can be told about what was written but not synced: a
disk may have kept frame 7 and lost frame 6, and sequence numbers that were given out may be gone. So when
the boot id differs, every segment without a footer is cut behind its last good frame and sealed, and
numbering goes on at the next multiple of 2^32: one number never means two messages. What lies behind a
hole is kept: it was accepted, it stands in order, and what is missing before it is counted as damaged.

A spare that another boot left says the same: it may have been taken into use, and its header be lost with all
that stood in it. A clean end leaves none. When the last segment is sealed already, an empty one behind it
says where numbering goes on; in a spool without any segment, another uuid.

Within one boot nothing is cut: process death loses no stores, and a torn frame at the end is written
over by whoever salvages its burst.

Damaged headers are written anew (spool.headers), and each segment gets the name that its header says
(spool.placement), before anything is believed about where the log ends. The index is thrown away, as it is
itself unsynced; but first it is asked how far the log was committed. When that is not there any more, numbers
were given out that must not be given out again: the log goes on behind them at a new epoch, and what is gone
is counted as damaged.

Rejected: guessing from file times.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from spool.contents import Contents
from spool.crash_point import reach
from spool.disk import (
    PAGE_BYTES,
    is_regular,
    make_directory,
    opened,
    read_at,
    read_text,
    sync_directory,
    write_file,
)
from spool.errors import BadSpool, ReadFailed, UnknownVersion
from spool.format import HEADER_BYTES, decode_header
from spool.frame import BURST, POSITION, SEQUENCE, STORED, Tail, tail_at_start
from spool.fullness import most_spares
from spool.headers import damaged_headers, mend_headers
from spool.identity import agreed_identity, own_identity
from spool.index import read_committed
from spool.layout import SPARE, Layout, parse_name
from spool.live import LiveSegment, end_of, live_segment, next_epoch, read_footer
from spool.lock import Lock
from spool.options import SpoolOptions
from spool.own import claim
from spool.packed import is_packed
from spool.placement import put_in_place
from spool.quarantine import keep, set_aside
from spool.renewal import seal_surely
from spool.scan import Scan, read_header
from spool.segment import UNBOUND, Identity, bound_spares, following, header_behind

log = logging.getLogger("bruce.spool")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UNCLEAN = "the host went down without warning; the log goes on at a new epoch"


@dataclass(frozen=True, slots=True)
class OpenSpool:
    """A spool that this process owns."""

    layout: Layout
    identity: Identity
    lock: Lock


def boot_id() -> bytes:
    """This boot of this host, 16 bytes."""
    return uuid.UUID(read_text(BOOT_ID, 64).strip()).bytes


def open_spool(options: SpoolOptions, note: str = "") -> OpenSpool:
    """Own the spool, make it when there is none, and put its files in order. `note`: as in Lock.

    Raises SpoolBusy when somebody else owns it, NotOurs where others could plant files, UnknownVersion when a
    newer release wrote it, SpoolFull, OSError.
    """
    layout = Layout(options.directory)
    # Whoever is to read it besides is let in here, and nowhere else: chmod of this one directory.
    make_directory(layout.directory, 0o700)
    for path in (layout.segments, layout.delivery, layout.quarantine):
        make_directory(path)
    lock = Lock(layout.lock, "in use", note=note)
    try:
        reach("recover.owned")
        claim(layout.directory, [layout.segments, layout.delivery, layout.quarantine])
        boot = boot_id()
        identity = put_in_order(layout, boot)
        # Last: while they lie there it is known that there was no clean end.
        _remove_spares(layout, options, boot)
    except BaseException:
        lock.release()
        raise
    return OpenSpool(layout, identity, lock)


def put_in_order(layout: Layout, boot: bytes) -> Identity:
    """Put the files of a spool in order, for whoever has its lock; whose they are. Raises as open_spool does.

    Spares stay as they are.
    """
    uncertain = _has_spares_of_another(layout, boot)
    damaged_headers(layout)  # refuses what a newer release wrote, before anything is changed
    committed = known_end(layout)
    _clean(layout)
    reach("recover.cleaned")
    mend_headers(layout)
    if spool := agreed_identity(layout):
        put_in_place(layout, spool)
    identity = own_identity(layout, boot, uncertain=uncertain)
    reach("recover.identified")
    if committed:
        _go_behind(layout, identity, *committed)
    _settle(layout, identity, uncertain=uncertain)
    reach("recover.settled")
    shutil.rmtree(layout.index, ignore_errors=True)
    return identity


def known_end(layout: Layout) -> tuple[int, Tail] | None:
    """(segment number, tail): how far the log was committed, as its index has it."""
    spool = agreed_identity(layout)
    return read_committed(layout.index, spool) if spool else None


def _has_spares_of_another(layout: Layout, boot: bytes) -> bool:
    """Whether there are spares of another boot: then it did not come to a clean end."""
    for number in layout.list_spares():
        try:
            header = read_header(layout.segment(number, SPARE))
        except (UnknownVersion, ReadFailed):
            raise
        except BadSpool:
            continue
        if bytes(header["boot"]) != boot:
            return True
    return False


def _clean(layout: Layout) -> None:
    """Remove what a crash left half made."""
    places = (layout.directory, layout.segments, layout.quarantine)
    half = {path for place in places for path in place.iterdir() if path.suffix == ".tmp"}
    half |= {path for path in layout.segments.iterdir() if path.lstat().st_size == 0}
    # A directory is none of ours; on some filesystems an empty one has no bytes.
    half = {path for path in half if is_regular(path)}
    for path in half:
        path.unlink()
    _say_removed(layout, len(half))


def _remove_spares(layout: Layout, options: SpoolOptions, boot: bytes) -> None:
    """Remove spares that nobody can vouch for, and more of them than max_bytes allows by now."""
    kept = left = 0
    for number in layout.list_spares():
        path = layout.segment(number, SPARE)
        if _is_usable(path, options.segment_bytes, boot):
            if is_bound(path) or kept < most_spares(options.max_bytes, options.segment_bytes):
                kept += not is_bound(path)
                continue
        elif _holds_frames(path):
            set_aside(layout, path, "its header was never finished, and there are messages behind it")
            left += 1
            continue
        path.unlink()
        left += 1
    _say_removed(layout, left)


def _say_removed(layout: Layout, count: int) -> None:
    if count:
        sync_directory(layout.segments)
        log.info("%d half-made or outdated files removed from %s", count, layout.directory)


def _is_usable(path: Path, segment_bytes: int, boot: bytes) -> bool:
    """Whether a spare is bound, or was allocated in this boot, in full.

    After a power loss, stores may be on the disk behind a header that is not; they must not be found later.
    """
    try:
        header = read_header(path)
    except (UnknownVersion, ReadFailed):
        raise
    except BadSpool:
        return False
    status = path.stat()
    whole = status.st_size == segment_bytes <= 512 * status.st_blocks
    return bool(header["first_sequence"] != UNBOUND) or (bytes(header["boot"]) == boot and whole)


def is_bound(path: Path) -> bool:
    """Whether a spare with a good header was taken into use."""
    return bool(read_header(path)["first_sequence"] != UNBOUND)


def _holds_frames(path: Path) -> bool:
    """Whether anything was stored behind the header of a spare, as far as the first page."""
    with opened(path) as file:
        return any(read_at(file.fileno(), PAGE_BYTES, HEADER_BYTES))


def _settle(layout: Layout, identity: Identity, *, uncertain: bool) -> None:
    """Seal what another boot left open. `uncertain`: behind what is sealed, too, something may be gone."""
    live = live_segment(layout)
    if live is None or bytes(live.header["boot"]) == identity.boot:
        return
    if is_sealed(live.path):
        if uncertain:
            log.warning(_UNCLEAN)
            _begin_epoch(layout, identity, end_of(live).tail, int(live.header["number"]) + 1)
        return
    log.warning(_UNCLEAN)
    _seal_open(layout, epoch=True)


def _seal_open(layout: Layout, *, epoch: bool) -> None:
    """Seal what has no footer, behind its last good frame. `epoch`: numbering goes on at the next one."""
    segments = _open_segments(layout)
    for segment in segments:
        path, tail = _name(layout, segment), tail_at_start(segment.header)
        _keep_torn(layout, path, tail)
        reach("recover.torn")
        behind = next_epoch(max(int(segment.header["first_sequence"]), int(tail[SEQUENCE])))
        seal_surely(layout, path, next_sequence=behind if epoch and segment is segments[-1] else None)


def lost_end(layout: Layout, spool: bytes, committed: Tail) -> tuple[int, Tail] | None:
    """(segment number, tail) at the end of the log, where that is before what was committed; else None.

    `spool`: the uuid.
    """
    live = live_segment(layout)
    if live is None or bytes(live.header["spool"]) != spool:
        return None
    end = end_of(live).tail
    return (int(live.header["number"]), end) if committed[BURST] > end[BURST] else None


def _go_behind(layout: Layout, identity: Identity, number: int, committed: Tail) -> None:
    """Where the log ends before what was committed, go on behind that, and count what is missing."""
    found = lost_end(layout, identity.spool, committed)
    if found is None:
        return
    last, end = found
    missing = int(committed[STORED]) - int(end[STORED])
    log.error("%d messages that were committed are gone from the end of the log", missing)
    _seal_open(layout, epoch=False)
    committed[SEQUENCE] = max(committed[SEQUENCE], end[SEQUENCE])
    _begin_epoch(layout, identity, committed, max(number, last) + 1)


def _begin_epoch(layout: Layout, identity: Identity, before: Tail, number: int) -> None:
    """Put an empty and sealed segment behind `before`, at the next epoch."""
    before[SEQUENCE] = next_epoch(int(before[SEQUENCE]))
    head = header_behind(before, identity, number)
    header = decode_header(head, "")
    tail = tail_at_start(header)
    footer = Contents(0).footer(header, tail, following(header, tail))
    write_file(layout.segment(int(before[SEQUENCE])), head + footer)


def is_sealed(path: Path) -> bool:
    """Whether a segment has a footer, or had one when it was packed."""
    with opened(path) as file:
        return read_footer(file.fileno()) is not None or is_packed(file.fileno())


def _is_sealed_surely(path: Path) -> bool:
    """The same; what the disk gives an error for is left as it is."""
    try:
        return is_sealed(path)
    except ReadFailed as error:
        log.error("%s; it is left as it is", error)
        return True


def _open_segments(layout: Layout) -> list[LiveSegment]:
    """The segments at the end of the log that have no footer, in order."""
    named: list[LiveSegment] = []
    for pair in reversed(layout.list_segments()):
        path = layout.segment(*pair)
        if _is_sealed_surely(path):
            break
        named.insert(0, LiveSegment(path, read_header(path)))
    spares = [LiveSegment(path, header) for path, header in bound_spares(layout)]
    # By number: a directory that was not synced may have kept the later of two names.
    return sorted(named + spares, key=lambda segment: int(segment.header["number"]))


def _name(layout: Layout, segment: LiveSegment) -> Path:
    parsed = parse_name(segment.path.name)
    if not parsed or parsed[1] != SPARE:
        return segment.path
    named = layout.segment(int(segment.header["first_sequence"]))
    os.rename(segment.path, named)
    reach("recover.named")
    sync_directory(layout.segments)
    return named


def _keep_torn(layout: Layout, path: Path, tail: Tail) -> None:
    """Move `tail` behind the last good frame, and copy what stands there, if not zero, to quarantine."""
    with opened(path) as file:
        scan = Scan(file.fileno(), tail)
        for _ in scan.all():
            continue
        position = int(tail[POSITION])
        torn = read_at(file.fileno(), min(scan.limit - position, 64 << 20), position).rstrip(b"\0")
    if torn:
        keep(layout, f"{path.name}.torn", torn)
        log.warning("%s: %d bytes of a torn frame cut off", path, len(torn))
