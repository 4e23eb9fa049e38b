"""The results of `verify`, `repair` and a start for one kind of damage."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from spool.format.batch import Topics
from spool.format.wire import encode
from spool.fsck import repair
from spool.fsck.check import Check
from spool.fsck.finding import Finding, Severity
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks.marks import Marks
from spool.read.overview import SpoolTotals, take_totals
from spool.read.reader import Reader
from tests.gallery.good import Good
from tests.gallery.kinds import Copy, Spoil
from tests.spool.fixture import SpoolFixture

KILLED_IN, NEXT = 1, 2
"""Boots: the one in which the daemon was killed, and the one after it."""
NEW = encode(b"t", b"new")


def damaged(good: Good, spoil: Spoil, to: Path) -> tuple[Layout, frozenset[int]]:
    """A damaged copy, and the messages that were destroyed."""
    layout = good.copy(to)
    return layout, spoil(Copy(layout, good))


def state_of(directory: Path) -> dict[str, str]:
    """Every file, by its content."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name not in ("lock", "owner"))
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def damages(layout: Layout) -> list[Finding]:
    """The damages for which `verify` exits with 1."""
    return [one for one in Check().spool(layout) if one.severity is Severity.DAMAGE]


class Started(NamedTuple):
    """A daemon's log after its start, with one more message in it."""

    spool: bytes
    """The uuid."""
    new: int
    """Sequence number of the message that came then."""
    synced: int
    served: dict[int, bytes]
    """The messages that a reader finds after a start, by sequence number."""
    twice: list[int]
    account: SpoolTotals
    resolved: set[int]
    """Above the low watermark."""


@contextmanager
def booted(boot: int) -> Iterator[None]:
    """In this boot of the host."""
    with mock.patch.object(repair, "boot_id", return_value=boot.to_bytes(16, "big")):
        yield


def start(home: Path, boot: int) -> Started:
    """Start, take a message, and read everything that is committed. Raises as a start does."""
    spool = SpoolFixture(home, boot=boot)
    try:
        new = spool.append([NEW])
        spool.step()
        served, twice = dict[int, bytes](), list[int]()
        reader = Reader(SegmentList(spool.layout), Topics())
        reader.allow(spool.keeper._committer.number, int(spool.keeper._committer.tail[0]))
        while batch := reader.next():
            for row, sequence in enumerate(batch.sequence.tolist()):
                twice += [sequence] * (sequence in served)
                served[sequence] = bytes(batch.datagram(row))
        reader.close()
        # As the delivery worker opens them: what cannot be read is set aside.
        marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
        resolved = {
            info.first_sequence + chunk * 16064 + bit
            for info, chunk, bitmap in marks.chunks()
            for bit in range(16064)
            if bitmap[bit // 8] >> bit % 8 & 1
        }
        marks.close()
        account = take_totals(spool.layout, list)
        return Started(spool.identity.spool, new, spool.synced, served, twice, account, resolved)
    finally:
        spool.crash()
