"""A part of the log, read in order: committed messages of a span, as far as they are kept.

What is read is fixed at the start. What is committed meanwhile is not in it; what is retired meanwhile ends
the reading with an error, since a part that lacks something is not what was asked for.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from spool.catalogue import Catalogue, SegmentInfo
from spool.errors import SegmentsGone
from spool.files import Span
from spool.format import Record
from spool.frame import POSITION
from spool.index import read_committed
from spool.live import Footer, read_footer
from spool.packed import header_of
from spool.reader import Reader
from spool.record import Batch, Topics


class Selection(Reader):
    """A reader that begins and ends where a span does. Which rows of a batch lie in it, the span tells."""

    def __init__(self, catalogue: Catalogue, topics: Topics, span: Span) -> None:
        """Find the segments that may hold what is asked for. Raises SegmentsGone."""
        super().__init__(catalogue, topics)
        self.span = span
        self.exhausted = False
        """The end was reached."""
        self.kept_from = catalogue.segments[0].first_sequence if catalogue.segments else 0
        """The first message that is kept."""
        self.start, self._stop = 0, 0
        self.place = (0, 0)
        """What is committed, and so may be read: segment number and offset."""
        self._plan()
        self.allow(*self.place)
        self.seek(self.start)

    def _plan(self) -> None:
        found = list(self._look())
        sealed = [(info.number, int(footer[0]["end"])) for info, _, footer in found if footer]
        committed = read_committed(self.catalogue.layout.index)
        known = (committed[0], int(committed[1][POSITION])) if committed else self._written()
        # A segment is committed before it is sealed, whatever the index says.
        self.place = max([known, *sealed])
        chosen = [
            info
            for info, header, footer in found
            if info.number <= self.place[0] and self.span.may_lie_in(header, footer)
        ]
        if chosen:
            self.start = max(chosen[0].first_sequence, self.span.first)
            later = [i.first_sequence for i in self.catalogue.segments if i.number > chosen[-1].number]
            self._stop = min([self.span.end, *later[:1]])

    def _written(self) -> tuple[int, int]:
        """Behind the last frame: of a copy without an index nobody knows better."""
        if not self.catalogue.segments:
            return 0, 0
        info = self.catalogue.segments[-1]
        return info.number, self.catalogue.position_behind(info)

    def _look(self) -> Iterator[tuple[SegmentInfo, Record, Footer | None]]:
        """(segment, header, footer) of all that are kept."""
        for info in self.catalogue.segments:
            try:
                fd = self.catalogue.open_file(info)
            except FileNotFoundError:
                raise self._gone(info.first_sequence) from None
            try:
                footer = read_footer(fd)
                header = header_of(fd, info.first_sequence)
                yield info, header, footer if footer and self.catalogue.leads_on(info, footer) else None
            finally:
                os.close(fd)

    def seek(self, sequence: int) -> None:
        """Go to the frame that holds `sequence`, or to the first behind it. Raises SegmentsGone."""
        super().seek(sequence)
        if self.catalogue.segments and sequence < self.catalogue.segments[0].first_sequence:
            raise self._gone(sequence)

    @property
    def progress(self) -> tuple[int, int]:
        """Messages read, meant or not, and how many there are to read, those of the last segment apart."""
        segments, done = self.catalogue.segments, min(self.sequence, self._stop)
        end = min(self._stop, segments[-1].first_sequence) if segments else 0
        return done - self.start, max(end, done) - self.start

    def next(self) -> Batch | None:
        """Messages from `sequence` on; None at the end. Raises SegmentsGone, ReadFailed."""
        if self.sequence >= self._stop:
            self.exhausted = True
            return None
        try:
            batch = super().next()
        except FileNotFoundError:
            raise self._gone(self.sequence) from None
        if self.unread:
            raise min(self.unread.items())[1].error
        if self.damage:
            self.catalogue.refresh()
            if self.damage[0].first < self.catalogue.segments[0].first_sequence:
                raise self._gone(self.damage[0].first)
        self.exhausted = batch is None
        return batch

    def pass_over(self, topics: Collection[bytes]) -> bool:  # noqa: ARG002
        """Never: whoever selects wants to see all of it."""
        return False

    def _on_where_the_log_begins(self) -> bool:
        """Never: whoever selects is told what is gone."""
        raise self._gone(self.sequence)

    def _gone(self, sequence: int) -> SegmentsGone:
        return SegmentsGone(
            f"messages from {sequence} on were removed from {self.catalogue.layout.segments} to make room, "
            "while they were read; begin again with what is left"
        )
