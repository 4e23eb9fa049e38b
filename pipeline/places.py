"""Places in the logs of spools, which the offsets of a stream are made of; beside the spools, on the driver.

    {SPOOL: {"segment": number, "position": offset in it, "sequence": ..., "stored": messages before it}}

Places lie between frames, so a batch is told by two of them alone and is the same after a restart from the
checkpoint. `stored` tells what is missing when retention was faster than the stream. A spool that was not
there before is read from its beginning.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

from pipeline.errors import JobFailed
from pipeline.fleet import plan_spools
from pipeline.outcomes import tell_delivered
from pipeline.plan import Segment, SpoolPlan
from pipeline.ranges import choose
from pipeline.segments import DamagedFile, Part
from spool.format import HEADER_BYTES
from spool.frame import POSITION, SEQUENCE, STORED

Offset = dict[str, dict[str, int]]


@dataclass(frozen=True, order=True, slots=True)
class Place:
    """A place in a log, between two frames."""

    segment: int
    position: int
    sequence: int
    stored: int


class Places:
    """How far the spools of a stream go. Its methods raise JobFailed, NoSpool, UnknownVersion."""

    def __init__(
        self,
        paths: Iterable[str],
        host: str | None,
        *,
        delivered: bool,
        fail_on_loss: bool,
        passing: bool = False,
    ) -> None:
        """`passing` as plan_spool has it."""
        self._paths, self._host, self._passing = list(paths), host, passing
        self._delivered, self._fail_on_loss = delivered, fail_on_loss
        self._target: dict[str, Place] | None = None

    def stay(self) -> None:
        """Let nothing that comes from now on be part of this stream."""
        self._target = {plan.spool: end_of(plan) for plan in self._plans({})}

    def latest(self, start: Offset, most: int | None) -> Offset:
        """How far to go from `start`; `most`: some so many bytes, shared by the spools."""
        known = _places(start)
        plans = self._plans(known)
        found = dict(known)
        for plan in plans:
            begin = known.get(plan.spool)
            self._check(plan, begin)
            end = end_of(plan) if most is None else reach(plan, begin, most // len(plans))
            if self._target is not None:
                if begin is None and plan.spool not in self._target:
                    continue
                end = min(end, self._target.get(plan.spool, end))
            # An index that was begun anew is behind for a moment.
            found[plan.spool] = max(end, begin) if begin else end
        return {spool: asdict(found[spool]) for spool in sorted(found)}

    def demand(self, known: Offset, reached: Offset) -> None:
        """See that the spools go as far as a stream has been: `reached` was found without knowing that.

        Raises JobFailed, unless what is lost shall be passed over.
        """
        places = _places(reached)
        for spool, place in _places(known).items() if self._fail_on_loss else ():
            if spool not in places or places[spool] < place:
                raise JobFailed(
                    f"spool {spool} does not go as far as this stream has been: a directory is missing, or "
                    "its index is being made anew; start the query again when it is there"
                )

    def parts(self, start: Offset, end: Offset) -> list[Part | DamagedFile]:
        """What lies between two offsets."""
        known, until = _places(start), _places(end)
        parts: list[Part | DamagedFile] = []
        for plan in self._plans(known):
            begin = known.get(plan.spool)
            self._check(plan, begin)
            if plan.spool in until:
                piece = between(plan, begin, until[plan.spool])
                parts += choose(tell_delivered(piece) if self._delivered else piece)
        return parts

    def _plans(self, known: Mapping[str, Place]) -> list[SpoolPlan]:
        since = {spool: place.sequence for spool, place in known.items()}
        known_now = plan_spools(self._paths, self._host, since, passing=self._passing)
        plans = [plan for plan in known_now if plan.parts]
        found = {plan.spool: plan for plan in plans}
        if len(found) < len(plans):
            raise JobFailed("two of the directories hold one spool, the one as a copy: name only one of them")
        for spool in sorted(known.keys() - found.keys()) if self._fail_on_loss else ():
            raise JobFailed(
                f"spool {spool} is at none of the paths any more; "
                "failOnDataLoss = false goes on with the others"
            )
        return list(found.values())

    def _check(self, plan: SpoolPlan, begin: Place | None) -> None:
        lost = int(plan.segments[0].header["stored"]) - begin.stored if begin else 0
        if lost > 0 and begin and self._fail_on_loss:
            raise JobFailed(
                f"{lost} messages from {begin.sequence} on were removed from {plan.parts[0].place} before "
                "the stream came to them: keep more (keep_delivered_bytes), or set failOnDataLoss = false "
                "to go on with what is left"
            )


def _places(offset: Offset) -> dict[str, Place]:
    return {spool: Place(**place) for spool, place in offset.items()}


def end_of(plan: SpoolPlan) -> Place:
    """Where what can be read of a spool ends."""
    tail = plan.tail
    return Place(plan.parts[-1].number, int(tail[POSITION]), int(tail[SEQUENCE]), int(tail[STORED]))


def reach(plan: SpoolPlan, begin: Place | None, most: int) -> Place:
    """The place some `most` bytes behind `begin`, further than it when there is anything."""
    end, left = end_of(plan), most
    for at, segment in enumerate(plan.segments):
        if begin and segment.header["number"] < begin.segment:
            continue
        start = _start(segment, begin)
        stop = end.position if at + 1 == len(plan.segments) else _length(plan.parts[at], segment)
        if stop - start > left:
            return min(end, _mark(segment, start, start + left) or _behind(plan, at))
        left -= max(0, stop - start)
    return end


def _start(segment: Segment, begin: Place | None) -> int:
    return begin.position if begin and begin.segment == segment.header["number"] else HEADER_BYTES


def _length(part: Part, segment: Segment) -> int:
    """Where a segment ends; of one without a footer, at least."""
    return part.end or max([HEADER_BYTES, *(offset for offset, _ in segment.marks)])


def _mark(segment: Segment, start: int, wanted: int) -> Place | None:
    """The last frame to begin at up to `wanted`, else the first; behind `start` in any case."""
    marks = [mark for mark in segment.marks if mark[0] > start]
    if not marks:
        return None
    offset, sequence = marks[max(0, bisect_right(marks, wanted, key=lambda mark: mark[0]) - 1)]
    header = segment.header
    return Place(
        int(header["number"]),
        offset,
        sequence,
        int(header["stored"]) + sequence - int(header["first_sequence"]),
    )


def _behind(plan: SpoolPlan, at: int) -> Place:
    """Behind a segment: where the next one begins."""
    if at + 1 == len(plan.segments):
        return end_of(plan)
    header = plan.segments[at + 1].header
    first, stored = int(header["first_sequence"]), int(header["stored"])
    return Place(int(header["number"]), HEADER_BYTES, first, stored)


def between(plan: SpoolPlan, begin: Place | None, end: Place) -> SpoolPlan:
    """The same plan, with nothing before `begin` or from `end` on.

    A damaged file belongs to where the log passes it: what lies behind it is readable then.
    """
    kept = []
    for part, segment, run in zip(plan.parts, plan.segments, plan.runs, strict=True):
        start = part.start
        if begin and part.number <= begin.segment:
            if part.number < begin.segment or (part.end is not None and part.end <= begin.position):
                continue
            start = (begin.position, begin.sequence) if begin.position > HEADER_BYTES else None
        if part.number > end.segment or (part.number == end.segment and end.position <= HEADER_BYTES):
            break
        stop = end.position if part.number == end.segment else part.end
        if start is None or stop is None or start[0] < stop:
            kept.append((replace(part, start=start, end=stop), segment, run))
    return replace(
        plan,
        parts=[part for part, _, _ in kept],
        segments=[segment for _, segment, _ in kept],
        runs=[run for _, _, run in kept],
        damaged=[one for one in plan.damaged if _passes(one.file.first_sequence, begin, end)],
    )


def _passes(sequence: int, begin: Place | None, end: Place) -> bool:
    """Whether a segment in which there are no places lies between two of them."""
    return (begin is None or begin.sequence <= sequence) and sequence < end.sequence
