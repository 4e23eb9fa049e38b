"""Opening a spool: put in order the files that the last owner left.

The hard part is that a power loss leaves no record of what was written but not synced: a disk may have kept
frame 7 and lost frame 6, and sequence numbers that were given out may be gone. So when the boot id differs,
every segment without a footer is cut behind its last good frame and sealed, and numbering goes on at the next
multiple of 2^32: one number never means two messages. Frames behind a hole are kept: they were accepted and
are in order, and the messages missing before them are counted as damaged.

A spare of another boot says the same: it may have been taken into use, and its header lost with all frames in
it. A clean end leaves no spares. When the last segment is already sealed, an empty one behind it says where
numbering goes on; in a spool without any segment, a new uuid does.

Within one boot nothing is cut: the death of a process loses no stores, and the process that salvages a burst
overwrites its torn frame at the end.

Before the end of the log is looked for, damaged headers are rewritten (spool.index.headers), and each segment
gets the name that its header says: readers find segments by name and number, so a file that was renamed,
restored twice or copied from elsewhere hides messages, or adds some that do not belong here. A file of
another spool, anything but a regular file, and a second copy with no more in it go to quarantine. The index
is not synced, and so is removed; but first recovery reads from it how far the log was committed. When that
end is gone, numbers were given out that must not be given out again: the log goes on behind them at a new
epoch, and the missing messages are counted as damaged.

Rejected: guessing from file times.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from spool.errors import BadSpool, ReadFailed, UnknownVersion
from spool.format.contents import Contents
from spool.format.frame import BURST, POSITION, SEQUENCE, STORED, Tail, tail_at_start
from spool.format.packed import is_packed
from spool.format.scan import Scan, read_header
from spool.format.segment import UNBOUND, Identity, bound_spares, following, header_behind
from spool.format.segment_format import HEADER_BYTES, Record, decode_header
from spool.index.committed import read_committed
from spool.index.headers import damaged_headers, mend_headers
from spool.index.identity import agreed_identity, own_identity
from spool.index.log_end import LiveSegment, empty_tail, end_of, live_segment, next_epoch, read_footer
from spool.layout import SENT, SPARE, Layout, parse_name
from spool.log.committer import renew, seal_surely
from spool.options import SpoolOptions, most_spares
from spool.shared.runtime import announced
from spool.shared.state import Field, SharedState
from spool.storage.disk import (
    PAGE_BYTES,
    end_of_bytes,
    is_regular,
    keep,
    make_directory,
    opened,
    read_at,
    read_parts,
    read_text,
    set_aside,
    sync_directory,
    write_file,
)
from spool.storage.failpoint import reach
from spool.storage.lock import Lock
from spool.storage.ownership import claim
from spool.words import agreeing

log = logging.getLogger("bruce.spool")

_MOVING = ".moving"
"""Suffix of a misnamed segment while it is renamed, so that two can change places."""
_MOST_TORN_BYTES = 64 << 20
"""Kept of what is cut off."""


class Misplaced(NamedTuple):
    """A file whose name is not the one it should have."""

    path: Path
    to: Path | None
    """None: it does not belong here."""
    reason: str


def list_misplaced(layout: Layout, spool: bytes) -> list[Misplaced]:
    """All misplaced files; `spool`: the uuid. Skips damaged headers. Raises UnknownVersion, OSError."""
    found = list[Misplaced]()
    by_number = defaultdict[int, list[tuple[Path, Record]]](list)
    for path in _files(layout):
        if not is_regular(path):
            found.append(Misplaced(path, None, "it is no file"))
        elif (header := _header(path)) is None:
            if path.suffix == _MOVING:
                found.append(Misplaced(path, None, "its header is damaged, and its name says nothing"))
        elif bytes(header["spool"]) != spool:
            found.append(Misplaced(path, None, "it belongs to another spool"))
        else:
            by_number[int(header["number"])].append((path, header))
    for same in by_number.values():
        (path, header), *others = sorted(same, key=_worth, reverse=True)
        found += [Misplaced(other, None, f"it is segment {header['number']} again") for other, _ in others]
        to = layout.segment(int(header["first_sequence"]), _suffix(path))
        if path != to:
            found.append(Misplaced(path, to, f"its header says {header['first_sequence']}"))
    found += [
        Misplaced(path, None, "it belongs to another spool")
        for path, header in bound_spares(layout)
        if bytes(header["spool"]) != spool
    ]
    return found


def put_in_place(layout: Layout, spool: bytes) -> None:
    """Give each segment the name that its header says; put files that do not belong here in quarantine."""
    misplaced = list_misplaced(layout, spool)
    for one in misplaced:
        if one.to is None:
            set_aside(layout, one.path, one.reason)
    moving = [(one.path, one.to) for one in misplaced if one.to is not None]
    for path, to in moving:
        # By way of another name, since two may change places; after a crash the next start goes on from
        # there.
        os.rename(path, to.with_name(to.name + _MOVING))
        reach("recover.moving")
    for _, to in moving:
        os.rename(to.with_name(to.name + _MOVING), to)
    if moving:
        sync_directory(layout.segments)
        named = agreeing(len(moving), "segment", "has", "have")
        log.error("%s another name than in the header: renamed", named)


def _files(layout: Layout) -> Iterator[Path]:
    """Files with the name of a segment, and those that were being renamed to one."""
    for pair in layout.list_segments():
        yield layout.segment(*pair)
    yield from layout.list_strangers()
    yield from sorted(layout.segments.glob(f"*{_MOVING}"))


def _suffix(path: Path) -> str:
    return path.with_suffix("").suffix if path.suffix == _MOVING else path.suffix


def _header(path: Path) -> Record | None:
    try:
        return read_header(path)
    except UnknownVersion:
        raise
    except BadSpool:
        return None


def _worth(one: tuple[Path, Record]) -> tuple[int, bool, bool]:
    """The rank of one of several files that claim to be the same segment: messages, delivered, right name."""
    path, header = one
    named = parse_name(path.name)
    try:
        told = announced(path.parent.parent, header)
        stored = int(end_of(LiveSegment(path, header), announced=told).tail[STORED])
    except ReadFailed:
        stored = -1
    right = named is not None and named[1] != SPARE and named[0] == int(header["first_sequence"])
    return stored, _suffix(path) == SENT, right


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
    """Take ownership of the spool, create it if there is none, put its files in order. `note`: as for Lock.

    Raises SpoolBusy when another process owns it, NotOurs where others could plant files, UnknownVersion when
    a newer release wrote it, SpoolFull, OSError.
    """
    layout = Layout(options.directory)
    # To let other users read it, chmod this one directory; no other place grants access.
    make_directory(layout.directory, 0o700)
    for path in (layout.segments, layout.delivery, layout.quarantine):
        make_directory(path)
    lock = Lock(layout.lock, "in use", note=note)
    try:
        reach("recover.owned")
        made_later = (path for path in (layout.index, layout.outcomes) if path.is_dir())
        claim(layout.directory, [layout.segments, layout.delivery, layout.quarantine, *made_later])
        boot = boot_id()
        identity = put_in_order(layout, boot)
        # Last: spares that are still there show that there was no clean end.
        _remove_spares(layout, options, boot)
    except BaseException:
        lock.release()
        raise
    return OpenSpool(layout, identity, lock)


def put_in_order(layout: Layout, boot: bytes) -> Identity:
    """Put the files of a spool in order, for the holder of its lock; its identity. Raises as open_spool does.

    Spares stay unchanged.
    """
    uncertain = _has_spares_of_another(layout, boot)
    damaged_headers(layout)  # raises for a newer release's files, before anything is changed
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
    """(segment number, tail): how far the log was committed, according to its index."""
    spool = agreed_identity(layout)
    return read_committed(layout.index, spool) if spool else None


def _has_spares_of_another(layout: Layout, boot: bytes) -> bool:
    """Whether there are spares of another boot: then that boot had no clean end."""
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
    """Remove files that a crash left half made."""
    places = (layout.directory, layout.segments, layout.quarantine)
    half = {path for place in places for path in place.iterdir() if path.suffix == ".tmp"}
    half |= {path for path in layout.segments.iterdir() if path.lstat().st_size == 0}
    # A directory is not one of our files; on some filesystems an empty one has no bytes.
    half = {path for path in half if is_regular(path)}
    for path in half:
        path.unlink()
    _say_removed(layout, len(half))


def _remove_spares(layout: Layout, options: SpoolOptions, boot: bytes) -> None:
    """Remove spares of uncertain content, and those beyond what max_bytes now allows."""
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
    """Whether a spare is bound, or was allocated in full in this boot.

    After a power loss, stores may be on the disk behind a header that is not; no reader may find them later.
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
    """Whether anything was stored behind the header of a spare, within the first page."""
    with opened(path) as file:
        return any(read_at(file.fileno(), PAGE_BYTES, HEADER_BYTES))


def _settle(layout: Layout, identity: Identity, *, uncertain: bool) -> None:
    """Seal what another boot left open. `uncertain`: frames behind sealed segments, too, may be gone."""
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
    """Seal segments without footer behind their last good frame. `epoch`: numbers go on at the next one."""
    segments = _open_segments(layout)
    for segment in segments:
        path, tail = _name(layout, segment), tail_at_start(segment.header)
        _keep_torn(layout, path, tail)
        reach("recover.torn")
        behind = next_epoch(max(int(segment.header["first_sequence"]), int(tail[SEQUENCE])))
        seal_surely(layout, path, next_sequence=behind if epoch and segment is segments[-1] else None)


def lost_end(layout: Layout, spool: bytes, committed: Tail) -> tuple[int, Tail] | None:
    """(segment number, tail) at the end of the log, when that is before the committed end; else None.

    `spool`: the uuid.
    """
    live = live_segment(layout)
    if live is None or bytes(live.header["spool"]) != spool:
        return None
    end = end_of(live, announced=announced(layout.directory, live.header)).tail
    return (int(live.header["number"]), end) if committed[BURST] > end[BURST] else None


def _go_behind(layout: Layout, identity: Identity, number: int, committed: Tail) -> None:
    """When the log ends before its committed end, go on behind that, and count the missing messages."""
    found = lost_end(layout, identity.spool, committed)
    if found is None:
        return
    last, end = found
    missing = int(committed[STORED]) - int(end[STORED])
    log.error("%s gone from the end of the log, though committed", agreeing(missing, "message"))
    _seal_open(layout, epoch=False)
    committed[SEQUENCE] = max(committed[SEQUENCE], end[SEQUENCE])
    _begin_epoch(layout, identity, committed, max(number, last) + 1)


def go_behind_written(opened: OpenSpool, shared: SharedState, forget: Callable[[], None]) -> None:
    """Begin a new epoch if the log has not all the numbers that were given out in this boot.

    Then a backup was put back, or its end is damaged. So it was, too, if the log is in a later epoch than all
    that this boot has written: it went behind its committed end. `forget` is called before anything is
    changed here; the shared state tells nothing of the log then. Raises BadSpool, OSError.
    """
    layout, identity = opened.layout, opened.identity
    written, given_out = shared.place(Field.WRITTEN), int(shared.words[Field.WRITTEN_SEQUENCE])
    live, number, end = live_segment(layout), 0, empty_tail()
    if live is not None:
        number, end = int(live.header["number"]), end_of(live, announced=written[1]).tail
    is_behind = given_out > int(end[SEQUENCE])
    has_gone = given_out > 0 and next_epoch(given_out) <= int(end[SEQUENCE])
    if not (is_behind or has_gone or written > (number, int(end[POSITION]))):
        return
    forget()
    if is_behind:
        log.warning("the log ends before what was written in this boot: it goes on at a new epoch")
        for segment in _open_segments(layout):
            # A second sync of it would prove nothing.
            if int(segment.header["number"]) == shared.words[Field.SUSPECT]:
                renew(layout, segment.path)
        _seal_open(layout, epoch=False)
        end[SEQUENCE] = given_out
        _begin_epoch(layout, identity, end, number + 1)
    shared.words[list(_OF_THE_LOG)] = 0


_OF_THE_LOG = (
    Field.WRITTEN,
    Field.WRITTEN_SEQUENCE,
    Field.SYNCED,
    Field.SYNCED_SEQUENCE,
    Field.SUSPECT,
    Field.READ_POSITION,
    Field.SYNC_WANTED,
    Field.SYNC_SOON,
)
"""Words that say something of positions in the log, or of its numbers."""


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
    """The same; True for a segment that the disk gives an error for, which is left unchanged."""
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
    """Move `tail` behind the last good frame, and copy what follows, if not zero, to quarantine."""
    with opened(path) as file:
        scan = Scan(file.fileno(), tail)
        for _ in scan.all():
            continue
        begin = int(tail[POSITION])
        end = end_of_bytes(file.fileno(), begin, min(scan.limit, begin + _MOST_TORN_BYTES))
        if end > begin:
            keep(layout, f"{path.name}.torn", read_parts(file.fileno(), begin, end))
            log.warning("%s: %d bytes of a torn frame cut off", path, end - begin)
