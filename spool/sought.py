"""A set of messages, and how many of them are not resolved: asked now and then while they are delivered.

A bit a message, by segment, so that a hundred million take 12 MB, and a look is a few operations on arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spool.catalogue import Catalogue, SegmentInfo
from spool.changes import CHUNK_BYTES
from spool.environment import LMDB_REFUSES
from spool.layout import Layout
from spool.marks import Marks

Bits = npt.NDArray[np.uint8]
Resolved = tuple[int, Mapping[int, Bits]]
"""The floor, and above it by segment number a bit a message: 1 where it is resolved."""


@dataclass(frozen=True, slots=True)
class TopicCount:
    """Messages of the topic that they were sent to at first."""

    topic: str
    messages: int
    first_ns: int
    """When the first of them was received, ns since the epoch, and the last."""
    last_ns: int


class Sought:
    """Messages of one spool."""

    def __init__(self) -> None:
        self._segments: dict[int, tuple[SegmentInfo, Bits]] = {}
        self.total = 0

    def add(self, catalogue: Catalogue, sequences: npt.NDArray[np.int64]) -> None:
        """Take in int64 sequences of one segment, in order, each once and never before."""
        if len(sequences) == 0:
            return
        info = catalogue.segments[catalogue.at(int(sequences[0]))]
        _, bits = self._segments.get(info.number, (info, np.zeros(0, np.uint8)))
        places = sequences - info.first_sequence
        fresh = np.zeros(int(places[-1]) + 1, np.uint8)
        fresh[places] = 1
        packed = np.packbits(fresh, bitorder="little")
        packed[: len(bits)] |= bits
        self._segments[info.number] = info, packed
        self.total += len(sequences)

    def left(self, resolved: Resolved) -> int:
        """How many of them are not resolved."""
        floor, by_segment = resolved
        for number in [n for n, (info, bits) in self._segments.items() if _end(info, bits) <= floor]:
            # The floor never sinks.
            del self._segments[number]
        return sum(
            _count_open(bits, floor - info.first_sequence, by_segment.get(number))
            for number, (info, bits) in self._segments.items()
        )

    def left_below(self, resolved: Resolved, sequence: int) -> int:
        """How many of those in segments that begin below `sequence`."""
        floor, by_segment = resolved
        return sum(
            _count_open(bits, floor - info.first_sequence, by_segment.get(number))
            for number, (info, bits) in self._segments.items()
            if info.first_sequence < sequence and _end(info, bits) > floor
        )


def _end(info: SegmentInfo, bits: Bits) -> int:
    return info.first_sequence + 8 * len(bits)


def _count_open(bits: Bits, below: int, resolved: Bits | None) -> int:
    """Bits that are set from place `below` on, and not resolved."""
    still = bits.copy()
    if resolved is not None:
        both = min(len(still), len(resolved))
        still[:both] &= ~resolved[:both]
    if below > 0:
        still[: below >> 3] = 0
        still[below >> 3] &= 0xFF << (below & 7) & 0xFF
    return int(np.bitwise_count(still).sum())


def read_resolved(layout: Layout) -> Resolved:
    """What the marks of a spool say at this instant, whoever writes them; without any: nothing."""
    catalogue = Catalogue(layout)
    try:
        marks = Marks(layout.delivery, catalogue, readonly=True)
    except LMDB_REFUSES:
        return catalogue.sent_below(), {}
    try:
        return resolved_by(marks)
    except LMDB_REFUSES:
        return catalogue.sent_below(), {}
    finally:
        marks.close()


def resolved_by(marks: Marks) -> Resolved:
    """What marks say. Raises LMDB_REFUSES."""
    # The floor first: what is dropped below a later one counts as open for this look.
    floor, _ = marks.floor()
    by_segment: dict[int, Bits] = {}
    for info, chunk, bitmap in marks.chunks():
        end = (chunk + 1) * CHUNK_BYTES
        bits = by_segment.get(info.number, np.zeros(0, np.uint8))
        bits = np.pad(bits, (0, max(0, end - len(bits))))
        bits[end - CHUNK_BYTES : end] = bitmap
        by_segment[info.number] = bits
    return floor, by_segment
