"""Committing: the keeper syncs, names and indexes what was written, and only then announces it.

The order is the promise: fdatasync of the segment; its final name, and the directory; the index; the synced
watermark. The committer never enters segment N + 1 before all of N is committed.

It verifies frames on the way, from the file and not from the appender's word: every frame that is called
synced has been read back and found good.

A failed sync is final for its file. The segment becomes suspect: the synced watermark stops, and a word in
the shared state sends the appender to the next segment. Once the appender has gone there, the committer
rewrites the suspect to a fresh file, and commits from that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from spool.errors import BadSpool, ReadFailed, SpoolFull
from spool.format.frame import BURST, DIGEST, FRAME_AT, FRAME_FIRST, POSITION, SEQUENCE, Tail, tail_at_start
from spool.format.scan import Chunk, Scan, read_header
from spool.format.segment import UNBOUND, bound_spares, seal
from spool.format.segment_format import MARK_BYTES, Record
from spool.index.committed import CommittedFile, read_committed
from spool.index.identity import mark_in_use
from spool.index.index import Entry, Index
from spool.index.log_end import empty_tail, read_footer, tail_of_footer
from spool.index.segment_list import RETRY_S
from spool.layout import SENT, SPARE, Layout
from spool.shared.state import Field, SharedState, place
from spool.storage.disk import PAGE_BYTES, make_anew, open_to_read, opened, read_at, sync_directory, write_at
from spool.storage.failpoint import reach
from spool.words import counted

log = logging.getLogger("bruce.keeper")

_SYNCED, _SYNCED_SEQUENCE = int(Field.SYNCED), int(Field.SYNCED_SEQUENCE)
_SUSPECT, _SYNC_ERROR = int(Field.SUSPECT), int(Field.SYNC_ERROR)
"""Looked up for each commit: a member of an enumeration is a slower index."""
RENEW_S = 1.0
"""Between two attempts to rewrite a suspect segment."""


class Opened(NamedTuple):
    """The segment in use, of which all that follows can be committed alike."""

    fd: int
    number: int
    tail: Tail
    """It moves along with what is committed."""
    entered: int
    """The offset of the last entry of the index."""
    committed: CommittedFile


class Committer:
    """The committed end of the log: segment `number`, and the `tail` in it."""

    def __init__(
        self, layout: Layout, index: Index, shared: SharedState, *, retry_s: float = RETRY_S
    ) -> None:
        """Start before the oldest unsealed segment, or behind the last sealed one.

        `retry_s`: until a segment that the disk gave an error for is sealed.
        """
        self._retry_s = retry_s
        self.layout, self._index, self._shared = layout, index, shared
        self.number, self.tail = 0, empty_tail()
        self.seen: Callable[[int, Chunk], None] = lambda _first, _chunk: None
        """Called with good frames on the way, and with the first sequence of their segment."""
        self.ended = False
        """The appender has stopped: the last segment, too, grows no more."""
        self._path, self._is_spare = Path(), False
        self._scan: Scan | None = None
        self._first = 0
        self._entry = self._stuck = -1
        self._renew_at = 0.0
        self._full: deque[Path] = deque()
        self._unread: dict[Path, float] = {}
        """When to try full segments again that the disk gives an error for."""
        self.last = 0
        """The highest number of a segment that was already in use."""
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
                self.number, self.tail = int(header["number"]), tail_of_footer(header, footer.fields)
                break
            paths.appendleft(path)
        return paths

    @staticmethod
    def _pass_over(error: BadSpool, behind: deque[Path]) -> None:
        """Skip a segment: the log goes on where the header of the next one says. Raises ReadFailed."""
        if isinstance(error, ReadFailed) and not behind:
            raise error
        log.error("%s; passed over", error)

    def _following(self) -> tuple[Path, Record] | None:
        """The segment after this one, and its header; None when it is not in use yet."""
        path = _present(self._waiting[0]) if self._waiting else self.layout.segment(self.number + 1, SPARE)
        try:
            header = read_header(path)
        except ReadFailed:
            raise
        except (FileNotFoundError, BadSpool):
            # It does not exist, or the appender is writing its header at this moment.
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
        self._is_spare = self._path.suffix == SPARE
        self.number, self.tail = int(header["number"]), tail_at_start(header)
        self._first, self._entry, self._stuck = int(header["first_sequence"]), -MARK_BYTES, -1
        self._scan = Scan(open_to_read(self._path), self.tail)
        return True

    def commit_all(self) -> bool:
        """Commit every good frame there is, announced or not.

        False when a failed sync left a part uncommitted. Raises OSError.
        """
        whole = self._commit(None)
        while whole and self._following():
            whole = self._commit(self._size()) and self._enter_next() and self._commit(None)
        if whole or read_committed(self.layout.index) is None:
            self._index.commit(self.number, self.tail, [])
        if whole:
            self._publish(self._place())
        return whole

    def commit(self, number: int, position: int) -> None:
        """Commit up to this log position, or to the end of the log. Raises OSError when the disk refuses."""
        while self.number < number:
            if not self._commit(self._size()) or not self._enter_next():
                return
        if self.number == number:
            self._commit(position)

    def opened(self) -> Opened | None:
        """The segment in use, if it has its name and no trouble: `spool.log.group_commit` goes on in it."""
        words = self._shared.words
        if self._scan is None or self._is_spare or words[_SYNC_ERROR] or self._is_suspect():
            return None
        if words[_SYNCED] != self._place():
            return None
        return Opened(self._scan.fd, self.number, self.tail, self._entry, self._index.committed)

    def take_over(self, chunk: Chunk, entries: list[Entry], error: int) -> None:
        """Note what was committed meanwhile of the segment in use.

        `error`: the errno of a sync that failed behind it; -1: none did.
        """
        if error >= 0:
            self._suspect(OSError(error, os.strerror(error)))
        if len(chunk.frames):
            self.seen(self._first, chunk)
            self._index.enter(entries)
        if entries:
            self._entry = entries[-1][2]

    def _size(self) -> int:
        return os.fstat(self._scan.fd).st_size if self._scan else 0

    def _commit(self, complete: int | None) -> bool:
        """Commit the good frames. All below the offset `complete` have been written; None: not known.

        False when the segment is suspect: no more of it is committed before it is rewritten.
        """
        if self._scan is None:
            return True
        if self._is_suspect() and not self._renew():
            return False
        self._scan.limit = self._size() if complete is None else complete
        entry = self._entry
        before, entries = self._read_back(complete)
        if self.tail[POSITION] == before[POSITION] and complete is not None and not self._is_spare:
            return True
        try:
            reach("sync.written")
            os.fdatasync(self._scan.fd)
            reach("sync.synced")
        except OSError as error:
            self.tail[:], self._entry = before, entry
            self._suspect(error)
            return False
        if self._is_spare:
            self._name()
        self._index.commit(self.number, self.tail, entries)
        reach("index.committed")
        words, end = self._shared.words, self._place()
        if end > words[_SYNCED]:
            self._publish(end)
        if words[_SYNC_ERROR]:
            words[_SYNC_ERROR] = 0
        return True

    def _read_back(self, complete: int | None) -> tuple[Tail, list[Entry]]:
        """Move the tail as `_walk` does; where it was, and the entries. Raises ReadFailed, with it there."""
        before, entry = self.tail.copy(), self._entry
        try:
            return before, self._walk(complete)
        except ReadFailed:
            # Frames that were walked over are not synced: walk them again when the disk gives the rest.
            self.tail[:], self._entry = before, entry
            raise

    def _is_suspect(self) -> bool:
        return bool(self._shared.words[_SUSPECT] == self.number)

    def _suspect(self, error: OSError) -> None:
        """Mark this segment suspect: whether its pages are on the disk can no longer be found out."""
        self._shared.words[Field.SYNC_ERROR] = error.errno or -1
        self._shared.words[Field.SUSPECT] = self.number
        log.error(
            "%s could not be synced: %s; what is not synced goes into a fresh file, and nothing of it is "
            "called synced, nor delivered, before",
            self._path,
            error.strerror,
        )

    def _renew(self) -> bool:
        """Rewrite the suspect segment, once the appender has left it; False when that is not yet done."""
        if time.monotonic() < self._renew_at or not (self.ended or self._following()):
            return False
        assert self._scan is not None
        self._path = _present(self._path)
        try:
            renew(self.layout, self._path)
            fd = open_to_read(self._path)
        except OSError as error:
            self._shared.words[Field.SYNC_ERROR] = error.errno or -1
            self._renew_at = time.monotonic() + RENEW_S
            log.error("%s could not be rewritten: %s; it is tried again", self._path, error.strerror)
            return False
        os.close(self._scan.fd)
        self._scan = Scan(fd, self.tail)
        self._shared.words[Field.SUSPECT] = 0
        self._shared.words[Field.RENEWED] += 1
        log.warning("%s is rewritten, and synced", self._path)
        return True

    def _walk(self, complete: int | None) -> list[Entry]:
        """Move the tail over good frames, and over damage that is certain; return entries for the index."""
        assert self._scan is not None
        entries: list[Entry] = []
        while True:
            previous, burst = self.tail[[DIGEST, BURST]].tolist()
            try:
                chunk = self._scan.next()
            except ReadFailed as error:
                if not self._following():
                    raise
                # The next segment says where the log goes on; the delivery worker comes back for this part.
                log.error("%s; it is committed as far as it can be read", error)
                return entries
            if chunk is None:
                if complete is None or int(self.tail[POSITION]) >= complete or not self._skip():
                    return entries
                continue
            self.seen(self._first, chunk)
            offset = int(chunk.frames[0, FRAME_AT])
            if offset >= self._entry + MARK_BYTES:
                self._entry = offset
                sequence = int(chunk.frames[0, FRAME_FIRST])
                entries.append((sequence, self.number, offset, previous & 0xFFFFFFFFFFFFFFFF, burst))
            if int(self.tail[POSITION]) == complete:
                # All that was announced, which most often is one chunk: there is nothing more to read.
                return entries

    def _skip(self) -> bool:
        """Go over damage to the next good frame; False when there is none yet."""
        assert self._scan is not None
        position = int(self.tail[POSITION])
        missing = self._scan.skip()
        if missing is not None:
            lost = counted(missing, "message")
            log.error("%s is damaged at byte %d: %s cannot be read", self._path, position, lost)
        elif self._is_announced(position) and position != self._stuck:
            self._stuck = position
            log.error("%s is damaged at byte %d, up to its end", self._path, position)
        return missing is not None

    def _is_announced(self, position: int) -> bool:
        """Whether frames were announced behind this position in the segment."""
        number, end = self._shared.place(Field.WRITTEN)
        return number == self.number and end > position

    def _name(self) -> None:
        """Give a segment that was a spare its final name."""
        mark_in_use(self.layout)
        named = self.layout.segment(self._first)
        os.rename(self._path, named)
        reach("sync.named")
        try:
            sync_directory(self.layout.segments)
        except OSError as error:
            self._shared.words[Field.SYNC_ERROR] = error.errno or -1
            # A second sync of the same change would prove nothing: undo the rename, and make it again.
            os.rename(named, self._path)
            raise
        self._path, self._is_spare = named, False

    def _publish(self, end: int) -> None:
        """The log is synced up to this place, which is that of the tail."""
        words = self._shared.words
        words[_SYNCED_SEQUENCE] = self.tail[SEQUENCE]
        words[_SYNCED] = end

    def _place(self) -> int:
        return place(self.number, int(self.tail[POSITION]))

    @property
    def is_behind(self) -> bool:
        """Whether a full segment waits for its seal, or a suspect one to be rewritten."""
        return bool(self._full or self._waiting) or self._is_suspect()

    def seal_one(self) -> bool:
        """Seal the oldest full segment; False when there is none, or no room for its footer.

        A segment that the disk gives an error for goes to the end of the queue, for `retry_s`.
        """
        if not self._full or time.monotonic() < self._unread.get(self._full[0], 0.0):
            return False
        path = _present(self._full[0])
        try:
            tail = seal_surely(self.layout, path)
            reach("seal.synced")
        except SpoolFull as error:
            log.debug("%s is not sealed yet: %s", path, error)
            return False
        except ReadFailed as error:
            if self._full[0] not in self._unread:
                log.error("%s; it is sealed when the disk gives it", error)
            self._unread[self._full[0]] = time.monotonic() + self._retry_s
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
        """Seal the segment in use, after the last message: the next start finds the end without a walk.

        Removes the spares: one that is left tells the next boot that the end was not clean
        (spool.log.recovery). One that the appender has taken into use is left, with its messages.
        """
        if self._scan is not None and not self._is_suspect():
            os.close(self._scan.fd)
            self._scan = None
            self._full.append(self._path)
        while self.seal_one():
            continue
        if self._scan is None and not self._full:
            self._shared.words[Field.SPARE] = 0
            for path in (self.layout.segment(number, SPARE) for number in self.layout.list_spares()):
                if _is_unbound(path):
                    path.unlink()
            sync_directory(self.layout.segments)


def _is_unbound(path: Path) -> bool:
    """Whether a spare was never in use; False if that cannot be read."""
    with contextlib.suppress(BadSpool, OSError):
        return bool(read_header(path)["first_sequence"] == UNBOUND)
    return False


def _present(path: Path) -> Path:
    """The name that a segment has now: it is called sent once all of it is resolved."""
    return path if path.exists() else path.with_suffix(SENT)


_COPY_BYTES = 1 << 20


def renew(layout: Layout, path: Path) -> None:
    """Replace a suspect segment by a fresh and synced file with the same frames.

    The file ends behind the last good frame, so that nothing is ever appended to it. Raises OSError,
    BadSpool; then the suspect is still in its place, or was replaced and the directory may not be synced:
    call it again.
    """
    fresh = path.with_suffix(path.suffix + ".tmp")
    fd = make_anew(fresh)
    try:
        _copy(path, fd)
        tail = tail_at_start(read_header(fresh))
        for _ in Scan(fd, tail).all():
            continue
        os.ftruncate(fd, int(tail[POSITION]))
        os.fsync(fd)
        reach("renew.synced")
        _keep(layout, path)
        reach("renew.kept")
        os.rename(fresh, path)
        reach("renew.named")
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    sync_directory(layout.segments)


def _copy(path: Path, target: int) -> None:
    source = open_to_read(path)
    try:
        copy_readable(source, target)
    finally:
        os.close(source)


def copy_readable(source: int, target: int) -> None:
    """Copy a file; pages that cannot be read become zeros, and zeros become holes in the file."""
    size = os.fstat(source).st_size
    for offset in range(0, size, _COPY_BYTES):
        data = _read(source, min(_COPY_BYTES, size - offset), offset)
        if np.frombuffer(data, np.uint8).any():
            write_at(target, data, offset)
    os.ftruncate(target, size)


def _read(fd: int, length: int, offset: int) -> bytes:
    with contextlib.suppress(OSError):
        return read_at(fd, length, offset)
    parts = []
    for at in range(offset, offset + length, PAGE_BYTES):
        part = min(PAGE_BYTES, offset + length - at)
        try:
            parts.append(read_at(fd, part, at))
        except OSError as error:
            log.error("%d bytes at %d of a segment cannot be read: %s", part, at, error.strerror)
            parts.append(bytes(part))
    return b"".join(parts)


def _keep(layout: Layout, path: Path) -> None:
    """Keep the suspect file as evidence: only the last one, since a bad disk makes many."""
    for old in layout.quarantine.glob("*.suspect"):
        old.unlink(missing_ok=True)
    try:
        os.link(path, layout.quarantine / f"{path.name}.suspect")
    except OSError as error:
        log.warning("%s is not kept in %s: %s", path.name, layout.quarantine, error.strerror)


def seal_surely(layout: Layout, path: Path, *, next_sequence: int | None = None) -> Tail:
    """Seal a segment (spool.format.segment.seal); when its sync fails, in a fresh file. Raises as both do.

    A segment that cannot be read is not rewritten: the fresh file would lack the unreadable part for ever.
    """
    try:
        return seal(path, next_sequence=next_sequence)
    except (FileNotFoundError, ReadFailed):
        raise
    except OSError as error:
        log.error("%s could not be sealed: %s; it is sealed in a fresh file", path, error.strerror)
    renew(layout, path)
    return seal(path, next_sequence=next_sequence)
