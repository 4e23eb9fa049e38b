"""What a segment holds and what it lacks, once its frames were read: for whoever plans to write it anew."""

from __future__ import annotations

from typing import NamedTuple

from spool.format import Record
from spool.frame import DIGEST, KEY, POSITION, SEQUENCE, STORED, Tail
from spool.gap import GAP_BYTES, read_gap
from spool.scan import Scan

_U64 = (1 << 64) - 1


class Hole(NamedTuple):
    """Bytes [offset, end) of a segment without a good frame: so many messages are lost, from `first` on."""

    offset: int
    end: int
    first: int
    messages: int
    known: bool
    """A gap says so already."""


class State(NamedTuple):
    """What a segment holds."""

    header: Record
    holes: tuple[Hole, ...]
    tail: Tail
    """Behind the last good frame."""
    sealed: bool
    """It has a footer that is whole."""
    messages: int
    """That can be read."""


def hole_at(scan: Scan, offset: int, end: int, first: int, messages: int) -> Hole:
    """A hole of the plain segment that is scanned."""
    gap = read_gap(scan.fd, offset, int(scan.tail[KEY]))
    return Hole(offset, end, first, messages, known=gap == (end - offset, messages))


def conclude(found: State, behind: Record | None, says: int | None) -> State:
    """What follows from a segment that was read up to its footer, or its end.

    `behind`: the header of the segment which follows it, if it is there: it says when frames are missing.
    `says`: the digest that its footer tells; None without one.
    """
    if says is not None and not found.holes and says != int(found.tail[DIGEST]) & _U64:
        # Another segment's, perhaps; what it says of the end is not believed.
        says = None
    holes, lost = found.holes, 0 if behind is None else int(behind["stored"]) - int(found.tail[STORED])
    if says is None and lost > 0:
        # The segment ends too early; the gap goes where it ends.
        position = int(found.tail[POSITION])
        holes += (Hole(position, position + GAP_BYTES, int(found.tail[SEQUENCE]), lost, known=False),)
    return found._replace(holes=holes, sealed=says is not None)
