"""What changes about the outcomes of messages, on the way to the marks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spool.discarded import Sample

CHUNK_BYTES = 2008
"""Of a bitmap: a bit less than half a page, so that LMDB has two in one and copies no more than it must."""
CHUNK_MESSAGES = 8 * CHUNK_BYTES


class Discard(NamedTuple):
    """Messages that are discarded at once, for one reason."""

    sequences: npt.NDArray[np.int64]
    reason: int
    topic: bytes | Mapping[bytes, int]
    """The topic of all, or how many there are of each."""
    time_ns: int


@dataclass(slots=True)
class Changes:
    """What one transaction writes. Sequences are int64; bitmaps uint8[CHUNK_BYTES]."""

    floor: int | None = None
    chunks: dict[tuple[int, int], npt.NDArray[np.uint8]] = field(default_factory=dict)
    """By (segment number, chunk)."""
    offsets: Mapping[int, int] | None = None
    """Broker id -> sequence: all there are; others are forgotten. None leaves them as they are."""
    discarded: list[Discard] = field(default_factory=list)
    progress: tuple[int, int] | None = None
    """Exactly once: partition and offset of the last progress record. None leaves it as it is."""
    samples: list[Sample] = field(default_factory=list)
    """Of some of the discarded."""
    partitions: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    """Topic -> (from sequence, partitions), in order; in place of what was known of these topics."""
