"""Everything that `brucectl status` shows, and its lines for a pipe.

A report has a snapshot, rates from the shared state, the backlog by topic, and the room that is left. The
screen for people is in cli.status.screens, which needs Rich; the lines need no library.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from cli.status.snapshot import take_snapshot
from cli.terminal.output import NOTHING, topic_name
from dispatch.topic_settings import Lateness, read_lateness
from spool.index.identity import read_identity
from spool.layout import Layout
from spool.log.recovery import boot_id
from spool.log.retention import capacity, seconds_until_full, undelivered, waiting_bytes
from spool.options import Space, SpoolOptions
from spool.read.backlog import Backlog, Waiting
from spool.shared.runtime import find_shared_state
from spool.shared.state import Change, Field, change_over, grows, read_shared_state, read_text
from spool.storage.disk import allocated_bytes, free_bytes
from spool.storage.ownership import believed
from spool.words import counted, utc
from status.report import BrokerView, Complaint, LastTrouble, OldestView, RateView, Report, RoomView, Snapshot
from status.witness import Witness, WitnessView

MINUTE_S, QUARTER_S = 60.0, 900.0
UNDER_WAY_S = 10.0
"""While no message has waited for longer, the spool does not fill: messages come and go."""


def look_once(directory: Path, options: SpoolOptions | None, witness: Witness | None = None) -> Report:
    """One report, as `take_report` makes it."""
    backlog = Backlog(Layout(directory))
    try:
        return take_report(directory, backlog, options, witness)[0]
    finally:
        backlog.close()


def take_report(
    directory: Path, backlog: Backlog, options: SpoolOptions | None, witness: Witness | None = None
) -> tuple[Report, Waiting]:
    """Look at a spool, whether or not its daemon lives; the report, and the backlog that it is of.

    `options`: those of the spool, where they are known; a daemon that lives says itself how much room it has.
    `witness`: the configured one, if there is one.
    Raises NoSpool, BadSpool, OSError.
    """
    layout = Layout(directory)
    snapshot = take_snapshot(directory)
    waiting = backlog.look()
    now_ns = time.time_ns()
    spool, boot = read_identity(layout), boot_id()
    shared = read_shared_state(find_shared_state(directory, spool, boot), believed(directory))
    counting = shared if snapshot.workers else None
    minute, quarter = (_change(counting, seconds) for seconds in (MINUTE_S, QUARTER_S))
    limits, lateness = _limits(counting, options), read_lateness(layout)
    oldest = _oldest(waiting, now_ns)
    waits = oldest is not None and oldest.age_seconds > UNDER_WAY_S
    steady = counting is not None and grows(counting)
    report = Report(
        taken=utc(now_ns),
        snapshot=snapshot,
        minute=_rate(minute),
        quarter_hour=_rate(quarter),
        topics=tuple(waiting.topics.items()),
        topics_estimated=waiting.estimated,
        oldest=oldest,
        room=limits and _room(layout, waiting, *limits, minute, quarter, waits=waits, steady=steady),
        last_trouble=_last_trouble(shared),
        marked=waiting.marked,
        discarded_lately=quarter.discarded if quarter else 0,
        lateness=lateness,
        awaited=(read_text(counting, Field.AWAITED) or None) if counting is not None else None,
        oldest_records=oldest_records(backlog, waiting, lateness, now_ns) if waits else {},
        witness=witness.look() if witness else None,
    )
    return report, waiting


def _change(shared: np.ndarray | None, seconds: float) -> Change | None:
    return None if shared is None else change_over(shared, seconds, time.monotonic_ns())


def _rate(change: Change | None) -> RateView | None:
    if change is None:
        return None
    # As exact as that one message in a quarter of an hour is more than none.
    each = (round(n / change.seconds, 4) for n in (change.received, change.delivered, change.discarded))
    return RateView(round(change.seconds, 1), *each)


def _oldest(waiting: Waiting, now_ns: int) -> OldestView | None:
    if waiting.oldest is None:
        return None
    sequence, received_ns, *_ = waiting.oldest
    return OldestView(sequence, utc(received_ns), round(max(0, now_ns - received_ns) / 1e9, 1))


def oldest_records(
    backlog: Backlog, waiting: Waiting, lateness: Mapping[bytes, Lateness], now_ns: int
) -> dict[bytes, float]:
    """By topic, the age of the oldest message by its own timestamp, in seconds, where that may be too late.

    Of the oldest of all, and of each topic with a limit that the time since reception alone is beyond.
    `waiting`: what `backlog` saw last. Raises BadSpool, OSError.
    """
    oldest = waiting.oldest
    if oldest is None:
        return {}
    before = {
        topic: now_ns - int(1e9 * min(limit for limit in limits if limit is not None))
        for topic, limits in lateness.items()
        if topic in waiting.topics and limits != (None, None)
    }
    found = backlog.oldest_of({topic: ns for topic, ns in before.items() if ns > oldest.received_ns})
    return {one.topic: one.record_age_s(now_ns) for one in [*found.values(), oldest] if one.topic}


def _limits(shared: np.ndarray | None, options: SpoolOptions | None) -> tuple[int, int | None] | None:
    """max_bytes and min_free_bytes, as the daemon has them, else as configured."""
    if shared is not None and shared[Field.MAX_BYTES]:
        least = int(shared[Field.MIN_FREE_BYTES])
        return int(shared[Field.MAX_BYTES]), None if least < 0 else least
    return (options.max_bytes, options.min_free_bytes) if options else None


def _room(
    layout: Layout,
    waiting: Waiting,
    max_bytes: int,
    min_free_bytes: int | None,
    minute: Change | None,
    quarter: Change | None,
    *,
    waits: bool,
    steady: bool,
) -> RoomView:
    """`waits`: whether anything does, rather than being under way; `steady`: as seconds_until_full."""
    used = sum(map(allocated_bytes, layout.segments.iterdir()))
    most = capacity(Space(used, *free_bytes(layout.segments)), max_bytes, min_free_bytes)
    taken = waiting_bytes(
        undelivered(layout, waiting.low_watermark),
        waiting.end.sequence,
        waiting.end.position,
        waiting.low_watermark,
    )
    left = max(0, most - taken)
    seconds = seconds_until_full(left, minute, quarter, steady=steady) if waits else None
    return RoomView(most, taken, None if seconds is None else round(seconds / 3600, 2))


def _last_trouble(shared: np.ndarray | None) -> LastTrouble | None:
    text = None if shared is None else read_text(shared, Field.LAST_TROUBLE)
    if shared is None or not text:
        return None
    return LastTrouble(text, utc(int(shared[Field.LAST_TROUBLE_NS])))


def status_lines(report: Report, unhealthy: Sequence[Complaint]) -> Iterator[Sequence[object]]:
    """A report as lines of columns; each begins with the name of what it shows."""
    snapshot, marks = report.snapshot, report.snapshot.watermarks
    yield "spool", snapshot.spool.directory, snapshot.spool.uuid
    yield from (("unhealthy", one.condition, one.sentence) for one in unhealthy)
    yield from (("received", snapshot.received), ("delivered", snapshot.delivered))
    yield from (("discarded", sum(snapshot.discarded.values())), ("backlog", snapshot.backlog))
    for name, rate in (("minute", report.minute), ("quarter_hour", report.quarter_hour)):
        yield "rate", name, *((rate.received, rate.delivered, rate.discarded) if rate else [NOTHING] * 3)
    for name in ("accepted", "written", "synced", "delivered"):
        yield "watermark", name, getattr(marks, name)
    if report.oldest:
        yield "oldest", report.oldest.age_seconds, report.oldest.received, report.oldest.sequence
    yield "disk", snapshot.spool.segments, snapshot.spool.bytes
    if room := report.room:
        hours = NOTHING if room.hours_until_full is None else room.hours_until_full
        yield "room", room.waiting_bytes, room.capacity_bytes, hours
    for topic, count in report.topics:
        yield "topic", topic_name(topic), count, *(["estimated"] if report.topics_estimated else [])
    for broker in snapshot.brokers:
        yield "broker", broker.id, broker.state, broker.offset, broker.in_flight
    yield from (("discards", *pair) for pair in snapshot.discarded.items())
    for sender in snapshot.senders:
        yield "sender", sender.sender, sender.received, sum(sender.discarded.values())
    yield from (("worker", worker.role, worker.pid, worker.restarts) for worker in snapshot.workers)
    yield from _tier_lines(report.witness)
    yield from (("note", sentence) for sentence in notes(report))


def _tier_lines(witness: WitnessView | None) -> Iterator[Sequence[object]]:
    for tier in witness.tiers if witness else ():
        yield "witness", tier.tier, tier.verdict.words, tier.verdict.judged, tier.lag


def first_waiting(broker: BrokerView, snapshot: Snapshot) -> int | None:
    """The sequence number of the first message that waits for a broker; None if none does."""
    return broker.offset if broker.offset < snapshot.watermarks.synced else None


def notes(report: Report) -> Iterator[str]:
    """Sentences for the operator that are no reason to worry."""
    snapshot, last = report.snapshot, report.last_trouble
    if last and not snapshot.trouble:
        # It may have been the end of the daemon that ended it.
        yield f"last trouble, last seen at {last.seen}: {last.sentence}"
    if report.awaited:
        yield report.awaited
    if witness := report.witness:
        yield from filter(None, (witness.problem, *witness.unread))
    if job := snapshot.lent:
        driver = f"process {job.pid} on {job.host}" if job.pid else "a job"
        yield f"delivery is lent to {driver} since {job.since}: below {job.until}"
    if snapshot.held:
        yield "`brucectl drain --stop-intake` has stopped the intake: senders wait until it ends"
    if snapshot.unadopted:
        yield (
            f"jobs have written down what became of {counted(snapshot.unadopted, 'message')} that the "
            "backlog here still has: a daemon takes it over, or `brucectl drain`"
        )
