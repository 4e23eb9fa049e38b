"""Committing: what was written becomes synced, named, indexed, and only then announced.

The order is the promise. fdatasync of the segment; the name it keeps, and the directory; the index; the
watermark. Segment N + 1 is never entered before all of N is committed.

Frames are verified on the way, from the file and not from the appender's word: what is called synced has
been read back and found good.

A failed sync is final for its file (spool.renewal). The segment becomes suspect: the watermark stands, a
word in the page sends the appender to the next segment, and once it has gone there the suspect is written
anew, and committed from the fresh file.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from spool.catalogue import RETRY_S
from spool.crash_point import reach
from spool.disk import open_to_read, opened, sync_directory
from spool.errors import BadSpool, ReadFailed, SpoolFull
from spool.format import MARK_BYTES, Record
from spool.frame import BURST, DIGEST, POSITION, SEQUENCE, tail_at_start
from spool.identity import mark_in_use
from spool.index import Entry, Index
from spool.layout import SENT, SPARE, Layout
from spool.live import empty_tail, read_footer, tail_of_footer
from spool.page import Field, Page, place
from spool.renewal import renew, seal_surely
from spool.scan import Chunk, Scan, read_header
from spool.segment import UNBOUND, bound_spares

log = logging.getLogger("bruce.keeper")

RENEW_S = 1.0
"""Between two attempts to write a suspect segment anew."""


class Committer:
    """The committed end of the log: segment `number`, and the `tail` in it."""

    def __init__(self, layout: Layout, index: Index, page: Page) -> None:
        """Stand before the oldest segment that was not sealed, or behind the last one that was."""
        self.layout, self._index, self._page = layout, index, page
        self.number, self.tail = 0, empty_tail()
        self.seen: Callable[[int, Chunk], None] = lambda _first, _chunk: None
        """Is told of good frames, and of the first sequence of their segment, on the way."""
        self.ended = False
        """Nobody appends any more: the last segment, too, is as long as it will ever be."""
        self._path = Path()
        self._scan: Scan | None = None
        self._first = 0
        self._entry = self._stuck = -1
        self._renew_at = 0.0
        self._full: deque[Path] = deque()
        self._unread: dict[Path, float] = {}
        """When to try again, of full segments that the disk does not give."""
        self.last = 0
        """The highest number of a segment that was in use already."""
        self._waiting = self._unsealed()
        self._enter_next()

    def _unsealed(self) -> deque[Path]:
        """The segments at the end of the log that have no footer, in order."""
        bound = list(bound_spares(self.layout))
        paths = deque(path for path, _ in bound)
        self.last = max((int(header["number"]) for _, header in bound), default=0)
        for pair in reversed(self.layout.list_segments()):
            path = self.layout.segment(*pair)
            try:
                header = read_header(path)
            except BadSpool as error:
                self._pass_over(error, paths)
                continue
            self.last = max(self.last, int(header["number"]))
            with opened(path) as file:
                try:
                    footer = read_footer(file.fileno())
                except ReadFailed as error:
                    self._pass_over(error, paths)
                    self.number = int(header["number"])
                    break
            if footer:
                self.number, self.tail = int(header["number"]), tail_of_footer(header, footer[0])
                break
            paths.appendleft(path)
        return paths

    @staticmethod
    def _pass_over(error: BadSpool, behind: deque[Path]) -> None:
        """Do without a segment: what is behind it begins where its own header says. Raises ReadFailed."""
        if isinstance(error, ReadFailed) and not behind:
            raise error
        log.error("%s; passed over", error)

    def _following(self) -> tuple[Path, Record] | None:
        """The segment after this one, and its header; None when it is not in use yet."""
        path = self._waiting[0] if self._waiting else self.layout.segment(self.number + 1, SPARE)
        try:
            header = read_header(path)
        except ReadFailed:
            raise
        except (FileNotFoundError, BadSpool):
            # Not there, or its header is being written at this moment.
            return None
        return None if header["first_sequence"] == UNBOUND else (path, header)

    def _enter_next(self) -> bool:
        """Go on in the segment after this one; False when it is not in use yet."""
        following = self._following()
        if not following:
            return False
        if self._waiting:
            self._waiting.popleft()
        if self._scan:
            os.close(self._scan.fd)
            self._full.append(self._path)
        self._path, header = following
        self.number, self.tail = int(header["number"]), tail_at_start(header)
        self._first, self._entry, self._stuck = int(header["first_sequence"]), -MARK_BYTES, -1
        self._scan = Scan(open_to_read(self._path), self.tail)
        return True

    def commit_all(self) -> bool:
        """Commit every good frame there is, whether or not somebody announced it.

        False when not all of it could be, because a sync has failed. Raises OSError.
        """
        whole = self._commit(None)
        while whole and self._following():
            whole = self._commit(self._size()) and self._enter_next() and self._commit(None)
        if whole or self._index.committed() is None:
            self._index.commit(self.number, self.tail, [])
        if whole:
            self._publish()
        return whole

    def commit(self, number: int, position: int) -> None:
        """Commit up to this place in the log, or as far as it goes. Raises OSError when the disk refuses."""
        while self.number < number:
            if not self._commit(self._size()) or not self._enter_next():
                return
        if self.number == number:
            self._commit(position)

    def _size(self) -> int:
        return os.fstat(self._scan.fd).st_size if self._scan else 0

    def _commit(self, complete: int | None) -> bool:
        """Commit the good frames. Below the offset `complete` all have been written; None: nobody knows.

        False when the segment is suspect: nothing more of it is committed before it is written anew.
        """
        if self._scan is None:
            return True
        if self._is_suspect() and not self._renew():
            return False
        self._scan.limit = self._size() if complete is None else complete
        before, entry = self.tail.copy(), self._entry
        try:
            entries = self._walk(complete)
        except ReadFailed:
            # What was walked over is not synced: it is walked again when the disk gives the rest.
            self.tail[:], self._entry = before, entry
            raise
        if self.tail[POSITION] == before[POSITION] and complete is not None and self._path.suffix != SPARE:
            return True
        try:
            reach("sync.written")
            os.fdatasync(self._scan.fd)
            reach("sync.synced")
        except OSError as error:
            self.tail[:], self._entry = before, entry
            self._suspect(error)
            return False
        self._name()
        self._index.commit(self.number, self.tail, entries)
        reach("index.committed")
        if self._place() > self._page.words[Field.SYNCED]:
            self._publish()
        self._page.words[Field.SYNC_ERROR] = 0
        return True

    def _is_suspect(self) -> bool:
        return bool(self._page.words[Field.SUSPECT] == self.number)

    def _suspect(self, error: OSError) -> None:
        """The pages of this segment are on the disk or not; nobody will ever know."""
        self._page.words[Field.SYNC_ERROR] = error.errno or -1
        self._page.words[Field.SUSPECT] = self.number
        log.error(
            "%s could not be synced: %s; what is not synced goes into a fresh file, and nothing of it is "
            "called synced, nor delivered, before",
            self._path,
            error.strerror,
        )

    def _renew(self) -> bool:
        """Write the suspect segment anew, once nobody stores into it; False when that is not yet done."""
        if time.monotonic() < self._renew_at or not (self.ended or self._following()):
            return False
        assert self._scan is not None
        try:
            renew(self.layout, self._path)
            fd = open_to_read(self._path)
        except OSError as error:
            self._page.words[Field.SYNC_ERROR] = error.errno or -1
            self._renew_at = time.monotonic() + RENEW_S
            log.error("%s could not be written anew: %s; it is tried again", self._path, error.strerror)
            return False
        os.close(self._scan.fd)
        self._scan = Scan(fd, self.tail)
        self._page.words[Field.SUSPECT] = 0
        self._page.words[Field.RENEWED] += 1
        log.warning("%s is written anew, and synced", self._path)
        return True

    def _walk(self, complete: int | None) -> list[Entry]:
        """Move the tail over the good frames, and over damage that is certain; entries for the index."""
        assert self._scan is not None
        entries: list[Entry] = []
        while True:
            previous, burst = int(self.tail[DIGEST]) & 0xFFFFFFFFFFFFFFFF, int(self.tail[BURST])
            try:
                chunk = self._scan.next()
            except ReadFailed as error:
                if not self._following():
                    raise
                # The next segment says where the log goes on; who delivers comes back for what is here.
                log.error("%s; it is committed as far as it can be read", error)
                return entries
            if chunk is None:
                if complete is None or int(self.tail[POSITION]) >= complete or not self._skip():
                    return entries
                continue
            self.seen(self._first, chunk)
            offset, sequence = chunk.frames[0, :2].tolist()
            if offset >= self._entry + MARK_BYTES:
                self._entry = offset
                entries.append((sequence, self.number, offset, previous, burst))

    def _skip(self) -> bool:
        """Go over damage to the next good frame; False when there is none yet."""
        assert self._scan is not None
        position = int(self.tail[POSITION])
        missing = self._scan.skip()
        if missing is not None:
            log.error("%s is damaged at byte %d: %d messages cannot be read", self._path, position, missing)
        elif self._is_announced(position) and position != self._stuck:
            self._stuck = position
            log.error("%s is damaged at byte %d, up to its end", self._path, position)
        return missing is not None

    def _is_announced(self, position: int) -> bool:
        """Whether something was written behind this place in the segment."""
        number, end = self._page.place(Field.WRITTEN)
        return number == self.number and end > position

    def _name(self) -> None:
        """Give a segment that was a spare the name it keeps."""
        if self._path.suffix != SPARE:
            return
        mark_in_use(self.layout)
        named = self.layout.segment(self._first)
        os.rename(self._path, named)
        reach("sync.named")
        try:
            sync_directory(self.layout.segments)
        except OSError as error:
            self._page.words[Field.SYNC_ERROR] = error.errno or -1
            # A second sync of the same change would say nothing: the change is made again.
            os.rename(named, self._path)
            raise
        self._path = named

    def _publish(self) -> None:
        self._page.words[Field.SYNCED_SEQUENCE] = self.tail[SEQUENCE]
        self._page.words[Field.SYNCED] = self._place()

    def _place(self) -> int:
        return place(self.number, int(self.tail[POSITION]))

    def seal_one(self) -> bool:
        """Seal the oldest full segment; False when there is none, or no room for its footer.

        One that the disk does not give goes to the end of the line, for RETRY_S.
        """
        if not self._full or time.monotonic() < self._unread.get(self._full[0], 0.0):
            return False
        path = self._full[0] if self._full[0].exists() else self._full[0].with_suffix(SENT)
        try:
            tail = seal_surely(self.layout, path)
            reach("seal.synced")
        except SpoolFull as error:
            log.debug("%s is not sealed yet: %s", path, error)
            return False
        except ReadFailed as error:
            if self._full[0] not in self._unread:
                log.error("%s; it is sealed when the disk gives it", error)
            self._unread[self._full[0]] = time.monotonic() + RETRY_S
            self._full.rotate(-1)
            return True
        except FileNotFoundError:
            # Delivered, and removed to make room, before its turn came.
            tail = self.tail
        self._unread.pop(self._full.popleft(), None)
        if not self._full:
            self._index.forget(int(tail[SEQUENCE]))
        return True

    def seal_last(self) -> None:
        """Seal the segment in use, after the last message: a clean end needs no walk to find.

        Spares go: one that is left tells the next boot that there was no such end (spool.recovery).
        """
        if self._scan is not None and not self._is_suspect():
            os.close(self._scan.fd)
            self._scan = None
            self._full.append(self._path)
        while self.seal_one():
            continue
        if self._scan is None and not self._full:
            self._page.words[Field.SPARE] = 0
            for number in self.layout.list_spares():
                self.layout.segment(number, SPARE).unlink()
            sync_directory(self.layout.segments)
