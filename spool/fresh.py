"""The segments at the end of a log that have no footer yet, as a look finds them while a keeper lives.

All in them has been verified: by the keeper, or behind what that has committed by the look itself. So their
messages are counted by topic without reading them frame by frame (spool.skim).
"""

from __future__ import annotations

import bisect
import os
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spool.catalogue import Catalogue, SegmentInfo
from spool.disk import open_to_read
from spool.errors import BadSpool
from spool.format import Record
from spool.frame import BURST, Tail
from spool.layout import Layout
from spool.live import LiveSegment
from spool.scan import read_header
from spool.skim import MOST_FRAMES, Entrance, Head, Run, entrance_of, runs, topics_of
from spool.vouched import vouched_entries

Counts = Counter[bytes]


class Fresh:
    """One look at them."""

    def __init__(self, layout: Layout, catalogue: Catalogue, live: LiveSegment, tail: Tail) -> None:
        """`tail`: behind the last frame of the last segment, as was just seen."""
        self._layout, self._catalogue, self._live = layout, catalogue, live
        self._last_burst = int(tail[BURST])
        self._entries = vouched_entries(layout)
        for sequence, number, offset, *_ in self._entries:
            # For a reader, which would look for its way from the beginning of the segment.
            marks = catalogue.entries.setdefault(number, [])
            if not marks or marks[-1][0] < sequence:
                marks.append((sequence, offset))

    def topics(self, info: SegmentInfo, first: int, is_open: npt.NDArray[np.bool_] | None) -> Counts | None:
        """Messages of a segment from sequence `first` on, or those of them that are open, by topic.

        None: there are too many frames, or something is wrong with them.
        """
        try:
            fd = self._catalogue.open_file(info)
        except FileNotFoundError:
            return None
        try:
            entrance, last = self._entrance(info, first), self._burst_at_the_end(info.number)
            if last is None or last - entrance.burst > MOST_FRAMES:
                return None
            counts = Counts()
            for run in runs(fd, entrance, last):
                rows = None if is_open is None else _rows(run, info.first_sequence, is_open)
                counts.update(topics_of(run, rows))
        except BadSpool:
            return None
        else:
            return counts
        finally:
            os.close(fd)

    def unnamed(self, path: Path) -> tuple[Counts, Head | None] | None:
        """(messages by topic, the first frame that has any) of a segment without a name; None as `topics`."""
        if path != self._live.path:
            return None
        entrance = entrance_of(self._live.header)
        if self._last_burst - entrance.burst > MOST_FRAMES:
            return None
        counts, oldest = Counts(), None
        fd = open_to_read(path)
        try:
            for run in runs(fd, entrance, self._last_burst):
                counts.update(topics_of(run))
                oldest = oldest or next((head for head in run[1] if head.messages), None)
        except BadSpool:
            return None
        else:
            return counts, oldest
        finally:
            os.close(fd)

    def _entrance(self, info: SegmentInfo, sequence: int) -> Entrance:
        """A frame of a segment at or before a sequence number."""
        at = bisect.bisect_right(self._entries, sequence, key=lambda entry: entry[0]) - 1
        if at >= 0 and self._entries[at][1] == info.number:
            return Entrance(*self._entries[at][2:])
        return entrance_of(self._header(info))

    def _header(self, info: SegmentInfo) -> Record:
        return read_header(self._layout.segment(info.first_sequence))

    def _burst_at_the_end(self, number: int) -> int | None:
        """The last burst of a segment; None when nobody can tell."""
        if number == int(self._live.header["number"]):
            return self._last_burst
        following = self._catalogue.by_number(number + 1)
        if following:
            return int(self._header(following)["burst"])
        is_next = int(self._live.header["number"]) == number + 1
        return int(self._live.header["burst"]) if is_next else None


def _rows(run: Run, first: int, is_open: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which messages of a run are open, of a segment that begins with sequence `first`."""
    rows = [is_open[head.first_sequence - first :][: head.messages] for head in run[1]]
    return np.concatenate(rows)
