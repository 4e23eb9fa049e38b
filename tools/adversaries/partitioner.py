"""The user's own partitioner of the flood topic, which raises for some keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

UNBEARABLE = b"unbearable"


def choose(keys: Sequence[bytes], partition_keys: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.int64]:
    """int64[messages]: partitions. Raises KeyError if one of the keys is UNBEARABLE."""
    if UNBEARABLE in keys:
        raise KeyError(UNBEARABLE)
    return np.arange(len(partition_keys)) % count
