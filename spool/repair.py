"""Repairing a spool: what would be done, and doing it.

A start puts in order what it can without a question (spool.recovery), and reads on over damage. A repair
does the same, by the same code, and then what a start leaves: damaged segments are written anew, with gaps
for what is lost (spool.mending), books that cannot be read are set aside, and the index is built. So what is
known to be lost is told from what was damaged since. Each step leaves the spool at least as good as it was,
and a repair that was killed is simply done again.

Nothing is thrown away: what is replaced goes to quarantine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from spool.books import Books
from spool.catalogue import Catalogue
from spool.check import Check
from spool.crash_point import reach
from spool.disk import make_directory, opened, read_at, read_text
from spool.environment import UNREADABLE
from spool.errors import BadSpool, NoSpool, SpoolBusy, UnknownVersion
from spool.examination import Examination
from spool.finding import Finding, Kind, Severity
from spool.format import Record, decode_header
from spool.frame import BURST, POSITION, SEQUENCE, STORED
from spool.gap import GAP_BYTES
from spool.headers import damaged_headers, header_by_frames, header_for
from spool.holes import Hole, State
from spool.identity import IDENTITY_BYTES, agreed_identity, read_identity
from spool.layout import Layout, parse_name
from spool.lock import Lock, is_held, read_holder
from spool.marks import Marks
from spool.mending import look_into, write_anew, write_copy
from spool.packed import open_plain
from spool.placement import list_misplaced
from spool.quarantine import set_aside
from spool.recovery import boot_id, known_end, put_in_order
from spool.reindex import build_index
from spool.scan import read_header
from spool.states import Found, Unread, can_be_copied, list_states
from spool.unadopted import read_unadopted


class Mode(StrEnum):
    """How far a repair may go."""

    STRICT = "strict"
    """Only what a crash leaves; not at all where there is anything else."""
    TRUNCATE_TAIL = "truncate-tail"
    """Also what costs no message, and damage that reaches to the end of a segment."""
    SKIP_DAMAGED = "skip-damaged"
    """Also damage with good messages behind it, which are kept, and books that cannot be read."""


_MODES = list(Mode)
_CONSEQUENCES = {Kind.MISSING, Kind.ORDER, Kind.FOREIGN, Kind.MARKS}
"""Findings about a file that may follow from another that does not lie where it should."""


class Action(StrEnum):
    """What is done. The values are part of `brucectl inspect repair --json`."""

    CUT = "cut"
    """What stands behind the last good frame goes, a copy of it to quarantine; by the next start, too."""
    RENAME = "rename"
    """The segment gets the name that its header says; by the next start, too."""
    HEADER = "header"
    """The header is written anew; by the next start, too."""
    EPOCH = "epoch"
    """The log goes on at a new epoch, behind what is lost; by the next start, too."""
    IDENTITY = "identity"
    """The identity is written anew; by the next start, too."""
    REWRITE = "rewrite"
    """The segment is written anew: good frames stay, gaps are put where others were, the footer is made."""
    INDEX = "index"
    """The index is built anew; by the next start, too."""
    SET_ASIDE = "set aside"
    """The file goes to quarantine."""
    NONE = "none"
    """Nothing can be done: whoever reads passes it over, and what is lost is counted as damaged."""


_ORDERING = {Action.RENAME, Action.HEADER, Action.SET_ASIDE, Action.IDENTITY}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is wrong, and what is done about it."""

    path: Path
    action: Action
    mode: Mode
    """The first mode that does it."""
    sentence: str
    kept: int | None = None
    """Messages of a segment that can be read; None where that is not the question."""
    lost: tuple[tuple[int, int], ...] = ()
    """(first sequence, messages) of what cannot be had back."""

    @property
    def messages_lost(self) -> int:
        """How many that are."""
        return sum(count for _, count in self.lost)


def plan(layout: Layout) -> list[Step]:
    """Everything that is to be done; nothing is written.

    Raises SpoolBusy beside a daemon, whose newest frames would seem torn, or lost; NoSpool, UnknownVersion,
    OSError.
    """
    if is_held(layout.lock):
        raise SpoolBusy(f"{layout.lock} is held by process {read_holder(layout.lock)}: it is already in use")
    return _plan(layout)


def _plan(layout: Layout) -> list[Step]:
    spool = agreed_identity(layout)
    if spool is None:
        raise NoSpool(f"{layout.directory} holds no spool; see [spool] directory")
    check = Check()
    findings = list(check.spool(layout))
    steps = [
        *_identity(layout, spool),
        *_placement(layout, spool),
        *_headers(layout),
        *_segments(layout, spool, check.examined),
        *_books(layout, spool),
    ]
    return steps + list(_others(findings, steps))


def refused(steps: list[Step], mode: Mode) -> list[Step]:
    """What this mode leaves undone."""
    return [one for one in steps if one.action != Action.NONE and _MODES.index(one.mode) > _MODES.index(mode)]


def apply(layout: Layout, mode: Mode) -> list[Step]:
    """Repair a spool that nobody has open; what was planned. A refused `STRICT` does nothing.

    Raises SpoolBusy beside a daemon or a job that delivers, and as plan does.
    """
    read_identity(layout)
    for path in (layout.delivery, layout.quarantine):
        make_directory(path)
    lock = Lock(layout.lock, "in use", note="repairing")
    try:
        owner = Lock(layout.owner, "delivering")
        try:
            steps = _plan(layout)
            if mode is not Mode.STRICT or not refused(steps, mode):
                _apply(layout, mode)
        finally:
            owner.release()
    finally:
        lock.release()
    return steps


def _apply(layout: Layout, mode: Mode) -> None:
    identity = put_in_order(layout, boot_id())
    if mode is not Mode.STRICT:
        _write_anew(layout, mode)
    reach("repair.ordered")
    if mode is Mode.SKIP_DAMAGED:
        for step in _books(layout, identity.spool):
            set_aside(layout, step.path, step.sentence)
            if step.path.parent == layout.delivery:
                (layout.delivery / "lock.mdb").unlink(missing_ok=True)
    build_index(layout, identity.spool, identity.boot)


def _write_anew(layout: Layout, mode: Mode) -> None:
    """Write the damaged segments anew, as far as this mode goes."""
    unread = list[Unread]()
    for path, header, behind, state in list_states(layout, unread):
        if _mode(state, behind) in _MODES[: _MODES.index(mode) + 1]:
            write_anew(layout, path, header, behind, inside=mode is Mode.SKIP_DAMAGED)
    for path, whose, behind in unread if mode is Mode.SKIP_DAMAGED else []:
        if whose is not None and can_be_copied(path):
            write_anew(layout, path, whose, behind, inside=True)


def plan_file(path: Path) -> list[Step]:
    """The same for a segment file by itself. Raises BadSpool when it is none, OSError."""
    header, steps = _header_of(path)
    fd = open_plain(path)
    try:
        return [*steps, *_segment(path, look_into(fd, header, None)[0], None)]
    finally:
        os.close(fd)


def copy_file(path: Path, to: Path, mode: Mode) -> None:
    """Write a mended and sealed copy of a segment file. Raises BadSpool, OSError."""
    write_copy(path, to, _header_of(path)[0], None, inside=mode is Mode.SKIP_DAMAGED)


def _header_of(path: Path) -> tuple[Record, list[Step]]:
    """The header of a file, or the one that it should have, and what is done then."""
    try:
        return read_header(path), []
    except UnknownVersion:
        raise
    except BadSpool:
        data = header_by_frames(path)
        if data is None:
            raise
        step = Step(path, Action.HEADER, Mode.TRUNCATE_TAIL, "its header is damaged")
        return decode_header(data, path), [step]


def _identity(layout: Layout, spool: bytes) -> Iterator[Step]:
    try:
        text = read_text(layout.identity, IDENTITY_BYTES)
    except FileNotFoundError:
        text = ""
    if text.partition("\n")[0].replace("-", "") != spool.hex():
        sentence = "it does not name the spool as its segments do"
        yield Step(layout.identity, Action.IDENTITY, Mode.TRUNCATE_TAIL, sentence)


def _placement(layout: Layout, spool: bytes) -> Iterator[Step]:
    for one in list_misplaced(layout, spool):
        action = Action.SET_ASIDE if one.to is None else Action.RENAME
        yield Step(one.path, action, Mode.TRUNCATE_TAIL, one.reason)


def _headers(layout: Layout) -> Iterator[Step]:
    for pair in damaged_headers(layout):
        path = layout.segment(*pair)
        if header_for(layout, pair) is None:
            sentence = "its header is damaged, and nothing is left that says what stood in it"
            yield Step(path, Action.SET_ASIDE, Mode.TRUNCATE_TAIL, sentence)
        else:
            yield Step(path, Action.HEADER, Mode.TRUNCATE_TAIL, "its header is damaged")


def _segments(layout: Layout, spool: bytes, examined: list[Examination]) -> Iterator[Step]:
    """Of each segment what is lost; what is missing between two; and behind the last."""
    unread = list[Unread]()
    found = list(list_states(layout, unread, spool, examined))
    for path, _, behind, state in found:
        yield from _segment(path, state, behind)
    for path, whose, _ in unread:
        yield _waits(path, whose)
    kept = [named[0] for path, *_ in unread if (named := parse_name(path.name))]
    for (earlier, before, _, state), (path, header, _, _) in pairwise(found):
        if any(before["first_sequence"] < first < header["first_sequence"] for first in kept):
            continue
        gap = int(header["number"]) - int(before["number"]) - 1
        lost = int(header["stored"]) - int(state.tail[STORED])
        missing = ((int(state.tail[SEQUENCE]), lost),)
        if gap > 0:
            sentence = f"{gap} segments before it are gone, and {lost} messages with them"
            yield Step(path, Action.NONE, Mode.STRICT, sentence, lost=missing)
        elif (
            lost > 0 and state.sealed and not any(hole.offset == state.tail[POSITION] for hole in state.holes)
        ):
            sentence = f"{lost} messages are gone from its end"
            yield Step(earlier, Action.NONE, Mode.STRICT, sentence, lost=missing)
    if not any(found and first > found[-1][1]["first_sequence"] for first in kept):
        yield from _end(layout, found)


def _waits(path: Path, header: Record | None) -> Step:
    """What is done about a segment for which the disk gives an error."""
    if header is not None and can_be_copied(path):
        sentence = "the disk gives an error for some of it, which is lost in a copy: wait, if it may heal"
        return Step(path, Action.REWRITE, Mode.SKIP_DAMAGED, sentence)
    sentence = "the disk gives an error for it; it is left alone, and the daemon tries it again"
    return Step(path, Action.NONE, Mode.STRICT, sentence)


def _mode(state: State, behind: Record | None) -> Mode | None:
    """The first mode that writes a segment anew; None when there is no need."""
    holes = [hole for hole in state.holes if _is_to_fill(hole)]
    if any(hole.offset < state.tail[POSITION] for hole in holes):
        return Mode.SKIP_DAMAGED
    return Mode.TRUNCATE_TAIL if holes or (behind is not None and not state.sealed) else None


def _is_to_fill(hole: Hole) -> bool:
    return not hole.known and hole.end - hole.offset >= GAP_BYTES


def _segment(path: Path, state: State, behind: Record | None) -> Iterator[Step]:
    mode = _mode(state, behind)
    lost = tuple((hole.first, hole.messages) for hole in state.holes if hole.messages)
    if mode is not None:
        size = sum(hole.end - hole.offset for hole in state.holes if _is_to_fill(hole))
        sentence = f"{size} bytes hold no good frame" if size else "it has no footer that is whole"
        yield Step(path, Action.REWRITE, mode, sentence, state.messages, lost)
    elif behind is None and not state.sealed and (torn := _torn(path, state)):
        sentence = f"it ends in {torn} bytes that are no whole frame"
        yield Step(path, Action.CUT, Mode.STRICT, sentence, state.messages)


def _torn(path: Path, state: State) -> int:
    """Bytes of what stands behind the last good frame."""
    with opened(path) as file:
        position = int(state.tail[POSITION])
        rest = read_at(file.fileno(), os.fstat(file.fileno()).st_size - position, position)
    return len(rest.rstrip(b"\0"))


def _end(layout: Layout, found: list[Found]) -> Iterator[Step]:
    """What the index calls committed, and the log does not have."""
    known = known_end(layout)
    if not known or not found:
        return
    path, _, _, state = found[-1]
    lost = int(known[1][STORED]) - int(state.tail[STORED])
    if known[1][BURST] > state.tail[BURST]:
        sentence = f"{lost} messages that were committed are gone from the end of the log"
        yield Step(
            path, Action.EPOCH, Mode.TRUNCATE_TAIL, sentence, lost=((int(state.tail[SEQUENCE]), lost),)
        )


def _books(layout: Layout, spool: bytes) -> Iterator[Step]:
    """Marks, outcome files and ledger that cannot be read."""
    if _are_damaged(layout):
        sentence = "the marks cannot be read: what only they call delivered is sent again"
        yield Step(layout.delivery / "data.mdb", Action.SET_ASIDE, Mode.SKIP_DAMAGED, sentence)
    for path, error in read_unadopted(layout, spool).refused.items():
        sentence = f"it {str(error).removeprefix(f'{path} ')}"
        yield Step(path, Action.SET_ASIDE, Mode.SKIP_DAMAGED, sentence)
    for finding in Books(layout, spool).unreadable():
        if finding.kind is Kind.LEDGER:
            yield Step(finding.path, Action.SET_ASIDE, Mode.SKIP_DAMAGED, finding.sentence)


def _others(findings: list[Finding], steps: list[Step]) -> Iterator[Step]:
    """What else a check calls damage: the index, which is derived, and what nothing is done about."""
    known = {one.path for one in steps}
    ordered = not any(one.action in _ORDERING for one in steps)
    for finding in findings:
        if finding.severity is Severity.NOTE or finding.path in known:
            continue
        if finding.kind in _CONSEQUENCES and not ordered:
            continue
        action = Action.INDEX if finding.kind is Kind.INDEX else Action.NONE
        yield Step(finding.path, action, Mode.STRICT, finding.sentence)


def _are_damaged(layout: Layout) -> bool:
    """Whether there are marks that cannot be read."""
    if not (layout.delivery / "data.mdb").exists():
        return False
    try:
        Marks(layout.delivery, Catalogue(layout), readonly=True).close()
    except UNREADABLE:
        return True
    return False
