"""What a keeper that lives vouches for, so that whoever looks at its spool need not read that again.

The keeper has read and verified every frame below the end that the index calls committed, since it began.
With it gone that is hearsay: the disk may have lost some of it since, or a backup brought it back, and
whoever looks walks the segment from its first frame. So it counts while the keeper holds the index, and
only then.

    what lies before that end            need not be walked to know where the log ends
    zeros at that end, or behind it      are the end: nothing that was stored turns into zeros
    what does not verify behind it       may be being stored at this moment, and is looked at again
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spool.format import Record
from spool.frame import POSITION, Tail
from spool.layout import Layout
from spool.lock import is_in_use
from spool.scan import NOWHERE

if TYPE_CHECKING:
    from spool.index import Entry

Place = tuple[int, Tail]
"""(segment number, tail) that is committed."""


def vouched_for(layout: Layout) -> Place | None:
    """The committed end; None when no keeper lives that vouches for it."""
    if not is_in_use(layout.index / "lock.mdb"):
        return None
    # Not for executors, which see none of this: they have no LMDB.
    from spool.index import read_committed  # noqa: PLC0415

    return read_committed(layout.index)


def vouched_entries(layout: Layout) -> list[Entry]:
    """Frames of segments without a footer to enter them at, in order; none without a keeper that lives."""
    if not is_in_use(layout.index / "lock.mdb"):
        return []
    from spool.index import read_index  # noqa: PLC0415

    found = read_index(layout.index)
    return found[1] if found else []


def vouched_up_to(path: Path, header: Record) -> int:
    """The offset up to which somebody vouches for a segment of a spool that has no footer; else NOWHERE.

    `path`: of the file, which lies in the spool's folder of segments.
    """
    layout = Layout(path.resolve().parent.parent)
    if not is_in_use(layout.index / "lock.mdb"):
        return NOWHERE
    from spool.index import read_committed  # noqa: PLC0415

    known = read_committed(layout.index, bytes(header["spool"]))
    return NOWHERE if known is None else behind(known, int(header["number"]))


def behind(known: Place, number: int) -> int:
    """How much of segment `number` is committed; NOWHERE of one that ended before that place."""
    if number == known[0]:
        return int(known[1][POSITION])
    return 0 if number > known[0] else NOWHERE
