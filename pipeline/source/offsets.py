"""How far a stream has read each spool: its offsets, which Spark keeps. On the driver, beside the spools.

    {SPOOL: {"segment": number, "position": offset in it, "sequence": ..., "stored": messages before it}}

A position is between two frames. So two positions alone define a batch, and it is the same batch after a
restart from the checkpoint. `stored` tells how much is missing when retention was faster than the stream. A
new spool is read from its beginning.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

from pipeline.errors import JobFailed
from pipeline.source.outcomes import tell_delivered
from pipeline.source.plan import Segment, SpoolPlan, plan_spools
from pipeline.source.pushdown import choose
from pipeline.source.segments import DamagedFile, Part
from spool.format.frame import POSITION, SEQUENCE, STORED
from spool.format.segment_format import HEADER_BYTES
from spool.words import counted

Offset = dict[str, dict[str, int]]


@dataclass(frozen=True, order=True, slots=True)
class LogPosition:
    """A position in a log, between two frames."""

    segment: int
    position: int
    sequence: int
    stored: int


class StreamOffsets:
    """How far the spools of a stream go. Its methods raise JobFailed, NoSpool, UnknownVersion."""

    def __init__(
        self,
        paths: Iterable[str],
        host: str | None,
        *,
        delivered: bool,
        fail_on_loss: bool,
        skip_read_errors: bool = False,
    ) -> None:
        """`skip_read_errors`: as in plan_spool."""
        self._paths, self._host, self._skip_read_errors = list(paths), host, skip_read_errors
        self._delivered, self._fail_on_loss = delivered, fail_on_loss
        self._target: dict[str, LogPosition] | None = None

    def stay(self) -> None:
        """Exclude all later messages from this stream."""
        self._target = {plan.spool: end_of(plan) for plan in self._plans({})}

    def latest(self, start: Offset, most: int | None) -> Offset:
        """How far to go from `start`; `most`: about this many bytes, shared by the spools."""
        known = _positions(start)
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
            # During a rebuild an index lags for a moment.
            found[plan.spool] = max(end, begin) if begin else end
        return {spool: asdict(found[spool]) for spool in sorted(found)}

    def demand(self, known: Offset, reached: Offset) -> None:
        """Check that the spools go as far as a stream has been: `reached` was found without knowing that.

        Raises JobFailed, unless `failOnDataLoss` is false.
        """
        positions = _positions(reached)
        for spool, position in _positions(known).items() if self._fail_on_loss else ():
            if spool not in positions or positions[spool] < position:
                raise JobFailed(
                    f"spool {spool} does not go as far as this stream has been: a directory is missing, or "
                    "its index is being rebuilt; start the query again when it is there"
                )

    def parts(self, start: Offset, end: Offset) -> list[Part | DamagedFile]:
        """The parts between two offsets."""
        known, until = _positions(start), _positions(end)
        parts: list[Part | DamagedFile] = []
        for plan in self._plans(known):
            begin = known.get(plan.spool)
            self._check(plan, begin)
            if plan.spool in until:
                piece = between(plan, begin, until[plan.spool])
                parts += choose(tell_delivered(piece) if self._delivered else piece)
        return parts

    def _plans(self, known: Mapping[str, LogPosition]) -> list[SpoolPlan]:
        since = {spool: position.sequence for spool, position in known.items()}
        known_now = plan_spools(self._paths, self._host, since, skip_read_errors=self._skip_read_errors)
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

    def _check(self, plan: SpoolPlan, begin: LogPosition | None) -> None:
        lost = int(plan.segments[0].header["stored"]) - begin.stored if begin else 0
        if lost > 0 and begin and self._fail_on_loss:
            were = "was" if lost == 1 else "were"
            raise JobFailed(
                f"{counted(lost, 'message')} from {begin.sequence} on {were} removed from "
                f"{plan.parts[0].location} before the stream came there: keep more (keep_delivered_bytes), "
                "or set failOnDataLoss = false to go on with what is left"
            )


def _positions(offset: Offset) -> dict[str, LogPosition]:
    return {spool: LogPosition(**position) for spool, position in offset.items()}


def end_of(plan: SpoolPlan) -> LogPosition:
    """The end of the readable messages of a spool."""
    tail = plan.tail
    return LogPosition(plan.parts[-1].number, int(tail[POSITION]), int(tail[SEQUENCE]), int(tail[STORED]))


def reach(plan: SpoolPlan, begin: LogPosition | None, most: int) -> LogPosition:
    """The position about `most` bytes after `begin`, further than it when there is anything."""
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


def _start(segment: Segment, begin: LogPosition | None) -> int:
    return begin.position if begin and begin.segment == segment.header["number"] else HEADER_BYTES


def _length(part: Part, segment: Segment) -> int:
    """The end offset of a segment; of one without a footer, a lower bound."""
    return part.end or max([HEADER_BYTES, *(offset for offset, _ in segment.marks)])


def _mark(segment: Segment, start: int, wanted: int) -> LogPosition | None:
    """The last frame to begin at up to `wanted`, else the first; after `start` in any case."""
    marks = [mark for mark in segment.marks if mark[0] > start]
    if not marks:
        return None
    offset, sequence = marks[max(0, bisect_right(marks, wanted, key=lambda mark: mark[0]) - 1)]
    header = segment.header
    return LogPosition(
        int(header["number"]),
        offset,
        sequence,
        int(header["stored"]) + sequence - int(header["first_sequence"]),
    )


def _behind(plan: SpoolPlan, at: int) -> LogPosition:
    """The position after a segment: the beginning of the next one."""
    if at + 1 == len(plan.segments):
        return end_of(plan)
    header = plan.segments[at + 1].header
    first, stored = int(header["first_sequence"]), int(header["stored"])
    return LogPosition(int(header["number"]), HEADER_BYTES, first, stored)


def between(plan: SpoolPlan, begin: LogPosition | None, end: LogPosition) -> SpoolPlan:
    """The same plan, with nothing before `begin` or from `end` on.

    A damaged file belongs to the batch that goes beyond it: then the segments after it are readable.
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


def _passes(sequence: int, begin: LogPosition | None, end: LogPosition) -> bool:
    """Whether a segment without positions is between two of them."""
    return (begin is None or begin.sequence <= sequence) and sequence < end.sequence
