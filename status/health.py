"""When a bruce is unhealthy, when it is alive, and when it is ready to take messages.

A few conditions are worth waking somebody at night:

    stopped    no daemon runs: senders are refused, and nothing is delivered
    release    a daemon runs that is of another release than brucectl: much of it cannot be seen
    worker     one of the daemon's processes is not running, or does nothing
    inputs     programs do not reach one of the daemon's sockets
    trouble    nothing can be sent, or not to some topics; the sentence says why
    old        the oldest undelivered message is older than --max-age
    late       Kafka deletes, or refuses, messages of a topic that are as old as the oldest of it that waits
    full       the spool, or a topic's quota, has no room
    filling    at the present rate the spool is full within --full-within
    discards   messages were discarded within the last quarter of an hour
    disk       the disk refused something since the daemon was started, does not answer, does not give what is
               stored, or has no file where a segment should be
    marks      the marks cannot be read: what was delivered will be sent again
    witness    messages are missing in Kafka, or altered, by the verdict of the witness

An unreachable broker is none of them: delivery to others goes on, and messages that wait for it become old.
Nor is a witness that has stopped, or is behind: alert rules and `brucectl doctor` tell that.

Probes ask every few seconds whether bruce is alive and ready (`Health`). An unreachable Kafka changes
neither: bruce exists to hold messages meanwhile, and no restart would help. Nor does the verdict of a
witness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dispatch.topic_settings import Lateness
from spool.words import agreeing, counted, waiting
from status.report import Complaint, FullView, Report, WorkerView, shown_name

_INTAKE = ("ingest", "keeper")
_UNLIMITED = Lateness(None, None)


class Limits(NamedTuple):
    """Thresholds beyond which a spool is unhealthy."""

    max_age_s: float = 15 * 60
    full_within_s: float = 3600


def complaints(report: Report, limits: Limits) -> list[Complaint]:
    """The conditions that hold, in the order above; none for a healthy spool."""
    return [
        *_processes(report),
        *_messages(report, limits),
        *_room(report, limits),
        *_storage(report),
        *_witness(report),
    ]


def _processes(report: Report) -> Iterator[Complaint]:
    snapshot = report.snapshot
    if other := snapshot.other_release:
        yield Complaint("release", other.sentence)
    elif not snapshot.workers:
        left = f", and {waiting(snapshot.backlog)}" if snapshot.backlog else ""
        yield Complaint("stopped", f"no daemon is running on this spool{left}")
    for worker in snapshot.workers:
        if not worker.alive:
            again = f"; it was started again {counted(worker.restarts, 'time')}"
            yield Complaint("worker", worker.sentence + again)
        elif worker.hangs:
            yield Complaint("worker", worker.sentence)
    if snapshot.lost_inputs:
        yield Complaint("inputs", snapshot.lost_inputs)
    if snapshot.trouble:
        yield Complaint("trouble", snapshot.trouble)


def _messages(report: Report, limits: Limits) -> Iterator[Complaint]:
    oldest, quarter = report.oldest, report.quarter_hour
    if oldest and oldest.age_seconds > limits.max_age_s:
        age, most = in_words(oldest.age_seconds), in_words(limits.max_age_s)
        yield Complaint("old", f"the oldest undelivered message has waited for {age}, longer than {most}")
    if late := list(too_late(report.lateness, report.oldest_records)):
        others = len({one.topic for one in late}) - 1
        same = f"; the same is true of {counted(others, 'other topic')}" if others else ""
        yield Complaint("late", f"{late[0].sentence}; {late[0].remedy}{same}")
    if quarter and (count := report.discarded_lately):
        were = agreeing(count, "message", "was", "were")
        yield Complaint(
            "discards", f"{were} discarded in the last {in_words(quarter.seconds)}; see brucectl discards"
        )


class Late(NamedTuple):
    """Messages of a topic that Kafka will not keep, or not take."""

    topic: bytes
    sentence: str
    remedy: str


def limits_of(topic: bytes, lateness: Lateness) -> Iterator[tuple[float, str, str, str]]:
    """(seconds, the limit, what Kafka does with messages that are older, the remedy) of each limit."""
    for limit_s, setting, verb, end in (
        (
            lateness.kept_s,
            "retention.ms",
            "keeps",
            "Kafka deletes such messages soon after they are delivered",
        ),
        (lateness.taken_s, "message.timestamp.before.max.ms", "takes", "Kafka refuses such messages"),
    ):
        if limit_s is not None:
            limit = (
                f"topic {shown_name(topic)} {verb} messages for {in_words(limit_s)} from their own timestamps"
            )
            remedy = f"raise {setting} of the topic, or set its message.timestamp.type to LogAppendTime"
            yield limit_s, limit, end, remedy


def too_late(found: Mapping[bytes, Lateness], oldest: Mapping[bytes, float]) -> Iterator[Late]:
    """The limits of topics beyond which their oldest messages are.

    `oldest`: by topic, the age by its own timestamp, as Kafka counts, in seconds.
    """
    for topic, age_s in oldest.items():
        for limit_s, limit, end, remedy in limits_of(topic, found.get(topic, _UNLIMITED)):
            if age_s > limit_s:
                age = f"the oldest of it that waits in the spool is {in_words(age_s)} old"
                yield Late(topic, f"{limit}, and {age}: {end}", remedy)


def _room(report: Report, limits: Limits) -> Iterator[Complaint]:
    for view in report.snapshot.full:
        yield Complaint("full", view.sentence)
    hours = report.room.hours_until_full if report.room else None
    if hours is not None and hours * 3600 < limits.full_within_s and not report.snapshot.full:
        yield Complaint("filling", f"at this rate the spool is full in {in_words(hours * 3600)}")


def _storage(report: Report) -> Iterator[Complaint]:
    if report.snapshot.disk:
        yield Complaint("disk", report.snapshot.disk)
    for worker in report.snapshot.workers:
        if worker.alive and worker.waits_for_disk:
            yield Complaint("disk", worker.sentence)
    if not report.marked:
        yield Complaint(
            "marks", "the marks cannot be read: what was delivered counts as backlog, and will be sent again"
        )


def _witness(report: Report) -> Iterator[Complaint]:
    if report.witness and (loss := report.witness.loss):
        yield Complaint("witness", f"{loss}; see brucectl audit --witness")


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


@dataclass(frozen=True, slots=True)
class Health:
    """Liveness and readiness, from the shared state at one moment."""

    workers: list[WorkerView]
    full: list[FullView]
    started_ns: int
    """When the daemon was started, in ns since the epoch."""
    held: bool
    """Whether an operator has stopped the intake."""
    lost_inputs: str = ""
    """The sockets that programs do not reach, in one sentence."""

    def not_alive(self) -> list[str]:
        """Reasons why it is not alive: a sentence for each process that does not run, or does nothing."""
        if not self.workers:
            return ["no supervisor is running"]
        return [worker.sentence for worker in self.workers if not worker.alive or worker.hangs]

    def not_ready(self) -> list[str]:
        """Reasons why it takes no messages in."""
        if not self.workers:
            return self.not_alive()
        intake = [worker for worker in self.workers if worker.role in _INTAKE]
        stopped = [worker.sentence for worker in intake if not worker.alive or worker.hangs]
        if self.lost_inputs:
            stopped.append(self.lost_inputs)
        # A full quota stops one topic; messages of the others are taken in.
        if self.held:
            stopped.append("brucectl drain --stop-intake holds the intake")
        return stopped + ["the spool is full" for view in self.full if view.topic is None]
