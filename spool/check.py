"""Checking a whole spool, or segment files by themselves. Read-only: pread, and LMDB without its lock file.

A daemon may be at work meanwhile. So what speaks of the segments is read before they are: nothing may then
be in it that is not in them. What is retired, or begun, under our eyes is passed over.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from spool.abreast import in_order
from spool.books import Books
from spool.disk import read_text
from spool.errors import BadSpool, UnknownVersion
from spool.examination import Examination, Totals
from spool.finding import Finding, Kind, Severity, damage
from spool.frame import BURST, DIGEST, DISCARDED, SEQUENCE, STORED
from spool.identity import IDENTITY_BYTES, read_identity
from spool.layout import SENT, SPARE, Layout, parse_name
from spool.live import EPOCH
from spool.scan import read_header
from spool.segment import UNBOUND


class Check:
    """One check. `totals` says how much was looked at, once the findings were taken."""

    def __init__(self, progress: Callable[[Totals], None] = lambda _: None) -> None:
        """`progress` is called after each segment."""
        self.totals = Totals()
        self.examined: list[Examination] = []
        """The segments of a spool that belong to it, once the findings were taken."""
        self._progress = progress

    def spool(self, layout: Layout) -> Iterator[Finding]:
        """Everything in a spool. Raises NoSpool, OSError for directories that cannot be read."""
        spool = read_identity(layout)
        yield from _identity(layout)
        books = Books(layout, spool)
        yield from books.unreadable()
        for path in layout.list_strangers():
            yield damage(path, 0, Kind.UNREADABLE, "it is called as a segment, and is no file")
        before: Examination | None = None
        paths = [layout.segment(*pair) for pair in layout.list_segments()]
        paths += [layout.segment(number, SPARE) for number in layout.list_spares()]
        paths = [path for path in paths if path.suffix != SPARE or _is_bound(path)]
        for one, findings, gone in self._look(paths, paths[-1:]):
            if gone is not None:
                before = None
                continue
            yield from findings
            if one.header is not None:
                if bytes(one.header["spool"]) != spool:
                    yield damage(one.path, 16, Kind.FOREIGN, "it belongs to another spool")
                    continue
                yield from _name(one)
                yield from _link(before, one)
            self.examined.append(one)
            before = None if one.unread else one
        yield from books.against(self.examined)

    def files(self, paths: Sequence[Path]) -> Iterator[Finding]:
        """Segment files, each by itself; where one continues another, that too. Raises FileNotFoundError."""
        numbers = {path: _number(path) for path in paths}
        ordered, known = sorted(paths, key=numbers.__getitem__), set(numbers.values())
        last = {path for path, (spool, number) in numbers.items() if (spool, number + 1) not in known}
        before: tuple[Examination, tuple[bytes, int]] | None = None
        for path, (one, findings, gone) in zip(ordered, self._look(ordered, last), strict=True):
            if gone is not None:
                raise gone
            yield from findings
            spool, number = numbers[path]
            if before is not None and before[1] == (spool, number - 1):
                yield from _link(before[0], one)
            before = one, (spool, number)

    def _look(self, paths: Sequence[Path], last: Collection[Path]) -> Iterator[_Look]:
        """At each of `paths`, several at once; behind those in `last` none follows."""

        def look(path: Path) -> Iterator[_Look]:
            yield _look_at(Examination(path, last=path in last))

        for found in in_order(look, paths):
            if found.gone is None:
                self.totals.add(found.one.totals)
                self._progress(self.totals)
            yield found


class _Look(NamedTuple):
    """At one segment."""

    one: Examination
    findings: list[Finding]
    gone: FileNotFoundError | None = None


def _look_at(one: Examination) -> _Look:
    """Examine a segment that a daemon may have in hand."""
    try:
        try:
            return _Look(one, list(one.findings()))
        except FileNotFoundError:
            # Delivered, and called so, while we looked; if it is not there by that name, it is gone.
            if not parse_name(one.path.name):
                raise
            one.path = one.path.with_suffix(SENT)
            return _Look(one, list(one.findings()))
    except FileNotFoundError as error:
        return _Look(one, [], error)


def _is_bound(path: Path) -> bool:
    """Whether a spare was taken into use. One with a torn header was not, and is no damage."""
    try:
        return bool(read_header(path)["first_sequence"] != UNBOUND)
    except UnknownVersion:
        return True
    except (BadSpool, OSError):
        return False


def _number(path: Path) -> tuple[bytes, int]:
    """(spool, segment number) of a file; (b"", 0) where that cannot be read."""
    try:
        header = read_header(path)
    except FileNotFoundError:
        raise
    except (BadSpool, OSError):
        return b"", 0
    return bytes(header["spool"]), int(header["number"])


def _identity(layout: Layout) -> Iterator[Finding]:
    """The file that names the spool."""
    try:
        uuid.UUID(read_text(layout.identity, IDENTITY_BYTES).partition("\n")[0])
    except FileNotFoundError:
        sentence = "it is not there; the segments name the spool"
        yield Finding(layout.identity, 0, Severity.NOTE, Kind.IDENTITY, sentence)
    except ValueError:
        yield damage(layout.identity, 0, Kind.IDENTITY, "it holds no uuid; the segments name the spool")


def _name(one: Examination) -> Iterator[Finding]:
    """A segment's name against its header."""
    named = parse_name(one.path.name)
    assert one.header is not None
    says = int(one.header["number" if one.path.suffix == SPARE else "first_sequence"])
    if named is None or named[0] != says:
        yield damage(one.path, 0, Kind.NAME, f"its name does not say {says}, as its header does")


def _link(before: Examination | None, one: Examination) -> Iterator[Finding]:
    """A segment's header against the end of the segment before it."""
    if before is None or before.header is None or one.header is None:
        return
    header, tail = one.header, before.tail
    gap = int(header["number"]) - int(before.header["number"]) - 1
    lost = int(header["stored"]) - int(tail[STORED])
    if gap < 0:
        yield damage(one.path, 48, Kind.ORDER, f"it is segment {header['number']} again, or out of order")
    elif gap > 0:
        yield damage(
            one.path, 48, Kind.MISSING, f"{gap} segments before it are gone, and {lost} messages with them"
        )
    elif lost > 0:
        yield damage(before.path, before.end, Kind.MISSING, f"{lost} messages are gone from its end")
    elif wrong := _contradictions(before, one):
        yield damage(one.path, 56, Kind.ORDER, f"it does not continue {before.path.name}: {', '.join(wrong)}")


def _contradictions(before: Examination, one: Examination) -> list[str]:
    """Fields of a header that do not follow from the end of the segment before it."""
    assert one.header is not None
    header, tail = one.header, before.tail
    first, goes_on = int(header["first_sequence"]), int(tail[SEQUENCE])
    # One number is passed over behind a segment without messages; an epoch begins where nobody knows.
    continues = first in (goes_on, goes_on + 1) or (first > goes_on and first % EPOCH == 0)
    found = {
        "first_sequence": continues,
        "previous": int(header["previous"]) == int(tail[DIGEST]) & 0xFFFFFFFFFFFFFFFF,
        "stored": int(header["stored"]) == int(tail[STORED]),
        "burst": int(header["burst"]) >= int(tail[BURST]),
        "discarded": np.array_equal(header["discarded"].astype(np.int64), tail[DISCARDED:]),
    }
    return [name for name, agrees in found.items() if not agrees]
