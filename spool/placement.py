"""Segments that do not lie where their header says: renamed, restored twice, brought along from elsewhere.

Readers go from name to name, and by number from header to header. So a file under another's name hides
messages, one of another spool lends it its messages and numbers, and one that is there twice is a question.
Whoever opens the spool gives each segment the name that its header says. What belongs to another spool, is no
file at all, or is there again with no more in it goes to quarantine.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from spool.crash_point import reach
from spool.disk import is_regular, sync_directory
from spool.errors import BadSpool, ReadFailed, UnknownVersion
from spool.format import Record
from spool.frame import STORED
from spool.layout import SENT, SPARE, Layout, parse_name
from spool.live import LiveSegment, end_of
from spool.quarantine import set_aside
from spool.scan import read_header
from spool.segment import bound_spares

log = logging.getLogger("bruce.spool")

_MOVING = ".moving"
"""What a misnamed segment is called on its way, so that two can change places."""


class Misplaced(NamedTuple):
    """A file that does not lie where it should."""

    path: Path
    to: Path | None
    """None: it does not belong here."""
    reason: str


def list_misplaced(layout: Layout, spool: bytes) -> list[Misplaced]:
    """All of them; `spool`: the uuid. Damaged headers are passed over. Raises UnknownVersion, OSError."""
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
    """Give each segment the name that its header says; what has no place here goes to quarantine."""
    misplaced = list_misplaced(layout, spool)
    for one in misplaced:
        if one.to is None:
            set_aside(layout, one.path, one.reason)
    moving = [(one.path, one.to) for one in misplaced if one.to is not None]
    for path, to in moving:
        # By way of another name, from which the next start goes on: two may change places.
        os.rename(path, to.with_name(to.name + _MOVING))
        reach("recover.moving")
    for _, to in moving:
        os.rename(to.with_name(to.name + _MOVING), to)
    if moving:
        sync_directory(layout.segments)
        log.error("%d segments had other names than their headers say, and were renamed", len(moving))


def _files(layout: Layout) -> Iterator[Path]:
    """What is called as a segment, or was about to be."""
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
    """Of files that say to be the same segment: more messages, then delivered, then the right name."""
    path, header = one
    named = parse_name(path.name)
    try:
        stored = int(end_of(LiveSegment(path, header)).tail[STORED])
    except ReadFailed:
        stored = -1
    right = named is not None and named[1] != SPARE and named[0] == int(header["first_sequence"])
    return stored, _suffix(path) == SENT, right
