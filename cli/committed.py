"""What of a log is committed, for whoever looks at all that is written."""

from __future__ import annotations

from spool.frame import SEQUENCE
from spool.index import read_committed
from spool.layout import Layout


class Committed:
    """The end of what is committed; it is asked for again only by what lies behind it."""

    def __init__(self, layout: Layout | None) -> None:
        """None: files by themselves, of which nobody knows."""
        self._layout = layout
        self._end = self._look()

    def covers(self, sequence: int) -> bool | None:
        """Whether this message is committed; None when no index says so."""
        if self._end is not None and sequence >= self._end:
            self._end = self._look()
        return None if self._end is None else sequence < self._end

    def _look(self) -> int | None:
        known = self._layout and read_committed(self._layout.index)
        return int(known[1][SEQUENCE]) if known else None
