"""Repairing a spool: planning the steps, and applying them.

Each start puts in order what it can without asking (spool.log.recovery), and readers skip damage. A repair
does the same, by the same code. Then it repairs the damage that a start leaves: it rewrites damaged segments
with holes for lost messages, sets unreadable metadata aside, and builds the index. From then on, a known loss
can be told from new damage. Each step leaves the spool at least as good as it was, and
a repair that was killed is simply run again.

Nothing is thrown away: replaced files go to quarantine. In a rewritten segment good frames keep their offsets
and numbers, and a whole footer stays; so marks, offsets and the adjacent segments remain valid. Packed
segments are written unpacked. A footer that is damaged, or another segment's, is rebuilt from the frames, and
from the counts of lost messages in the next segment's header.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from spool.errors import BadSpool, NoSpool, ReadFailed, SpoolBusy, UnknownVersion
from spool.format.contents import Contents
from spool.format.damage import HOLE_MARK_BYTES, Ranges, encode_hole, ranges
from spool.format.frame import BURST, FRAME_COUNT, POSITION, SEQUENCE, STORED, tail_at_start
from spool.format.packed import is_packed, open_plain
from spool.format.scan import Scan, read_header
from spool.format.segment import bound_spares, following, seal
from spool.format.segment_format import Record, decode_header, keys_of
from spool.fsck.check import NONE_RESOLVED, Check, Resolved, look_up, missing_before
from spool.fsck.examination import Examination, Hole, State, conclude, hole_at, holes_of
from spool.fsck.finding import Finding, Kind, Severity
from spool.fsck.metadata_check import MetadataCheck
from spool.index.environment import UNREADABLE
from spool.index.headers import damaged_headers, header_by_frames, header_for
from spool.index.identity import IDENTITY_BYTES, agreed_identity, read_identity
from spool.index.index import Index
from spool.index.log_end import read_footer
from spool.index.segment_list import SegmentList
from spool.index.soundness import has_begun
from spool.layout import Layout, parse_name
from spool.log.committer import Committer, copy_readable
from spool.log.recovery import boot_id, known_end, list_misplaced, lost_end, put_in_order
from spool.marks.marks import Marks
from spool.marks.outcomes import read_pending_outcomes
from spool.shared.state import SharedState
from spool.storage.disk import (
    free_place,
    is_regular,
    make_anew,
    make_directory,
    opened,
    read_at,
    read_text,
    set_aside,
    sync_directory,
    write_at,
)
from spool.storage.failpoint import reach
from spool.storage.lock import Lock, is_held, read_holder
from spool.words import counted


def look_into(fd: int, header: Record, behind: Record | None) -> tuple[State, Contents]:
    """Read a plain segment with this header; `behind`: the header of the next segment, if it exists.

    Raises OSError.
    """
    footer = read_footer(fd, header)
    tail, contents, holes, messages = tail_at_start(header), Contents(os.fstat(fd).st_size), list[Hole](), 0
    scan = Scan(fd, tail, int(footer.fields["end"]) if footer else None)
    while True:
        while chunk := scan.over():
            holes += holes_of(chunk.holes)
            contents.add(chunk)
            messages += int(chunk.frames[:, FRAME_COUNT].sum())
        position, first = int(tail[POSITION]), int(tail[SEQUENCE])
        if position >= scan.limit or (missing := scan.skip()) is None:
            break
        holes.append(hole_at(scan, position, int(tail[POSITION]), first, missing))
    if footer and position < scan.limit:
        lost = int(header["stored"]) + int(footer.fields["count"]) - int(tail[STORED])
        holes.append(hole_at(scan, position, scan.limit, first, lost))
    found = State(header, tuple(holes), tail, footer is not None, messages)
    return conclude(found, behind, int(footer.fields["digest"]) if footer else None), contents


def write_copy(path: Path, target: Path, header: Record, behind: Record | None, *, inside: bool) -> None:
    """Write a sealed copy of a segment to `target`, with holes for its holes, durable; see look_into.

    `inside`: also for holes that have good frames behind them. Raises OSError.
    """
    fd = make_anew(target)
    try:
        source = open_plain(path, keys_of(header))
        try:
            copy_readable(source, fd)
        finally:
            os.close(source)
        write_at(fd, header.tobytes(), 0)
        state, contents = look_into(fd, header, behind)
        for hole in state.holes:
            if (inside or hole.offset == state.tail[POSITION]) and hole.end - hole.offset >= HOLE_MARK_BYTES:
                write_at(
                    fd, encode_hole(hole.end - hole.offset, hole.messages, keys_of(header).key), hole.offset
                )
        if not state.sealed:
            _write_footer(fd, state, contents, behind)
        os.fsync(fd)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def _write_footer(fd: int, state: State, contents: Contents, behind: Record | None) -> None:
    """Seal the copy behind its last good frame, and behind a hole there."""
    tail = state.tail.copy()
    if behind is not None and state.holes and state.holes[-1].offset == tail[POSITION]:
        tail = tail_at_start(behind)
        tail[POSITION] = state.holes[-1].end
    goes_on = following(state.header, tail) if behind is None else int(behind["first_sequence"])
    footer = contents.footer(state.header, tail, goes_on)
    write_at(fd, footer, int(tail[POSITION]))
    os.ftruncate(fd, int(tail[POSITION]) + len(footer))


def write_anew(layout: Layout, path: Path, header: Record, behind: Record | None, *, inside: bool) -> None:
    """Put a copy (see write_copy) in the place of a segment, which goes to quarantine. Raises OSError."""
    fresh = path.with_suffix(path.suffix + ".tmp")
    write_copy(path, fresh, header, behind, inside=inside)
    reach("repair.synced")
    os.link(path, free_place(layout, f"{path.name}.damaged"))
    sync_directory(layout.quarantine)
    reach("repair.kept")
    os.rename(fresh, path)
    reach("repair.named")
    sync_directory(layout.segments)


class Mode(StrEnum):
    """How far a repair may go."""

    STRICT = "strict"
    """Only what a crash leaves; does nothing when there is any other damage."""
    TRUNCATE_TAIL = "truncate-tail"
    """Also repairs that cost no message, and damage that reaches to the end of a segment."""
    SKIP_DAMAGED = "skip-damaged"
    """Also damage with good messages behind it, which are kept, and metadata that cannot be read."""


_MODES = list(Mode)
_CONSEQUENCES = {Kind.MISSING, Kind.ORDER, Kind.FOREIGN, Kind.MARKS}
"""Findings about a file that may be caused by another file that is not in its place."""


class Action(StrEnum):
    """The action of a step. The values are part of `brucectl inspect repair --json`."""

    CUT = "cut"
    """Cut off the bytes behind the last good frame, copied to quarantine; the next start does it, too."""
    RENAME = "rename"
    """Give the segment the name that its header says; the next start does it, too."""
    HEADER = "header"
    """Rewrite the header; the next start does it, too."""
    EPOCH = "epoch"
    """Let the log go on at a new epoch, behind the lost messages; the next start does it, too."""
    IDENTITY = "identity"
    """Rewrite the identity; the next start does it, too."""
    SEAL = "seal"
    """Write the footer that a full segment lacks; the next start does it, too."""
    REWRITE = "rewrite"
    """Rewrite the segment: good frames stay, holes replace the others, the footer is made."""
    INDEX = "index"
    """Rebuild the index; the next start does it, too."""
    SET_ASIDE = "set aside"
    """Move the file to quarantine."""
    NONE = "none"
    """Nothing can be done: readers skip it, and lost messages are counted as damaged."""


_ORDERING = {Action.RENAME, Action.HEADER, Action.SET_ASIDE, Action.IDENTITY}


@dataclass(frozen=True, slots=True)
class Step:
    """One problem, and the action against it."""

    path: Path
    action: Action
    mode: Mode
    """The first mode that does it."""
    sentence: str
    kept: int | None = None
    """Readable messages of a segment; None when the step is about something else."""
    lost: Ranges = field(default_factory=ranges, compare=False)
    """The messages that cannot be recovered."""
    resolved: Resolved = NONE_RESOLVED
    """How many of them had been delivered or discarded before."""

    @property
    def messages_gone(self) -> int:
        """How many messages cannot be recovered."""
        return sum(self.lost[:, 1].tolist())

    @property
    def messages_lost(self) -> int:
        """How many of them are lost: neither delivered nor discarded before, as far as is known."""
        return self.messages_gone - self.resolved.delivered - self.resolved.discarded


def plan(layout: Layout) -> list[Step]:
    """Plan all steps. Writes nothing.

    Raises SpoolBusy beside a daemon, whose newest frames would seem torn, or lost; NoSpool, UnknownVersion,
    OSError.
    """
    held = is_held(layout.lock)
    if held is None:
        raise SpoolBusy(
            f"{layout.lock} may not be opened, and so it is not known whether a daemon is running"
        )
    if held:
        holder = read_holder(layout.lock) or "unknown"
        raise SpoolBusy(f"{layout.lock} is held by process {holder}: it is already in use")
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
        *_metadata(layout, spool),
    ]
    steps += _others(findings, steps)
    resolved = look_up(layout, [step.lost for step in steps])
    return [replace(step, resolved=one) for step, one in zip(steps, resolved, strict=True)]


def refused(steps: list[Step], mode: Mode) -> list[Step]:
    """The steps that this mode does not do."""
    return [one for one in steps if one.action != Action.NONE and _MODES.index(one.mode) > _MODES.index(mode)]


def strongest(steps: list[Step]) -> Step:
    """The first of these steps that asks for a mode that does all of them."""
    return max(steps, key=lambda one: _MODES.index(one.mode))


def apply(layout: Layout, mode: Mode) -> list[Step]:
    """Repair a spool that no process has open; the steps as planned. A refused `STRICT` does nothing.

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
                _apply(layout, mode, seals=any(one.action is Action.SEAL for one in steps))
        finally:
            owner.release()
    finally:
        lock.release()
    return steps


def _apply(layout: Layout, mode: Mode, *, seals: bool) -> None:
    identity = put_in_order(layout, boot_id())
    if seals or mode is not Mode.STRICT:
        _write_anew(layout, mode)
    reach("repair.ordered")
    if mode is Mode.SKIP_DAMAGED:
        for step in _metadata(layout, identity.spool):
            set_aside(layout, step.path, step.sentence)
            if step.path.parent == layout.delivery:
                (layout.delivery / "lock.mdb").unlink(missing_ok=True)
    build_index(layout, identity.spool, identity.boot)


def _write_anew(layout: Layout, mode: Mode) -> None:
    """Rewrite the damaged segments that this mode allows, and seal those that only lack their footer."""
    unread = list[Unread]()
    for path, header, behind, state in list_states(layout, unread):
        wanted = _mode(path, state, behind)
        if wanted is Mode.STRICT and behind is not None:
            seal(path, next_sequence=int(behind["first_sequence"]))
        elif wanted in _MODES[: _MODES.index(mode) + 1]:
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
    """Write a repaired and sealed copy of a segment file. Raises BadSpool, OSError."""
    write_copy(path, to, _header_of(path)[0], None, inside=mode is Mode.SKIP_DAMAGED)


def _header_of(path: Path) -> tuple[Record, list[Step]]:
    """The header of a file, and no step; or a header made from its frames, and the step for it."""
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
    """Steps for losses in each segment, between two segments, and behind the last."""
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
        missing = ranges((int(state.tail[SEQUENCE]), lost))
        if gap > 0:
            sentence = missing_before(gap, lost)
            yield Step(path, Action.NONE, Mode.STRICT, sentence, lost=missing)
        elif (
            lost > 0 and state.sealed and not any(hole.offset == state.tail[POSITION] for hole in state.holes)
        ):
            sentence = f"{counted(lost, 'message')} gone from its end"
            yield Step(earlier, Action.NONE, Mode.STRICT, sentence, lost=missing)
    if not any(found and first > found[-1][1]["first_sequence"] for first in kept):
        yield from _end(layout, found)


def _waits(path: Path, header: Record | None) -> Step:
    """The step for a segment that the disk gives an error for."""
    if header is not None and can_be_copied(path):
        sentence = "the disk gives an error for some of it, which is lost in a copy: wait, if it may heal"
        return Step(path, Action.REWRITE, Mode.SKIP_DAMAGED, sentence)
    sentence = "the disk gives an error for it; it is left alone, and the daemon tries it again"
    return Step(path, Action.NONE, Mode.STRICT, sentence)


def _mode(path: Path, state: State, behind: Record | None) -> Mode | None:
    """The first mode that rewrites a segment; None when there is no need."""
    holes = [hole for hole in state.holes if _is_to_fill(hole)]
    if any(hole.offset < state.tail[POSITION] for hole in holes):
        return Mode.SKIP_DAMAGED
    if holes:
        return Mode.TRUNCATE_TAIL
    if behind is None or state.sealed:
        return None
    # As a kill leaves it that comes before its footer was written. One that was packed had one.
    is_whole = behind["stored"] == state.tail[STORED] and not _was_sealed(path) and not _torn(path, state)
    return Mode.STRICT if is_whole else Mode.TRUNCATE_TAIL


def _was_sealed(path: Path) -> bool:
    with opened(path) as file:
        return is_packed(file.fileno(), path)


def _is_to_fill(hole: Hole) -> bool:
    return not hole.known and hole.end - hole.offset >= HOLE_MARK_BYTES


def _segment(path: Path, state: State, behind: Record | None) -> Iterator[Step]:
    mode = _mode(path, state, behind)
    lost = ranges(*((hole.first, hole.messages) for hole in state.holes))
    if mode is not None:
        size = sum(hole.end - hole.offset for hole in state.holes if _is_to_fill(hole))
        sentence = f"{size} bytes hold no good frame" if size else "it has no footer that is whole"
        action = Action.SEAL if mode is Mode.STRICT else Action.REWRITE
        yield Step(path, action, mode, sentence, state.messages, lost)
    elif behind is None and not state.sealed and (torn := _torn(path, state)):
        sentence = f"it ends in {torn} bytes that are no whole frame"
        yield Step(path, Action.CUT, Mode.STRICT, sentence, state.messages)


def _torn(path: Path, state: State) -> int:
    """How many bytes, without zeros at the end, are behind the last good frame."""
    with opened(path) as file:
        position = int(state.tail[POSITION])
        rest = read_at(file.fileno(), os.fstat(file.fileno()).st_size - position, position)
    return len(rest.rstrip(b"\0"))


def _end(layout: Layout, found: list[Found]) -> Iterator[Step]:
    """The step for messages that the index calls committed, and the log does not have."""
    known = known_end(layout)
    if not known or not found:
        return
    path, _, _, state = found[-1]
    lost = int(known[1][STORED]) - int(state.tail[STORED])
    if known[1][BURST] > state.tail[BURST]:
        sentence = f"gone from the end of the log, though committed: {counted(lost, 'message')}"
        missing = ranges((int(state.tail[SEQUENCE]), lost))
        yield Step(path, Action.EPOCH, Mode.TRUNCATE_TAIL, sentence, lost=missing)


def _metadata(layout: Layout, spool: bytes) -> Iterator[Step]:
    """Steps for marks, outcome files and a ledger that cannot be read."""
    if _are_damaged(layout):
        sentence = "the marks cannot be read: what only they call delivered is sent again"
        yield Step(layout.delivery / "data.mdb", Action.SET_ASIDE, Mode.SKIP_DAMAGED, sentence)
    for path, error in read_pending_outcomes(layout, spool).refused.items():
        sentence = f"it {str(error).removeprefix(f'{path} ')}"
        yield Step(path, Action.SET_ASIDE, Mode.SKIP_DAMAGED, sentence)
    for finding in MetadataCheck(layout, spool).unreadable():
        if finding.kind is Kind.LEDGER:
            yield Step(finding.path, Action.SET_ASIDE, Mode.SKIP_DAMAGED, finding.sentence)


def _others(findings: list[Finding], steps: list[Step]) -> Iterator[Step]:
    """Steps for other damage that a check found: the index, which is derived, and damage without a remedy."""
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
    if not has_begun(layout.delivery):
        return False
    try:
        Marks(layout.delivery, SegmentList(layout), readonly=True).close()
    except UNREADABLE:
        return True
    return False


def reindex(layout: Layout) -> tuple[int, int]:
    """Build the index of a spool that no process has open; the old one goes to quarantine.

    (segment number, sequence) of the committed end. Raises SpoolBusy, NoSpool, BadSpool, OSError.
    """
    spool = read_identity(layout)
    make_directory(layout.quarantine)
    lock = Lock(layout.lock, "in use", note="repairing")
    try:
        if damaged := damaged_headers(layout):
            path = layout.segment(*damaged[0])
            raise BadSpool(f"{path} has a damaged segment header; see `brucectl inspect repair`")
        if (known := known_end(layout)) and lost_end(layout, spool, known[1]):
            # Without this index, new messages would get the numbers of lost ones, which the marks call
            # delivered.
            raise BadSpool(
                f"messages that were committed are gone from the end of {layout.segments}, and only the "
                "index says so; see `brucectl inspect repair`"
            )
        return build_index(layout, spool, boot_id())
    finally:
        lock.release()


def build_index(layout: Layout, spool: bytes, boot: bytes) -> tuple[int, int]:
    """The same for a caller that has the lock, with the spool's uuid and the boot id, 16 bytes each."""
    if layout.index.exists():
        os.rename(layout.index, free_place(layout, "index"))
        sync_directory(layout.directory)
    index = Index(layout.index, spool, boot)
    try:
        with tempfile.TemporaryDirectory() as name:
            committer = Committer(layout, index, SharedState(Path(name) / "page"))
            committer.commit_all()
            return committer.number, int(committer.tail[SEQUENCE])
    finally:
        index.close()


Found = tuple[Path, Record, Record | None, State]
"""A segment, its header, the header of the next segment, and its state."""
Unread = tuple[Path, Record | None, Record | None]
"""A segment that the disk cannot read whole; its header, if readable, and that of the next segment."""


def can_be_copied(path: Path) -> bool:
    """Whether the readable part of a segment can be copied: not that of a packed one."""
    try:
        os.close(open_plain(path))
    except ReadFailed:
        return False
    return True


def list_states(
    layout: Layout,
    unread: list[Unread],
    spool: bytes | None = None,
    examined: Iterable[Examination] = (),
) -> Iterator[Found]:
    """The segments that belong here, by number. `spool`: also those whose header still has to be rewritten.

    `examined`: these are not read again. Segments that the disk gives an error for go to `unread`.
    """
    read = {one.path: one for one in examined if one.header is not None and not one.unread}
    headers = list(_good_headers(layout, unread, spool))
    following = {int(header["number"]): header for _, header in headers}
    for path, header in headers:
        behind = following.get(int(header["number"]) + 1)
        if path in read:
            yield path, header, behind, read[path].state(behind)
            continue
        try:
            state = _look_into(path, header, behind)
        except ReadFailed:
            unread.append((path, header, behind))
        else:
            yield path, header, behind, state


def _look_into(path: Path, header: Record, behind: Record | None) -> State:
    fd = open_plain(path, keys_of(header))
    try:
        return look_into(fd, header, behind)[0]
    finally:
        os.close(fd)


def _good_headers(layout: Layout, unread: list[Unread], spool: bytes | None) -> list[tuple[Path, Record]]:
    found = list(bound_spares(layout))
    aside = {one.path for one in list_misplaced(layout, spool) if one.to is None} if spool else set()
    for pair in layout.list_segments():
        path = layout.segment(*pair)
        if path in aside or not is_regular(path) or not path.stat().st_size:
            continue
        try:
            found.append((path, read_header(path)))
        except ReadFailed:
            unread.append((path, None, None))
        except BadSpool:
            if spool and (data := header_for(layout, pair)):
                found.append((path, decode_header(data, path)))
    kept = [(path, header) for path, header in found if path not in aside]
    return sorted(kept, key=lambda one: int(one[1]["number"]))
