"""The books of a spool: what was received, what became of it. Derived from what is stored, each time.

    received = stored + refused at intake + the ledger + what waits in staging
    backlog  = stored - resolved + what waits in staging
    delivered = resolved - discarded after acceptance

Outcomes are read first and frames second, so that a message which is stored and delivered in between is
seen as backlog, never as delivered but not received.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from spool.catalogue import Catalogue
from spool.environment import UNREADABLE
from spool.frame import BURST, DISCARDED, STORED, Tail
from spool.layout import Layout
from spool.ledger import Discards, read_books
from spool.live import empty_tail, end_of, live_segment
from spool.marks import Marks, Outcomes
from spool.vouched import vouched_for
from spool.wire import DEAD_LETTERED

Staging = Callable[[], list[tuple[int, int]]]
"""(burst, datagrams received into it) of each that may not be stored yet: ingest.staging.read_staging."""
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Account:
    """The books at one instant. `tail`: the end of what is written."""

    tail: Tail
    staged: int
    floor: int
    resolved: int
    refused: dict[int, int]
    """At intake, the ledger included, by reason."""
    discarded: list[Discards]
    """After acceptance."""

    @property
    def received(self) -> int:
        """Datagrams that senders sent."""
        return int(self.tail[STORED]) + self.staged + sum(self.refused.values())

    @property
    def delivered(self) -> int:
        """Messages that Kafka acknowledged."""
        return self.resolved - sum(d.count for d in self.discarded)

    @property
    def backlog(self) -> int:
        """Messages still to be delivered."""
        return int(self.tail[STORED]) + self.staged - self.resolved

    @property
    def dead_lettered(self) -> int:
        """How many of the discarded messages are in the dead-letter topic."""
        return sum(d.count for d in self.discarded if d.reason & DEAD_LETTERED)

    def by_reason(self) -> dict[int, int]:
        """Everything discarded, by reason, in the dead-letter topic or not."""
        totals = Counter(self.refused)
        for d in self.discarded:
            totals[d.reason & ~DEAD_LETTERED] += d.count
        return {reason: count for reason, count in sorted(totals.items()) if count}


def take_account(layout: Layout, staging: Staging) -> Account:
    """Read the books. Writes nothing; a daemon may be at work meanwhile. Raises BadSpool, OSError."""
    floor, resolved, discarded = _outcomes(layout)
    for attempt in range(_TRIES):
        try:
            bursts = staging()
            tail = _end(layout)
            break
        except FileNotFoundError:
            # A segment got its name, or was retired, between the listing and the look.
            if attempt == _TRIES - 1:
                raise
    counted, entries = read_books(layout.ledger)
    stored = max(int(tail[BURST]), counted)
    staged = sum(datagrams for number, datagrams in bursts if number > stored)
    refused = Counter({reason: int(n) for reason, n in enumerate(tail[DISCARDED:].tolist()) if n})
    for entry in entries:
        refused[entry.reason] += entry.count
    return Account(tail, staged, max(floor, 0), resolved, dict(refused), discarded)


def _end(layout: Layout) -> Tail:
    known, live = vouched_for(layout), live_segment(layout)
    return end_of(live, known=known).tail if live else empty_tail()


def _outcomes(layout: Layout) -> Outcomes:
    catalogue = Catalogue(layout)
    sent = catalogue.sent_below()
    nothing = Outcomes(sent, catalogue.stored_below(sent), [])
    if not (layout.delivery / "data.mdb").exists():
        return nothing
    try:
        marks = Marks(layout.delivery, catalogue, readonly=True)
    except UNREADABLE:
        return nothing
    try:
        return marks.outcomes()
    except UNREADABLE:
        return nothing
    finally:
        marks.close()
