"""Segments whose headers are damaged, or not given by the disk: what names, footers and neighbours tell.

Nothing of them is read. Their frames could be, each by its own word; but marks go by the header's digest, so
nobody could tell which of the messages are delivered, nor write down that they are. A daemon that starts
writes such a header anew where it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.segments import DamagedFile
from spool.errors import NoSpool
from spool.identity import read_identity
from spool.layout import Layout
from spool.live import Footer


@dataclass(frozen=True, slots=True)
class Bare:
    """What a file without a good header says."""

    first_sequence: int
    suffix: str
    bytes: int
    footer: Footer | None
    error: str = ""
    """Why the disk does not give the header."""


@dataclass(frozen=True, slots=True)
class Headless:
    """A segment without a good header, in its place."""

    file: DamagedFile
    footer: Footer | None
    outside: bool
    """No readable segment lies before it, or none behind it."""

    @property
    def messages(self) -> int:
        """How many it holds, as far as its footer tells; 0 between others, whose headers count them."""
        return int(self.footer[0]["count"]) if self.footer and self.outside else 0


def place_headless(layout: Layout, found: Sequence[int | Bare], host: str | None) -> list[Headless]:
    """The bare ones among the segments of a spool, which come in order; of others their numbers."""
    numbers = {at: one for at, one in enumerate(found) if not isinstance(one, Bare)}
    if len(numbers) == len(found):
        return []
    spool = _spool(layout)
    return [
        Headless(
            DamagedFile(
                str(layout.directory),
                spool,
                host,
                _number(at, numbers),
                one.first_sequence,
                one.suffix,
                one.bytes,
                one.error,
            ),
            one.footer,
            not numbers or not min(numbers) < at < max(numbers),
        )
        for at, one in enumerate(found)
        if isinstance(one, Bare)
    ]


def _number(at: int, numbers: dict[int, int]) -> int | None:
    """Segments are numbered without gaps: what all others say of the one at this place, if they agree."""
    told = {number + at - place for place, number in numbers.items()}
    return told.pop() if len(told) == 1 else None


def _spool(layout: Layout) -> str | None:
    try:
        return read_identity(layout).hex()
    except NoSpool:
        return None
