"""The witness at work: it reads the tiers, looks at the spools, compares, and says what it found.

A message is due in a tier when it was delivered some time ago (`late_s`), and the tier was read to the end
that it had after that time. Then it is missing if it was not seen; before, it is late.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import NamedTuple, Protocol

from pyroaring import BitMap64

from pipeline.witness.document import STALE_S, SpoolRow, TierRow, write_document
from pipeline.witness.expected import Spools, SpoolSide
from pipeline.witness.judge import Verdict, judge_tier
from pipeline.witness.state import WitnessState
from pipeline.witness.tier import Position, TierState

log = logging.getLogger("bruce.witness")

LOOK_S = 5.0
"""Between two looks at the spools, and checkpoints."""
SHARE = 10
"""Of the time, a look takes one of so many parts: with hundreds of spools, looks are rarer."""
RAREST_S = STALE_S / 3
"""Between two looks at most: to others, a witness that looks no more has stopped."""
WAIT_S = 1.0
"""Longest wait for records."""
FEW, PAUSE_S = 1000, 0.1
"""Behind fewer records than that it pauses: so many more come together, and a burst costs as much as many."""


class Tier(Protocol):
    """A place that messages reach, and that is read once, in passing. Its being away is no error."""

    state: TierState
    ends: dict[Position, int]
    """As of the last look."""
    is_fresh: bool
    """Whether the last look found all of them."""
    error: str
    """A sentence about the place, or empty."""

    @property
    def lag(self) -> int:
        """Records that are not read yet, as of the last look."""

    def look(self, topics: AbstractSet[str] | None) -> None:
        """Find the ends, of these topics or by default of all."""

    def read(self, timeout_s: float) -> int:
        """Take in some records, or wait so long for some; how many they were, those of others included."""

    def note_positions(self) -> None:
        """Give the state the positions behind what it has taken in."""

    def is_behind(self, ends: Mapping[Position, int]) -> bool:
        """Whether it is not read up to these ends."""

    def begin(self, side: SpoolSide) -> None:
        """Say from which message on a watched spool is judged, once that is known. Called behind a look."""

    def due(self, spool: str, delivered: BitMap64) -> BitMap64:
        """Those of some delivered messages that must have been seen, now that it is read to an end."""

    def close(self) -> None:
        """Leave it."""


class Place(Protocol):
    """Names a tier's place."""

    def tier(self, state: TierState) -> Tier:
        """Its tier. Raises BadProperty."""


class Pending(NamedTuple):
    """The messages that the spools had delivered at a time: due when the tier is read to a later end."""

    at: float
    delivered: Mapping[str, BitMap64]
    """By spool."""


@dataclass(slots=True)
class Watch:
    """A tier, and what is expected of it."""

    tier: Tier
    pending: Pending | None = None
    ends: Mapping[Position, int] | None = None
    """Of the tier, `late_s` after `pending`; None: that time has not come."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """By spool, as of the last look."""

    def expect(self, sides: Sequence[SpoolSide], now: float, late_s: float) -> None:
        """Note what has become due, and what was delivered by now."""
        if self.pending and self.ends is None and now - self.pending.at >= late_s and self.tier.is_fresh:
            self.ends = self.tier.ends
        if self.pending and self.ends is not None and not self.tier.is_behind(self.ends):
            for spool, delivered in self.pending.delivered.items():
                self.tier.state.spool(spool).note_due(self.tier.due(spool, delivered))
            self.pending = self.ends = None
        if self.pending is None:
            self.pending = Pending(now, {side.spool: side.expected.delivered() for side in sides})

    def judge(self, sides: Sequence[SpoolSide]) -> None:
        """Compare what was seen with what the spools say; forget the sums of blocks that are right."""
        state = self.tier.state
        self.verdicts = {}
        for side in sides:
            verdict = judge_tier(state, side)
            seen = state.spool(side.spool)
            seen.settle(verdict.settled)
            seen.limit(side.expected.blocks)
            self.verdicts[side.spool] = verdict


class Witness:
    """One witness. `run` works until it is stopped."""

    def __init__(
        self,
        state: WitnessState,
        spools: Spools,
        tiers: Sequence[Tier],
        *,
        late_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state, self._spools, self._late_s, self._clock = state, spools, late_s, clock
        self.watches = [Watch(tier) for tier in tiers]
        self._sides: list[SpoolSide] = []

    def run(self, stop: Event, look_s: float = LOOK_S) -> None:
        """Work until `stop` is set. Raises BadWitness, NoSpool, OSError."""
        due = 0.0
        while not stop.is_set():
            if self._clock() >= due:
                begun = self._clock()
                asked_s = self.look()
                rest_s = SHARE * (self._clock() - begun - asked_s)
                due = self._clock() + max(look_s, min(rest_s, RAREST_S))
            self.read(max(0.0, min(WAIT_S, due - self._clock())))
        self.look()

    def read(self, wait_s: float) -> None:
        """Take in what has come to the tiers; wait so long if nothing has."""
        count = sum(watch.tier.read(0.0) for watch in self.watches)
        if not count:
            # In whichever tier the next records are, they wait no longer than that.
            self.watches[0].tier.read(wait_s / len(self.watches))
        elif count < FEW:
            time.sleep(min(wait_s, PAUSE_S))

    def look(self) -> float:
        """Look at the spools and the ends of topics, judge, and write all down.

        How long it asked the tiers: with one of them away that is waiting, and makes looks no rarer.
        """
        self._sides, asked_s = self._spools.look(), 0.0
        for watch in self.watches:
            watch.tier.state.watch({side.spool: side.end for side in self._sides})
            asked = self._clock()
            watch.tier.look(topics_of(self._sides))
            asked_s += self._clock() - asked
            for side in self._sides:
                watch.tier.begin(side)
            watch.expect(self._sides, self._clock(), self._late_s)
            watch.judge(self._sides)
            watch.tier.note_positions()
        self._state.checkpoint()
        write_document(self._state.path.parent, [row_of(watch, self._sides) for watch in self.watches])
        return asked_s


def topics_of(sides: Sequence[SpoolSide]) -> set[str] | None:
    """The topics that these spools have messages of; None: they do not tell all."""
    if not all(side.names_all for side in sides):
        return None
    names = {name for side in sides for name in side.topics}
    return {name.decode(errors="replace") for name in names}


def row_of(watch: Watch, sides: Sequence[SpoolSide]) -> TierRow:
    """The part of the document about a tier."""
    state = watch.tier.state
    rows = [
        SpoolRow(
            side.spool,
            side.host,
            verdict.judged,
            len(verdict.missing),
            verdict.late,
            len(verdict.duplicated),
            len(verdict.altered),
            len(verdict.uncompared),
        )
        for side in sides
        if (verdict := watch.verdicts.get(side.spool)) is not None
    ]
    return TierRow(state.name, watch.tier.lag, state.records, state.skipped, watch.tier.error, rows)


def watch(
    directory: Path, paths: Sequence[str], places: Mapping[str, Place], stop: Event, *, late_s: float
) -> None:
    """Be the witness of the spools at some paths in these tiers, by name, until `stop` is set.

    `directory` has its state. Raises BadWitness, BadProperty, NoSpool, SpoolBusy, OSError.
    """
    state = WitnessState(directory)
    with ExitStack() as opened:
        opened.callback(state.close)
        tiers = []
        state.order(list(places))
        for name, place in places.items():
            tiers.append(place.tier(state.tier(name)))
            opened.callback(tiers[-1].close)
        Witness(state, Spools(paths), tiers, late_s=late_s).run(stop)
