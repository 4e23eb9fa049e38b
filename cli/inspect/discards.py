"""The discards of a spool: everything that was received and not delivered, for good, with samples.

Three places know of it: the frames of the log and the book behind them (refused at intake), the ledger (while
the spool was full), and the marks (after acceptance: by topic, whether it is in the dead-letter topic, and
first bytes).
"""

from __future__ import annotations

import pwd
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cli.status.snapshot import account_of, list_senders
from cli.terminal.output import as_text, as_utc
from spool.format.frame import DISCARDED
from spool.format.wire import DEAD_LETTERED, reason_name, sampled_topic
from spool.index.environment import UNREADABLE
from spool.index.segment_list import SegmentList
from spool.index.soundness import has_begun
from spool.layout import Layout
from spool.log.intake_totals import read_refused
from spool.marks.discarded import Sample
from spool.marks.marks import Marks
from spool.shared.ledger import Discards, read_ledger

VERSION = 1
"""Of the document."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """Messages of one topic, discarded for one reason."""

    topic: bytes
    """Empty: not known."""
    reason: str
    messages: int
    dead_lettered: int
    """How many of them are in the dead-letter topic."""
    first_ns: int
    """When, in ns since the epoch; 0: not known."""
    last_ns: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Messages of one sender, discarded at intake for one reason."""

    sender: str
    """As in status.report."""
    reason: str
    messages: int


@dataclass(frozen=True, slots=True)
class Example:
    """One of them."""

    sequence: int | None
    """None: it was never given one."""
    topic: bytes
    reason: str
    time_ns: int
    data: bytes
    """Its first bytes, as they were received."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All of it."""

    discards: list[Discarded]
    senders: list[Refused]
    examples: list[Example]


def list_discards(
    directory: Path, topics: frozenset[bytes], reasons: frozenset[str], from_ns: int = 0
) -> Listing:
    """Read a spool; empty sets ask for all, `from_ns` for what went on at that time or later.

    Raises NoSpool, BadSpool, OSError.
    """
    layout = Layout(directory)
    account = account_of(layout)
    refused = read_refused(layout)
    counted, samples = _marked(layout)
    # The rows have messages, too, that were refused since the totals were taken.
    rest = Counter(dict(enumerate(account.tail[DISCARDED:].tolist())))
    for row in refused.discards:
        rest[row.reason] -= row.count
    unknown = [Discards(b"", reason, count, 0, 0) for reason, count in rest.items() if count > 0]
    rows = _merged([*refused.discards, *unknown, *read_ledger(layout.ledger), *counted])
    examples = [
        Example(None, sampled_topic(reason, data), reason_name(reason), at, data)
        for reason, some in refused.samples.items()
        for at, data in some
    ]
    examples += [Example(s.sequence, s.topic, reason_name(s.reason), s.time_ns, s.data) for s in samples]

    def wanted(one: Discarded | Example) -> bool:
        newest_ns = one.last_ns if isinstance(one, Discarded) else one.time_ns
        late = not from_ns or newest_ns >= from_ns
        return late and (not topics or one.topic in topics) and (not reasons or one.reason in reasons)

    return Listing(
        sorted(filter(wanted, rows), key=lambda row: (row.topic, row.reason)),
        # Of a sender neither topics nor times are known.
        []
        if topics or from_ns
        else [row for row in _by_sender(layout) if not reasons or row.reason in reasons],
        sorted(filter(wanted, examples), key=lambda one: (one.topic, one.reason, one.time_ns)),
    )


def _by_sender(layout: Layout) -> Iterator[Refused]:
    for one in list_senders(layout):
        yield from (Refused(one.sender, reason, count) for reason, count in one.discarded.items())


def _merged(rows: list[Discards]) -> list[Discarded]:
    """One a topic and reason, whether in the dead-letter topic or not."""
    counts: Counter[tuple[bytes, int]] = Counter()
    letters: Counter[tuple[bytes, int]] = Counter()
    times: dict[tuple[bytes, int], list[int]] = {}
    for row in rows:
        key = row.topic, row.reason & ~DEAD_LETTERED
        counts[key] += row.count
        letters[key] += row.count if row.reason & DEAD_LETTERED else 0
        times.setdefault(key, []).extend(at for at in (row.first_ns, row.last_ns) if at)
    return [
        Discarded(
            topic, reason_name(reason), n, letters[topic, reason], min(at, default=0), max(at, default=0)
        )
        for (topic, reason), n in counts.items()
        for at in [times[topic, reason]]
    ]


def _marked(layout: Layout) -> tuple[list[Discards], list[Sample]]:
    """(counts, samples) after acceptance; nothing without marks."""
    if not has_begun(layout.delivery):
        return [], []
    try:
        marks = Marks(layout.delivery, SegmentList(layout), readonly=True)
    except UNREADABLE:
        return [], []
    try:
        return marks.discards(), marks.samples()
    except UNREADABLE:
        return [], []
    finally:
        marks.close()


def user_name(sender: str) -> str:
    """The user with this uid on this host; "-" if there is none."""
    try:
        return pwd.getpwuid(int(sender)).pw_name
    except (KeyError, ValueError, OverflowError):
        return "-"


def newest(found: list[Example], most: int) -> list[Example]:
    """The newest of each topic and reason."""
    chosen: list[Example] = []
    for at, one in enumerate(found):
        behind = found[at + most : at + most + 1]
        if most and not (behind and (behind[0].topic, behind[0].reason) == (one.topic, one.reason)):
            chosen.append(one)
    return chosen


def as_document(found: Listing, samples: int) -> dict[str, Any]:
    """The document for JSON, with at most `samples` samples of each topic and reason."""

    def time(ns: int) -> str | None:
        return as_utc(ns) if ns else None

    return {
        "version": VERSION,
        "discards": [
            {
                **as_text("topic", row.topic or None),
                "reason": row.reason,
                "messages": row.messages,
                "dead_lettered": row.dead_lettered,
                "first": time(row.first_ns),
                "last": time(row.last_ns),
            }
            for row in found.discards
        ],
        "senders": [asdict(row) for row in found.senders],
        "samples": [
            {
                "sequence": one.sequence,
                **as_text("topic", one.topic or None),
                "reason": one.reason,
                "time": time(one.time_ns),
                **as_text("data", one.data),
            }
            for one in newest(found.examples, samples)
        ],
    }
