"""What a replay counted before it was sent, kept in mind, so that what goes meanwhile is told of.

    {"version": 1, "counted": [[spool, segment, topic, messages, first_ns, last_ns], ...]}

Of the same replay there is one: a dry run writes it anew, and who sends it writes it where there is none. It
stays when a replay is interrupted, or leaves some, and goes when all is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from spool.disk import make_directory, read_text, write_file
from spool.wanted import Wanted

_VERSION = 1
MOST_BYTES = 256 << 20
"""Of the file: a line for each topic of each segment, some million."""


class Counted(NamedTuple):
    """Messages of one topic in one segment, and when the first and the last of them were received."""

    spool: str
    segment: int
    topic: str
    messages: int
    first_ns: int
    last_ns: int


class Note:
    """That of one replay."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[Counted]:
        """What was counted; nothing where that was not, or the file is damaged or of another release."""
        try:
            found = json.loads(read_text(self._path, MOST_BYTES))
            return [Counted(*row) for row in found["counted"]] if found["version"] == _VERSION else []
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def write(self, rows: Sequence[Counted]) -> None:
        """Keep these in mind. Raises OSError."""
        make_directory(self._path.parent)
        write_file(self._path, json.dumps({"version": _VERSION, "counted": rows}).encode())

    def forget(self) -> None:
        """All is sent. Raises OSError."""
        self._path.unlink(missing_ok=True)


def count_gone(
    before: Iterable[Counted], now: Iterable[Counted], kept: Mapping[str, set[int]], wanted: Wanted
) -> int:
    """Messages that were counted before, and are in segments that are there no more.

    `kept`: the segments that are there, by spool. Only what `wanted` asks for still: "-2h" moves on.
    """
    seen = {(row.spool, row.segment) for row in now}
    return sum(
        row.messages
        for row in before
        if (row.spool, row.segment) not in seen
        and row.segment not in kept.get(row.spool, ())
        and row.last_ns >= wanted.from_ns
        and row.first_ns < wanted.to_ns
    )
