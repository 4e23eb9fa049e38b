"""What changes about the outcomes of messages, on the way to the marks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from spool.discarded import Sample


@dataclass(slots=True)
class Changes:
    """What one transaction writes. Sequences are int64; bitmaps uint8[spool.marks.CHUNK_BYTES]."""

    floor: int | None = None
    chunks: dict[tuple[int, int], npt.NDArray[np.uint8]] = field(default_factory=dict)
    """By (segment number, chunk)."""
    offsets: Mapping[int, int] | None = None
    """Broker id -> sequence: all there are; others are forgotten. None leaves them as they are."""
    discarded: list[tuple[int, int, bytes, int]] = field(default_factory=list)
    """(sequence, reason, topic, time in ns)."""
    progress: tuple[int, int] | None = None
    """Exactly once: partition and offset of the last progress record. None leaves it as it is."""
    evicted: list[tuple[int, bytes, int, int]] = field(default_factory=list)
    """(reason, topic, messages, time in ns): many at once, of segments that are about to go."""
    samples: list[Sample] = field(default_factory=list)
    """Of some of the discarded."""
    partitions: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    """Topic -> (from sequence, partitions), in order; in place of what was known of these topics."""
