"""The end of the log: which segment is the last, and where the log goes on behind it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from spool.errors import BadSpool, UnknownVersion
from spool.format.frame import (
    BURST,
    DIGEST,
    DISCARDED,
    POSITION,
    SEQUENCE,
    STORED,
    TAIL_FIELDS,
    Tail,
    tail_at_start,
)
from spool.format.frame import END as ZEROS
from spool.format.packed import footer_of, header_of, is_packed, open_plain
from spool.format.scan import NOWHERE, Scan, read_header
from spool.format.segment import bound_spares
from spool.format.segment_format import UNLISTED, VERSION, Footer, Record, decode_footer, keys_of
from spool.format.topic_table import OTHERS
from spool.index.committed import CommittedEnd, read_committed
from spool.layout import Layout
from spool.storage.lock import is_in_use

if TYPE_CHECKING:
    from spool.index.index import Entry


EPOCH = 1 << 32
"""Sequence numbers go on at a multiple of this when it cannot be known which were given out before."""


@dataclass(frozen=True, slots=True)
class LiveSegment:
    """The last segment of a spool."""

    path: Path
    header: Record


@dataclass(frozen=True, slots=True)
class End:
    """The end of a segment."""

    tail: Tail
    appendable: bool
    """False when the next frame belongs in a new segment."""
    damaged: bool = False
    """True when frames are missing."""


def live_segment(layout: Layout) -> LiveSegment | None:
    """The segment taken into use last; None in an empty spool. Raises BadSpool when its header is damaged."""
    spares = list(bound_spares(layout))
    if spares:
        return LiveSegment(*spares[-1])
    named = layout.list_segments()
    if not named:
        return None
    path = layout.segment(*named[-1])
    return LiveSegment(path, read_header(path))


def last_footer(fd: int, header: Record | None = None) -> tuple[int, Footer] | None:
    """(offset, the whole footer with which a segment file ends); None when it has none of its own.

    `header`: of the segment, whose key identifies its footer; read from the file if it is not given. With a
    damaged one there is no footer. Raises UnknownVersion.
    """
    try:
        header = header_of(fd, "") if header is None else header
    except UnknownVersion:
        raise
    except BadSpool:
        return None
    data = footer_of(fd)
    footer = decode_footer(data, header)
    return (
        (os.fstat(fd).st_size - len(data), footer) if footer and _can_belong(header, footer.fields) else None
    )


def read_footer(fd: int, header: Record | None = None) -> Footer | None:
    """The footer of a sealed segment; None when it has none, or one that is not its own. Like last_footer.

    A footer must begin where it says that the frames end. One of the same segment when it ended sooner is
    whole, too, and would hide all frames that came later. A packed file would have to be unpacked to check
    that: there the segment behind decides (SegmentList.leads_on). Raises UnknownVersion.
    """
    found = last_footer(fd, header)
    if not found:
        return None
    offset, footer = found
    return footer if offset == footer.fields["end"] or is_packed(fd) else None


def _can_belong(header: Record, footer: Record) -> bool:
    """Whether a footer's end is behind the segment's beginning: in version 1 it may be another segment's."""
    behind = int(header["first_sequence"]) + int(footer["count"])
    return behind <= int(footer["next_sequence"]) and bool(header["burst"] <= footer["burst"])


def has_unlisted(footer: Footer) -> bool:
    """Whether there are topics in the segment that its footer does not list."""
    return any(name == UNLISTED for name, *_ in footer.topics)


def named_topics(footer: Footer) -> Iterator[tuple[bytes, int]]:
    """(topic, messages) as a footer has them; OTHERS is all that it does not list."""
    return ((name if name != UNLISTED else OTHERS, count) for name, count, *_ in footer.topics)


def empty_tail() -> Tail:
    """The tail of a spool that never held anything."""
    return np.zeros(TAIL_FIELDS, np.int64)


def tail_of_footer(header: Record, footer: Record) -> Tail:
    """The tail behind a sealed segment."""
    tail = tail_at_start(header)
    tail[POSITION] = footer["end"]
    tail[SEQUENCE] = footer["next_sequence"]
    tail[BURST] = footer["burst"]
    tail[DIGEST] = footer["digest"].astype(np.int64)
    tail[STORED] += footer["count"].astype(np.int64)
    tail[DISCARDED:] += footer["discarded"].astype(np.int64)
    return tail


def end_of(
    segment: LiveSegment, *, written: int = 0, known: CommittedEnd | None = None, announced: int = 0
) -> End:
    """Walk a segment to its last good frame.

    A crash leaves a torn frame, which is written over. Good frames behind a damaged one mean rot: nothing is
    appended behind rot. `written`: frames are known to have been there up to this offset. If they are not,
    their numbers are not known, and the next segment begins a new epoch. Behind it the one writer of this
    boot has begun at most one frame, and nothing is searched. A footer that is elsewhere than it says is
    believed if it knows of more frames than are left. `known`: the committed end of a live keeper, read
    before this segment was found to be the last: the walk begins there. `announced`: the same as
    `written`, for a reader: behind it nothing is searched. Nothing is appended to a segment of an earlier
    version.
    """
    fd = open_plain(segment.path, keys_of(segment.header))
    try:
        if footer := read_footer(fd, segment.header):
            return End(tail_of_footer(segment.header, footer.fields), appendable=False)
        scan = _scan_of(fd, segment, known)
        # Damage is passed over only where it is not the one frame that was begun.
        scan.committed = min(scan.committed, announced or NOWHERE)
        tail, whole = scan.tail, _walk(scan, written, written or announced)
        if displaced := last_footer(fd, segment.header):
            told = tail_of_footer(segment.header, displaced[1][0])
            return End(told if told[BURST] > tail[BURST] else tail, appendable=False, damaged=True)
    finally:
        os.close(fd)
    if int(tail[POSITION]) < written:
        tail[SEQUENCE] = next_epoch(int(tail[SEQUENCE]))
        whole = False
    current = int(segment.header["version"]) == VERSION
    return End(tail, appendable=whole and current, damaged=not whole)


def _scan_of(fd: int, segment: LiveSegment, known: CommittedEnd | None) -> Scan:
    """A scan from the first frame on, or from the committed end of a live keeper."""
    number = int(segment.header["number"])
    scan = Scan(fd, known[1].copy() if known and known[0] == number else tail_at_start(segment.header))
    if known:
        scan.committed = behind(known, number)
    return scan


def _walk(scan: Scan, written: int, searched: int) -> bool:
    """Go to the last good frame; whether all frames up to there are good.

    `searched`: the offset behind which nothing is searched; 0: there is none.
    """
    whole = True
    while True:
        while chunk := scan.next() if written else scan.over(zeros=False):
            whole = whole and not len(chunk.holes)
        # Within one boot no stored bytes turn into zeros: zeros are the end.
        if int(scan.tail[POSITION]) >= written and (written or scan.stopped == ZEROS):
            return whole
        if scan.is_being_stored():
            continue
        if not _skip(scan, searched):
            return whole
        whole = False


def _skip(scan: Scan, searched: int) -> bool:
    """Go over damage; only below the offset `searched`, if that is given: behind it a crash left damage."""
    limit = scan.limit
    scan.limit = min(limit, searched) if searched else limit
    try:
        return scan.skip() is not None
    finally:
        scan.limit = limit


def next_epoch(sequence: int) -> int:
    """The first multiple of EPOCH behind a sequence number."""
    return (sequence // EPOCH + 1) * EPOCH


def committed_end(layout: Layout) -> CommittedEnd | None:
    """The committed end; None without a live keeper."""
    if not is_in_use(layout.index / "lock.mdb"):
        return None
    return read_committed(layout.index)


def committed_entries(layout: Layout) -> list[Entry]:
    """Frames at which to enter segments without a footer, in order; none without a live keeper."""
    if not is_in_use(layout.index / "lock.mdb"):
        return []
    # Imported here: Spark executors have no LMDB, and never come here.
    from spool.index.index import read_entries  # noqa: PLC0415

    return read_entries(layout.index) or []


def committed_up_to(path: Path, header: Record) -> int:
    """The offset up to which a live keeper has committed a segment without a footer; else NOWHERE.

    `path`: of the file, which is in the spool's folder of segments.
    """
    layout = Layout(path.resolve().parent.parent)
    if not is_in_use(layout.index / "lock.mdb"):
        return NOWHERE
    known = read_committed(layout.index, bytes(header["spool"]))
    return NOWHERE if known is None else behind(known, int(header["number"]))


def behind(known: CommittedEnd, number: int) -> int:
    """The committed end as an offset in segment `number`; NOWHERE in a segment before it."""
    if number == known[0]:
        return int(known[1][POSITION])
    return 0 if number > known[0] else NOWHERE
