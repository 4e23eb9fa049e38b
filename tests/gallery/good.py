"""The good spool that every exhibit is a damaged copy of: small, and with one of everything in it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spool.format.wire import Reason
from spool.index.identity import read_identity
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks.discarded import Changes, Discard
from spool.marks.marks import Marks
from spool.marks.outcome_file import write_outcomes
from spool.read.overview import SpoolTotals, take_totals
from spool.shared.ledger import Ledger, add, digest_address
from spool.shared.state import Field
from tests.spool import plain
from tests.spool.fixture import SpoolFixture
from tests.spool.stored import pack_file

FIRST_UNDELIVERED = 80
DELIVERED_ABOVE = (90, 91, 95)
"""Marked one by one, above the low watermark."""
DISCARDED = 97
TOLD_BY_A_JOB = (100, 101, 102)
"""They are in an outcome file that no owner has taken over."""


@dataclass(frozen=True)
class Good:
    """The spool, and the truth about it. Segments: 0 sent, 1 packed, 2 and 3 sealed, 4 in use."""

    directory: Path
    """For a SpoolFixture: the spool, and the shared state of the boot in which its daemon was killed."""
    sent: dict[int, bytes]
    """By sequence number, every datagram that was stored."""
    account: SpoolTotals
    names: tuple[str, ...]
    """The names of the segment files, in order."""
    frames: tuple[tuple[plain.Frame, ...], ...]
    """The frames of each segment, before it was packed."""

    def copy(self, to: Path) -> Layout:
        """A copy to damage."""
        shutil.copytree(self.directory, to)
        return Layout(to / "spool")


def make_good(directory: Path) -> Good:
    """A spool whose daemon was killed."""
    spool, sent = SpoolFixture(directory), list[bytes]()
    while len(spool.layout.list_segments()) < 5:
        sent += spool.fill(3)
        spool.append([], refused={int(Reason.SHORT): (2, b"x")})
        spool.step()
    sent += spool.fill(6)
    spool.step()
    layout = spool.layout
    _deliver(spool)
    frames = tuple(tuple(segment.frames) for segment in spool.segments())
    spool.crash()
    pack_file(layout.segment(*layout.list_segments()[1]))
    ledger = Ledger(layout.ledger)
    add(ledger.begin(), 0, 0, int(Reason.SPOOL_FULL), 1, digest_address(), 7)
    # The discards of a burst that left no frame.
    ledger.commit(1)
    names = tuple(layout.segment(*pair).name for pair in layout.list_segments())
    assert [Path(name).suffix for name in names] == [".sent", ".seg", ".seg", ".seg", ".seg"]
    account = take_totals(layout, list)
    assert account.received == len(sent) + sum(account.refused.values())
    return Good(directory, dict(enumerate(sent)), account, names, frames)


def _deliver(spool: SpoolFixture) -> None:
    """Marks with a low watermark, resolved messages above it, a discarded one; a job's outcome file."""
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    info = marks.segment_list.segments[marks.segment_list.at(FIRST_UNDELIVERED)]
    bits = np.zeros(2008 * 8, np.uint8)
    bits[np.array([*DELIVERED_ABOVE, DISCARDED]) - info.first_sequence] = 1
    marks.commit(
        Changes(
            low_watermark=FIRST_UNDELIVERED,
            chunks={(info.number, 0): np.packbits(bits, bitorder="little")},
            offsets={1: FIRST_UNDELIVERED, -1: FIRST_UNDELIVERED},
            discarded=[Discard(np.array([DISCARDED]), int(Reason.TOO_LARGE), b"t1", 1)],
        )
    )
    marks.close()
    job = spool.layout.outcomes / "job"
    job.mkdir(parents=True)
    told = np.array(TOLD_BY_A_JOB)
    write_outcomes(job, "task", read_identity(spool.layout), told, np.zeros(len(told), np.int32))
    spool.shared.words[Field.LOW_WATERMARK] = FIRST_UNDELIVERED
    spool.step()
