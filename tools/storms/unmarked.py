"""The messages that may be in Kafka twice: those committed and not marked when a deliverer was killed.

Right after each such kill the marks are copied, before a successor can write to them. In the end each surplus
copy of a message needs a kill at which the message was not marked.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import lmdb
import numpy as np
import numpy.typing as npt

from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks.marks import Marks
from spool.native.digest import CHUNK_MESSAGES
from tools.verify_consume import NO_SEQUENCE

Sequences = npt.NDArray[np.int64]


def keep_marks(layout: Layout, directory: Path) -> None:
    """Copy the marks as they are now."""
    directory.mkdir(parents=True)
    source = layout.delivery / "data.mdb"
    if source.exists():
        shutil.copy(source, directory / "data.mdb")


def marked(layout: Layout, directory: Path, sequences: Sequences) -> npt.NDArray[np.bool_]:
    """Which of these sequences the copied marks call resolved."""
    if not (directory / "data.mdb").exists():
        return np.zeros(len(sequences), bool)
    segment_list = SegmentList(layout)
    # Segments marked as sent since then do not count.
    segment_list.sent = set()
    try:
        marks = Marks(directory, segment_list, readonly=True)
    except lmdb.NotFoundError:
        return np.zeros(len(sequences), bool)  # nothing was ever marked
    found: npt.NDArray[np.bool_] = sequences < marks.low_watermark()[0]
    for info, chunk, bitmap in marks.chunks():
        at = sequences - (info.first_sequence + chunk * CHUNK_MESSAGES)
        inside = (at >= 0) & (at < CHUNK_MESSAGES)
        bits = np.unpackbits(bitmap, bitorder="little").astype(bool)
        found[inside] |= bits[at[inside]]
    marks.close()
    return found


def surplus(sequences: Sequences) -> tuple[Sequences, Sequences]:
    """(sequences that occur more than once, copies beyond the first)."""
    values, counts = np.unique(sequences[sequences != NO_SEQUENCE], return_counts=True)
    return values[counts > 1], counts[counts > 1] - 1


def unanswered(layout: Layout, kills: list[tuple[Path, int]], sequences: Sequences) -> tuple[Sequences, int]:
    """(duplicated sequences with more copies than kills that explain them, how many the kills could explain).

    `kills`: copied marks, and the synced watermark at the kill. `sequences`: of every message in Kafka.
    """
    doubled, copies = surplus(sequences)
    answers = np.zeros(len(doubled), np.int64)
    for directory, synced in kills:
        answers += ~marked(layout, directory, doubled) & (doubled < synced)
    return doubled[copies > answers], int(answers.sum())
