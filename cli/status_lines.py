"""A spool at a glance, for pipes: lines of columns that begin with their name. It takes no library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cli.output import NOTHING
from cli.records import printable
from status.report import Complaint, Report
from status.snapshot import BrokerView, Snapshot


def status_lines(report: Report, unhealthy: Sequence[Complaint]) -> Iterator[Sequence[object]]:
    """All of it, in lines."""
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
        yield "topic", printable(topic), count, *(["estimated"] if report.topics_estimated else [])
    for broker in snapshot.brokers:
        yield "broker", broker.id, broker.state, broker.offset, broker.in_flight, behind(broker, snapshot)
    yield from (("discards", *pair) for pair in snapshot.discarded.items())
    for sender in snapshot.senders:
        yield "sender", sender.sender, sender.received, sum(sender.discarded.values())
    yield from (("worker", worker.role, worker.pid, worker.restarts) for worker in snapshot.workers)
    yield from (("note", sentence) for sentence in notes(report))


def behind(broker: BrokerView, snapshot: Snapshot) -> int:
    """Messages stored since the first one that waits for a broker, whoever they are for."""
    return max(0, snapshot.watermarks.synced - broker.offset)


def notes(report: Report) -> Iterator[str]:
    """What is to be known, and no reason to worry."""
    snapshot, last = report.snapshot, report.last_trouble
    if last and not snapshot.trouble:
        yield f"last trouble, over since {last.seen}: {last.sentence}"
    if job := snapshot.lent:
        yield f"delivery is lent to process {job.pid} on {job.host} since {job.since}: below {job.until}"
    if snapshot.held:
        yield "`brucectl drain --stop-intake` has stopped the intake: senders wait until it ends"
    if snapshot.unadopted:
        yield (
            f"jobs have written down what became of {snapshot.unadopted} messages that are still "
            "in the backlog here: a daemon takes it over, or `brucectl drain`"
        )
