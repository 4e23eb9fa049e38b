"""Checking a whole spool, or segment files by themselves. Read-only: pread, and LMDB without its lock file.

A daemon may be at work meanwhile. So the metadata is read before the segments: then all that it names must be
in them. Segments that are retired or begun during the check are skipped.

Messages that are gone from the log may have been delivered before: the marks, which outlive them, tell.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spool.errors import BadSpool, SpoolError, UnknownVersion
from spool.format.damage import Ranges, ranges
from spool.format.frame import BURST, DIGEST, DISCARDED, SEQUENCE, STORED
from spool.format.packed import UNPACKED
from spool.format.scan import read_header
from spool.format.segment import UNBOUND
from spool.fsck.examination import Examination, Totals
from spool.fsck.finding import Finding, Kind, Severity, damage
from spool.fsck.metadata_check import MetadataCheck
from spool.index.identity import IDENTITY_BYTES, read_identity
from spool.index.log_end import EPOCH
from spool.layout import SENT, SPARE, Layout, parse_name
from spool.marks.outcomes import DELIVERED, OPEN, outcomes_now
from spool.storage.disk import read_text
from spool.storage.parallel import in_order
from spool.words import counted

_MOST = 1 << 22
"""Messages that are asked for: a damaged header may count any number."""


class Resolved(NamedTuple):
    """Of some messages that are gone, how many nothing was left to do for."""

    messages: int
    delivered: int
    discarded: int
    """Also those of which the marks say only that they are resolved."""

    @property
    def left(self) -> int:
        """Messages that are lost: gone, and neither delivered nor discarded before, as far as is known."""
        return self.messages - self.delivered - self.discarded

    def words(self) -> str:
        """The end of a sentence that counts the messages; empty where none was resolved."""
        if self.left == self.messages:
            return ""
        who = (
            ""
            if self.messages == 1
            else "all "
            if not self.left
            else f"{self.messages - self.left:,} of them "
        )
        return f", {who}{'delivered or discarded' if self.discarded else 'delivered'} before"


NONE_RESOLVED = Resolved(0, 0, 0)


def look_up(layout: Layout, groups: Sequence[Ranges]) -> list[Resolved]:
    """How many messages of each group were resolved; none where the marks cannot be read. Raises OSError."""
    sizes = [sum(group[:, 1].tolist()) for group in groups]
    if not 0 < sum(sizes) <= _MOST:
        return [Resolved(size, 0, 0) for size in sizes]
    try:
        outcomes = outcomes_now(layout, _each(np.concatenate(groups)))
    except SpoolError:
        outcomes = None
    if outcomes is None:
        return [Resolved(size, 0, 0) for size in sizes]
    parts = np.split(outcomes, np.cumsum(sizes)[:-1])
    return [
        Resolved(len(part), int((part == DELIVERED).sum()), int(((part != DELIVERED) & (part != OPEN)).sum()))
        for part in parts
    ]


def _each(listed: Ranges) -> npt.NDArray[np.int64]:
    """Every sequence number in the ranges, in order."""
    firsts, counts = listed.T
    before = np.cumsum(counts) - counts
    return np.repeat(firsts - before, counts) + np.arange(counts.sum())


def add_resolved(layout: Layout, findings: Iterable[Finding]) -> list[Finding]:
    """The findings, each sentence with what was delivered before of the messages that it counts as gone."""
    listed = list(findings)
    found = look_up(layout, [ranges() if one.gone is None else one.gone for one in listed])
    return [
        replace(finding, sentence=finding.sentence + resolved.words())
        for finding, resolved in zip(listed, found, strict=True)
    ]


class Check:
    """One check. `totals` says how much was examined, once all findings were taken."""

    def __init__(self, progress: Callable[[Totals], None] = lambda _: None) -> None:
        """`progress` is called after each segment."""
        self.totals = Totals()
        self.examined: list[Examination] = []
        """The segments that belong to the spool, once all findings were taken."""
        self._progress = progress

    def spool(self, layout: Layout) -> list[Finding]:
        """Check everything in a spool. Raises NoSpool, OSError for directories that cannot be read."""
        return add_resolved(layout, self._spool(layout))

    def _spool(self, layout: Layout) -> Iterator[Finding]:
        spool = read_identity(layout)
        yield from _identity(layout)
        metadata = MetadataCheck(layout, spool)
        yield from metadata.unreadable()
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
        yield from metadata.against(self.examined)

    def files(self, paths: Sequence[Path]) -> Iterator[Finding]:
        """Check segment files one by one, and links between consecutive ones. Raises FileNotFoundError."""
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
        """Examine each of `paths`, several at once; no segment follows those in `last`."""

        def look(path: Path) -> Iterator[_Look]:
            yield _look_at(path, last=path in last)

        for found in in_order(look, paths, weights=UNPACKED):
            if found.gone is None:
                self.totals.add(found.one.totals)
                self._progress(self.totals)
            yield found


class _Look(NamedTuple):
    """The examination of one segment."""

    one: Examination
    findings: list[Finding]
    gone: FileNotFoundError | None = None


def _look_at(path: Path, *, last: bool) -> _Look:
    """Examine a segment that a daemon may rename or remove meanwhile."""
    one = Examination(path, last=last)
    try:
        try:
            return _Look(one, list(one.findings()))
        except FileNotFoundError:
            # The keeper has renamed it as sent meanwhile; without a file of that name, it is gone.
            if not parse_name(path.name):
                raise
            one = Examination(path.with_suffix(SENT), last=last)
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
    """(spool, segment number) of a file; (b"", 0) when they cannot be read."""
    try:
        header = read_header(path)
    except FileNotFoundError:
        raise
    except (BadSpool, OSError):
        return b"", 0
    return bytes(header["spool"]), int(header["number"])


def _identity(layout: Layout) -> Iterator[Finding]:
    """Check the file that names the spool."""
    try:
        uuid.UUID(read_text(layout.identity, IDENTITY_BYTES).partition("\n")[0])
    except FileNotFoundError:
        sentence = "it is not there; the segments name the spool"
        yield Finding(layout.identity, 0, Severity.NOTE, Kind.IDENTITY, sentence)
    except ValueError:
        yield damage(layout.identity, 0, Kind.IDENTITY, "it holds no uuid; the segments name the spool")


def _name(one: Examination) -> Iterator[Finding]:
    """Compare a segment's name with its header."""
    named = parse_name(one.path.name)
    assert one.header is not None
    says = int(one.header["number" if one.path.suffix == SPARE else "first_sequence"])
    if named is None or named[0] != says:
        yield damage(one.path, 0, Kind.NAME, f"its name does not say {says}, as its header does")


def _link(before: Examination | None, one: Examination) -> Iterator[Finding]:
    """Compare a segment's header with the end of the segment before it."""
    if before is None or before.header is None or one.header is None:
        return
    header, tail = one.header, before.tail
    gap = int(header["number"]) - int(before.header["number"]) - 1
    lost = int(header["stored"]) - int(tail[STORED])
    missing = ranges((int(tail[SEQUENCE]), lost))
    if gap < 0:
        yield damage(one.path, 48, Kind.ORDER, f"it is segment {header['number']} again, or out of order")
    elif gap > 0:
        yield damage(one.path, 48, Kind.MISSING, missing_before(gap, lost), missing)
    elif lost > 0:
        sentence = f"{counted(lost, 'message')} gone from its end"
        yield damage(before.path, before.end, Kind.MISSING, sentence, missing)
    elif wrong := _contradictions(before, one):
        yield damage(one.path, 56, Kind.ORDER, f"it does not continue {before.path.name}: {', '.join(wrong)}")


def missing_before(segments: int, messages: int) -> str:
    """The sentence for segments that are not there, in front of one that is."""
    return f"{counted(segments, 'segment')} gone before it, with {counted(messages, 'message')}"


def _contradictions(before: Examination, one: Examination) -> list[str]:
    """Fields of a header that do not follow from the end of the segment before it."""
    assert one.header is not None
    header, tail = one.header, before.tail
    first, goes_on = int(header["first_sequence"]), int(tail[SEQUENCE])
    # One number is left out behind a segment without messages; any later epoch may follow.
    continues = first in (goes_on, goes_on + 1) or (first > goes_on and first % EPOCH == 0)
    found = {
        "first_sequence": continues,
        "previous": int(header["previous"]) == int(tail[DIGEST]) & 0xFFFFFFFFFFFFFFFF,
        "stored": int(header["stored"]) == int(tail[STORED]),
        "burst": int(header["burst"]) >= int(tail[BURST]),
        "discarded": np.array_equal(header["discarded"].astype(np.int64), tail[DISCARDED:]),
    }
    return [name for name, agrees in found.items() if not agrees]
