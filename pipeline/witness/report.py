"""The report of `brucectl audit --witness`: what a witness has found, and between which tiers.

    {"version": 1,
     "sound": bool,                      nothing is missing or altered
     "looked": TIME or null,             when the witness last looked
     "is_current": bool,                 it is at work, or was until a moment ago
     "unwatched": [uuid, ...],           spools that it does not watch
     "unread": [text, ...],              books of sums that cannot be read: what has left is not judged
     "tiers": [{"tier": name,
                "records": n,            records read so far that name a message
                "skipped": n,            offsets that Kafka dropped before they were read
                "spools": [{"spool": uuid, "host": name,
                            "judged": n, "missing": n, "late": n, "duplicated": n,
                            "missing_runs": [[first, last], ...],     sequences, the first 1,000 runs of each
                            "duplicated_runs": [[first, last], ...],
                            "altered_blocks": [[first, last], ...],   the sequences of each such block
                            "uncompared_blocks": [[first, last], ...],
                            "altered": [sequence, ...],               by message, and the blocks of which
                            "unread_blocks": [[first, last], ...]}]}],   that is not known
     "between": [{"spool": uuid, "from": name, "to": name, "missing": n, "runs": [[first, last], ...]}]}

`between` tells where a message went missing: it is there in the tier `from` ("spool": it was delivered), and
not in the tier `to`, which comes behind it. A message that a later tier has again counts where it lacks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pyroaring import BitMap64

from pipeline.witness.document import STALE_S, read_look
from pipeline.witness.expected import Spools, SpoolSide
from pipeline.witness.judge import Verdict, judge_tier, ranges
from pipeline.witness.kafka_tier import PREFIX, SERVERS, Place
from pipeline.witness.reread import Altered, altered_of
from pipeline.witness.state import WitnessState
from spool.format.block_sums import Blocks
from spool.format.segment_format import BLOCK
from spool.words import counted, utc

VERSION = 1
COUNTS = ("judged", "missing", "late", "duplicated", "altered", "uncompared")
"""Of a spool in a tier; the last two are of blocks."""
SHOWN_RUNS = 5
SPOOL = "spool"
"""The place before the first tier."""
MOST_RUNS = 1000
Run = tuple[int, int]


class Row(NamedTuple):
    """One spool in one tier."""

    tier: str
    side: SpoolSide
    verdict: Verdict
    again: Altered | None = None
    """The altered messages; None: the altered blocks were not read again."""


class Gap(NamedTuple):
    """Messages of a spool that one place has, and the next one has not."""

    spool: str
    before: str
    behind: str
    missing: BitMap64


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a witness."""

    tiers: Sequence[tuple[str, int, int]]
    """(name, records, skipped) of each, in order."""
    rows: Sequence[Row]
    gaps: Sequence[Gap] = field(default=())
    unwatched: Sequence[str] = field(default=())
    """The uuids of spools that the witness does not watch, or no more."""
    unread: Sequence[str] = field(default=())
    """Sentences for books of sums that cannot be read."""
    looked_s: float | None = None
    """When it last looked, in seconds since the epoch; None: nothing tells."""

    @property
    def looked(self) -> str | None:
        """When it last looked, as others print times."""
        return None if self.looked_s is None else utc(int(self.looked_s * 1e9))

    @property
    def is_current(self) -> bool:
        """The witness is at work, or was until a moment ago."""
        return self.looked_s is not None and abs(time.time() - self.looked_s) < STALE_S

    @property
    def tells_all(self) -> bool:
        """Nothing that was asked for is left out: of no spool, and of no time."""
        return bool(self.rows) and not self.unwatched and not self.unread and self.is_current

    @property
    def sound(self) -> bool:
        """Nothing is missing, and nothing altered."""
        return not any(row.verdict.missing or len(row.verdict.altered) for row in self.rows)

    def with_altered(self, found: Iterable[Altered | None]) -> Report:
        """The report with the altered messages of each row, in order."""
        rows = [row._replace(again=one) for row, one in zip(self.rows, found, strict=True)]
        return replace(self, rows=rows)

    def cells(self) -> list[tuple[object, ...]]:
        """A row for people: tier, spool, host, COUNTS."""
        return [
            (
                row.tier,
                row.side.spool,
                row.side.host,
                row.verdict.judged,
                len(row.verdict.missing),
                row.verdict.late,
                len(row.verdict.duplicated),
                len(row.verdict.altered),
                len(row.verdict.uncompared),
            )
            for row in self.rows
        ]

    def lines(self) -> Iterator[str]:
        """Sentences for people: where messages went missing, which are altered, and the outcome."""
        for name, _, skipped in self.tiers:
            if skipped:
                yield (
                    f"{name}: Kafka dropped {counted(skipped, 'offset')} before the witness had read them; "
                    "messages may be missing for that"
                )
        for gap in self.gaps:
            lost = counted(len(gap.missing), "message")
            yield f"{gap.spool}: {lost} missing between {gap.before} and {gap.behind}: {shown(gap.missing)}"
        for row in self.rows:
            yield from _lines(row)
        yield from self._left_out()
        yield self.sentence()

    def sentence(self) -> str:
        """The outcome, for people."""
        if not self.rows:
            return "the witness has not seen these spools yet"
        judged, late, missing = (
            sum(numbers)
            for numbers in zip(
                *((row.verdict.judged, row.verdict.late, len(row.verdict.missing)) for row in self.rows),
                strict=True,
            )
        )
        altered = sum(len(row.verdict.altered) for row in self.rows)
        bad = [f"{missing:,} missing"] if missing else []
        bad += [f"{late:,} late"] if late else []
        bad += [f"{counted(altered, 'block')} altered"] if altered else []
        return f"{counted(judged, 'message')} judged: {', '.join(bad) or 'complete'}."

    def _left_out(self) -> Iterator[str]:
        """Sentences for people: of what nothing is said."""
        if self.rows and self.unwatched:
            yield f"not watched: {', '.join(self.unwatched)}: name them to brucectl witness run"
        yield from self.unread
        if self.rows and not self.is_current:
            since = f" since {self.looked}" if self.looked else ""
            yield f"the witness has not looked{since}, and judges nothing later: see brucectl witness run"

    def as_json(self) -> dict[str, object]:
        """The document above."""
        return {
            "version": VERSION,
            "sound": self.sound,
            "looked": self.looked,
            "is_current": self.is_current,
            "unwatched": list(self.unwatched),
            "unread": list(self.unread),
            "tiers": [
                {
                    "tier": name,
                    "records": records,
                    "skipped": skipped,
                    "spools": [_row_as_json(row) for row in self.rows if row.tier == name],
                }
                for name, records, skipped in self.tiers
            ],
            "between": [
                {
                    "spool": gap.spool,
                    "from": gap.before,
                    "to": gap.behind,
                    "missing": len(gap.missing),
                    "runs": ranges(gap.missing, MOST_RUNS),
                }
                for gap in self.gaps
            ],
        }


def _row_as_json(row: Row) -> dict[str, object]:
    verdict, again = row.verdict, _again(row)
    return {
        "spool": row.side.spool,
        "host": row.side.host,
        "judged": verdict.judged,
        "missing": len(verdict.missing),
        "late": verdict.late,
        "duplicated": len(verdict.duplicated),
        "missing_runs": ranges(verdict.missing, MOST_RUNS),
        "duplicated_runs": ranges(verdict.duplicated, MOST_RUNS),
        "altered_blocks": spans(verdict.altered),
        "uncompared_blocks": spans(verdict.uncompared),
        "altered": again.sequences,
        "unread_blocks": spans(np.array(again.unread, np.int64)),
    }


def shown(messages: BitMap64) -> str:
    """Sequences for people: the first runs."""
    runs = ranges(messages, SHOWN_RUNS + 1)
    named = [str(first) if first == last else f"{first} to {last}" for first, last in runs[:SHOWN_RUNS]]
    return ", ".join(named) + (", and more" if len(runs) > SHOWN_RUNS else "")


def _lines(row: Row) -> Iterator[str]:
    where = f"{row.side.spool} in {row.tier}"
    if row.verdict.duplicated:
        yield f"{where}: more than once: {shown(row.verdict.duplicated)}"
    again = _again(row)
    if again.sequences:
        yield f"{where}: altered: {shown(BitMap64(again.sequences))}"
    if again.unread:
        runs = spans(np.array(again.unread, np.int64))[:SHOWN_RUNS]
        blocks = ", ".join(f"{first} to {last}" for first, last in runs)
        more = ", and more" if len(again.unread) > SHOWN_RUNS else ""
        yield f"{where}: altered: some among {blocks}{more}; they could not be read again, one by one"


def _again(row: Row) -> Altered:
    return row.again or Altered([], row.verdict.altered.tolist())


def spans(blocks: Blocks) -> list[Run]:
    """The first and the last sequence of each block, of the first MOST_RUNS."""
    return [(block * BLOCK, (block + 1) * BLOCK - 1) for block in blocks[:MOST_RUNS].tolist()]


def report(state: WitnessState, sides: Sequence[SpoolSide]) -> Report:
    """The verdicts of the witness with this state on these spools."""
    rows: list[Row] = []
    for name in state.tiers():
        tier = state.tier(name)
        watched = set(tier.spools())
        rows += [Row(name, side, judge_tier(tier, side)) for side in sides if side.spool in watched]
    told = [(name, state.tier(name).records, state.tier(name).skipped) for name in state.tiers()]
    look = read_look(state.path.parent)
    watched = {row.side.spool for row in rows} & (look.spools if look else set())
    unwatched = sorted({side.spool for side in sides} - watched)
    unread = [side.unread for side in sides if side.unread]
    looked_s = look and look.written_s
    return Report(told, rows, list(gaps(state.tiers(), rows)), unwatched, unread, looked_s)


def gaps(tiers: Sequence[str], rows: Sequence[Row]) -> Iterator[Gap]:
    """The messages that are missing in each tier, and were there in the one before."""
    missing = {(row.tier, row.side.spool): row.verdict.missing for row in rows}
    for spool in dict.fromkeys(row.side.spool for row in rows):
        before, lacking = SPOOL, BitMap64()
        for tier in tiers:
            here = missing.get((tier, spool), BitMap64())
            if gone := here - lacking:
                yield Gap(spool, before, tier, gone)
            before, lacking = tier, here


def read_report(directory: Path, paths: Sequence[str], reach: Callable[[str], Mapping[str, str]]) -> Report:
    """The report of the witness in a directory on the spools at these paths.

    Altered blocks are read again, message by message: `reach` gives librdkafka's properties for addresses.
    Raises BadWitness, NoSpool, OSError.
    """
    with closing(WitnessState(directory, readonly=True)) as state:
        found = report(state, Spools(paths).look())
        altered: list[Altered | None] = []
        for row in found.rows:
            facts = state.tier(row.tier).facts
            place = Place(reach(str(facts[SERVERS])), str(facts[PREFIX])) if SERVERS in facts else None
            blocks = row.verdict.altered
            altered.append(altered_of(row.side, blocks, place) if len(blocks) else None)
        return found.with_altered(altered)
