"""The departures of segments: the book of sums has what must be in Kafka of each before it goes."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from spool.errors import BadSpool, SpoolFull
from spool.format.block_sums import NO_SEQUENCES, BlockSums, Sequences
from spool.format.frame import SEQUENCE, tail_at_start
from spool.format.packed import header_of, open_plain
from spool.format.scan import Scan
from spool.format.segment_format import SUMS_SINCE, Record
from spool.format.sums_book import MOST_BYTES, Departed, encode_departed, end_of_book
from spool.index.log_end import read_footer
from spool.layout import SENT, Layout, older
from spool.marks.outcomes import outcomes_now
from spool.storage.disk import open_or_make, opened, read_at, reserve, sync_directory, write_at
from spool.storage.failpoint import reach

log = logging.getLogger("bruce.keeper")


class Departures:
    """The book of one spool's keeper. `note` before segments are removed."""

    def __init__(self, layout: Layout, spool: bytes, *, most_bytes: int = MOST_BYTES) -> None:
        """`spool`: the uuid, 16 bytes."""
        self._layout, self._spool, self._most = layout, spool, most_bytes
        self._end: int | None = None
        """Behind the last whole record; None: not looked at yet."""

    def note(self, firsts: Iterable[int]) -> None:
        """Write the records of sent segments, by first sequence, and sync the book.

        Room for messages is worth more: where the book cannot be written, or a segment be read, nothing is
        written of it, and a log line says so.
        """
        records = [record for first in firsts if (record := self._record(first))]
        if not records:
            return
        try:
            self._append(b"".join(records))
        except (SpoolFull, OSError) as error:
            # The book may have a part of it.
            self._end = None
            log.warning("a witness cannot check segments that are removed, for want of their sums: %s", error)

    def _record(self, first: int) -> bytes | None:
        path = self._layout.segment(first, SENT)
        try:
            segment = departed(self._layout, path)
        except (BadSpool, OSError) as error:
            log.warning("a witness cannot check %s, which is removed: %s", path.name, error)
            return None
        return encode_departed(self._spool, segment) if segment else None

    def _append(self, data: bytes) -> None:
        book = self._layout.sums
        fd = open_or_make(book)
        try:
            if self._end is None:
                self._end = _end_of(fd, self._spool)
            if self._end and self._end + len(data) > self._most:
                os.rename(book, older(book))
                full, self._end = fd, 0
                fd = open_or_make(book)
                os.close(full)
            reserve(fd, self._end, len(data))
            write_at(fd, data, self._end)
            reach("sums.written")
            os.fsync(fd)
            self._end += len(data)
        finally:
            os.close(fd)
        sync_directory(self._layout.directory)


def _end_of(fd: int, spool: bytes) -> int:
    """The place of the next record: what a crash left is written over."""
    size = min(os.fstat(fd).st_size, 2 * MOST_BYTES)
    return end_of_book(spool, read_at(fd, size, 0))


def departed(layout: Layout, path: Path) -> Departed | None:
    """The record of a segment, by its footer and the marks; None: it has no messages.

    Raises BadSpool, OSError.
    """
    with opened(path) as file:
        header, footer = header_of(file.fileno(), path), read_footer(file.fileno())
    first = int(header["first_sequence"])
    sums, messages = (footer.sums, int(footer.fields["count"])) if footer else read_sums(path)
    if not messages:
        return None
    outcomes = outcomes_now(layout, np.arange(first, first + messages))
    if outcomes is None:
        return Departed(first, messages, None, None)
    discarded = first + np.flatnonzero(outcomes > 0)
    if header["version"] < SUMS_SINCE:
        return Departed(first, messages, None, discarded)
    if len(discarded):
        sums, _ = read_sums(path, discarded)
    return Departed(first, messages, sums, discarded)


def read_sums(path: Path, without: Sequences = NO_SEQUENCES) -> tuple[Record, int]:
    """SUM[blocks] of a segment's messages but for these sequences, ascending; how many there are with them.

    Raises BadSpool, OSError.
    """
    fd = open_plain(path)
    try:
        header = header_of(fd, path)
        tail, sums = tail_at_start(header), BlockSums(without)
        for chunk in Scan(fd, tail).all():
            sums.add(chunk)
        first = int(header["first_sequence"])
        return sums.rows(first), int(tail[SEQUENCE]) - first
    finally:
        os.close(fd)
