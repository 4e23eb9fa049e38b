"""Columns that our code makes of others, batch by batch, in whichever engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

Function = Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]]
"""For each tuple, which has an array for each column, one array of as many rows: of one task, in order."""


class Computed(NamedTuple):
    """A column, and the function that makes it of the columns `of`."""

    name: str
    kind: pa.DataType
    function: Function
    of: Sequence[str]
