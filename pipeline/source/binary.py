"""Columns of bytes as loops have them: an address, and where each row begins."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]


def from_binary(column: pa.Array) -> tuple[Bytes, Offsets, Lengths]:
    """(bytes, where each row's begin, how many they are) of a column of bytes or text; a null has none."""
    if len(column) == 0:
        return np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int32)
    _, places, data = column.cast(pa.binary()).buffers()
    offsets = np.frombuffer(places, np.int32)[column.offset : column.offset + len(column) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    held = np.empty(0, np.uint8) if last == first else np.frombuffer(data, np.uint8)[first:last]
    lengths = np.where(np.asarray(column.is_valid()), np.diff(offsets), 0).astype(np.int32)
    return held, offsets[:-1].astype(np.int64) - first, lengths
