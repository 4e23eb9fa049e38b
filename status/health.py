"""When a bruce is unhealthy: a few conditions, each of which somebody should know at night.

    stopped    no daemon runs: senders are refused, and nothing is delivered
    release    a daemon runs that is of another release than brucectl: much of it cannot be seen
    worker     one of the daemon's processes is not running
    trouble    nothing can be sent, or not to some topics; the sentence says why
    old        the oldest undelivered message is older than --max-age
    full       the spool, or a topic's quota, has no room
    filling    at the present rate the spool is full within --full-within
    discards   messages were discarded within the last quarter of an hour
    disk       the disk refused something since the daemon was started, does not give what is stored, or has
               no file where a segment should be
    marks      the marks cannot be read: what was delivered will be sent again

A broker that is away is none of them: what is meant for others goes on, and what waits for it becomes old.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from status.report import Complaint, Report


class Limits(NamedTuple):
    """Beyond these it is unhealthy."""

    max_age_s: float = 15 * 60
    full_within_s: float = 3600


def complaints(report: Report, limits: Limits) -> list[Complaint]:
    """What is wrong, in the order above; nothing for a healthy one."""
    return [*_processes(report), *_messages(report, limits), *_room(report, limits), *_storage(report)]


def _processes(report: Report) -> Iterator[Complaint]:
    snapshot = report.snapshot
    if other := snapshot.other_release:
        yield Complaint("release", other.sentence)
    elif not snapshot.workers:
        left = f", and {snapshot.backlog:,} messages wait" if snapshot.backlog else ""
        yield Complaint("stopped", f"no daemon is running on this spool{left}")
    for worker in snapshot.workers:
        if not worker.alive:
            yield Complaint(
                "worker",
                f"the {worker.role} worker is not running; it was started again {worker.restarts} times",
            )
    if snapshot.trouble:
        yield Complaint("trouble", snapshot.trouble)


def _messages(report: Report, limits: Limits) -> Iterator[Complaint]:
    oldest, quarter = report.oldest, report.quarter_hour
    if oldest and oldest.age_seconds > limits.max_age_s:
        age, most = in_words(oldest.age_seconds), in_words(limits.max_age_s)
        yield Complaint("old", f"the oldest undelivered message has waited for {age}, longer than {most}")
    if quarter and quarter.discarded > 0:
        count, span = round(quarter.discarded * quarter.seconds), in_words(quarter.seconds)
        were = "message was" if count == 1 else "messages were"
        yield Complaint(
            "discards",
            f"{count:,} {were} discarded in the last {span}; see brucectl discards",
        )


def _room(report: Report, limits: Limits) -> Iterator[Complaint]:
    for view in report.snapshot.full:
        yield Complaint("full", view.sentence)
    hours = report.room.hours_until_full if report.room else None
    if hours is not None and hours * 3600 < limits.full_within_s and not report.snapshot.full:
        yield Complaint("filling", f"at this rate the spool is full in {in_words(hours * 3600)}")


def _storage(report: Report) -> Iterator[Complaint]:
    if report.snapshot.disk:
        yield Complaint("disk", report.snapshot.disk)
    if not report.marked:
        yield Complaint(
            "marks", "the marks cannot be read: what was delivered counts as backlog, and will be sent again"
        )


def in_words(seconds: float) -> str:
    """A length of time as people say it: its largest two units."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    if minutes:
        return f"{minutes} min {int(seconds) % 60} s"
    return f"{seconds:.0f} s"
