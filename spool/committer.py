"""Committing: what was written becomes synced, named, indexed, and only then announced.

The order is the promise. fdatasync of the segment; the name it keeps, and the directory; the index; the
watermark. Segment N + 1 is never entered before all of N is committed.

Frames are verified on the way, from the file and not from the appender's word: what is called synced has
been read back and found good.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from spool.disk import sync_directory
from spool.errors import CorruptSegment
from spool.frame import BURST, DIGEST, POSITION, SEQUENCE, tail_at_start
from spool.index import Index
from spool.layout import SPARE, Layout
from spool.live import empty_tail, read_footer, tail_of_footer
from spool.page import Field, Page, place
from spool.scan import Scan, read_header
from spool.segment import UNBOUND, bound_spares, seal

log = logging.getLogger("bruce.keeper")

ENTRY_BYTES = 1 << 20
ENTRY_NS = 50_000_000
"""Distance of index entries in a segment: whichever comes first."""


class Committer:
    """The committed end of the log: segment `number`, and the `tail` in it."""

    def __init__(self, layout: Layout, index: Index, page: Page) -> None:
        """Stand before the oldest segment that was not sealed, or behind the last one that was."""
        self.layout, self._index, self._page = layout, index, page
        self.number, self.tail = 0, empty_tail()
        self._path: Path | None = None
        self._scan: Scan | None = None
        self._full: list[Path] = []
        self._entry = (-ENTRY_BYTES, 0)
        unsealed = self._unsealed()
        if unsealed:
            self._enter(unsealed[0])

    def _unsealed(self) -> list[Path]:
        """The segments at the end of the log that have no footer, in order."""
        paths = [path for path, _ in bound_spares(self.layout)]
        for pair in reversed(self.layout.list_segments()):
            path = self.layout.segment(*pair)
            with path.open("rb", buffering=0) as file:
                footer = read_footer(file.fileno())
            if footer:
                header = read_header(path)
                self.number, self.tail = int(header["number"]), tail_of_footer(header, footer[0])
                break
            paths.insert(0, path)
        return paths

    def _enter(self, path: Path) -> None:
        """Go on in the segment at `path`."""
        header = read_header(path)
        if self._scan:
            os.close(self._scan.fd)
        self.number, self.tail = int(header["number"]), tail_at_start(header)
        self._path, self._entry = path, (-ENTRY_BYTES, 0)
        self._scan = Scan(os.open(path, os.O_RDONLY | os.O_CLOEXEC), self.tail)

    def _enter_next(self) -> bool:
        """Go on in the segment after this one; False when it is not in use yet."""
        path = self.layout.segment(self.number + 1, SPARE)
        if not path.exists() or read_header(path)["first_sequence"] == UNBOUND:
            return False
        if self._path:
            self._full.append(self._path)
        self._enter(path)
        return True

    def commit_all(self) -> None:
        """Commit every good frame there is, whether or not somebody announced it."""
        self._commit(None)
        while self._enter_next():
            self._commit(None)

    def commit(self, number: int, position: int) -> None:
        """Commit up to this place in the log. Raises OSError when the disk refuses."""
        if self.number == number:
            self._commit(position)
        while self.number < number:
            self._commit(None)
            if not self._enter_next():
                return
            self._commit(position if self.number == number else None)

    def _commit(self, limit: int | None) -> None:
        if self._scan is None or self._path is None:
            return
        self._scan.limit = os.fstat(self._scan.fd).st_size if limit is None else limit
        before, entries = int(self.tail[POSITION]), []
        previous, burst = int(self.tail[DIGEST]), int(self.tail[BURST])
        while chunk := self._scan.next():
            offset, sequence, _, received, _ = chunk.frames[0].tolist()
            if offset - self._entry[0] >= ENTRY_BYTES or received - self._entry[1] >= ENTRY_NS:
                self._entry = (offset, received)
                entries.append((sequence, self.number, offset, previous & 0xFFFFFFFFFFFFFFFF, burst))
            previous, burst = int(self.tail[DIGEST]), int(self.tail[BURST])
        if int(self.tail[POSITION]) == before and limit is not None:
            return
        os.fdatasync(self._scan.fd)
        self._name()
        self._index.commit(self.number, self.tail, entries)
        self._publish()

    def _name(self) -> None:
        """Give a segment that was a spare the name it keeps."""
        assert self._path is not None
        if self._path.suffix != SPARE:
            return
        named = self.layout.segment(self._first_sequence())
        os.rename(self._path, named)
        sync_directory(self.layout.segments)
        self._path = named

    def _first_sequence(self) -> int:
        assert self._path is not None
        return int(read_header(self._path)["first_sequence"])

    def _publish(self) -> None:
        self._page.words[Field.SYNCED_SEQUENCE] = self.tail[SEQUENCE]
        self._page.words[Field.SYNCED] = place(self.number, int(self.tail[POSITION]))

    def seal_one(self) -> bool:
        """Seal the oldest full segment; False when there is none."""
        if not self._full:
            return False
        path = self._full.pop(0)
        try:
            tail = seal(path)
        except CorruptSegment as error:
            log.error("%s; it is left as it is", error)
            return True
        if not self._full:
            self._index.forget(int(tail[SEQUENCE]))
        return True

    def seal_last(self) -> None:
        """Seal the segment in use, after the last message: a clean end needs no walk to find."""
        if self._path is not None:
            self._full.append(self._path)
            self._path = None
        while self.seal_one():
            continue
