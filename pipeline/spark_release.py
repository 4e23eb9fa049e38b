"""What the PySpark that is installed can do: the one place that knows its releases by number.

    4.0   data sources in Python, batch and streaming; Arrow from a reader and into a batch writer
    4.1   hands filters to a source; functions over Arrow columns; Arrow into a streaming writer; counts the
          most frequent values in little memory
    4.2   asks a streaming source how much it wants to read

What is missing is done in another way, or by Spark itself: results are the same, and take longer. Only
`stats` needs 4.1.
"""

from __future__ import annotations

import re
from importlib import import_module

Release = tuple[int, int]

OLDEST: Release = (4, 0)
FILTERS: Release = (4, 1)
"""A source is told what a query asks for."""
ARROW_FUNCTIONS: Release = (4, 1)
ARROW_STREAM_WRITERS: Release = (4, 1)
TOP_VALUES: Release = (4, 1)
READ_LIMITS: Release = (4, 2)
"""A batch of a stream takes no more than the source says."""


def version() -> str:
    """Of the PySpark that would be imported, as it says it. Raises ImportError."""
    return str(import_module("pyspark.version").__version__)


def has(ability: Release) -> bool:
    """Whether this PySpark is as new as that. Raises ImportError."""
    return tuple(map(int, re.findall(r"\d+", version())[:2])) >= ability


def lacks() -> list[str]:
    """What a user of this PySpark may miss, each in a few words. Raises ImportError."""
    known = {
        "pushFilters spares no segment": FILTERS,
        "brucectl spark stats cannot run": TOP_VALUES,
        "a batch of a stream takes all there is": READ_LIMITS,
    }
    return [f"{words} before {since[0]}.{since[1]}" for words, since in known.items() if not has(since)]
