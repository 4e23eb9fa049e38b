"""`brucectl doctor`: what is wrong on this host, or could be better."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands.arguments import ConfigFile, examples
from cli.terminal import errors

if TYPE_CHECKING:
    from cli.doctor import Finding
    from cli.doctor.plan import Plan

EXAMPLES = examples(
    "brucectl doctor",
    "brucectl doctor --plan",
    "brucectl doctor --json | jq -r '.findings[] | select(.level == \"problem\").remedy'",
)
VERSION = 2
_MUCH_S = 86400
"""From less than a day, its busiest hour is not known."""


def doctor(
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Say how long Kafka may be away, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    config: ConfigFile = None,
) -> None:
    """Look for what is wrong on this host, or could be better, and say what to do. Nothing is changed.

    It checks: packages of others that have the names of bruce's, and whether brucectl spark can run; the
    configuration; what the kernel lets bruce have (net.unix.max_dgram_qlen, locked memory, room for staging,
    the clock); the disk of the spool, its filesystem, and the owners of its files; what the daemon says is
    wrong; spools of other configurations that no daemon looks after; librdkafka, whether brokers answer
    within 10 s, and whether Kafka has the topics that the configuration names; where [witness] names one,
    whether the witness is at work, and what it misses. It needs no root: what this user may not see is said.

    With --plan: hours of outage per GiB of disk, of the whole spool, and of what is free of it, at the mean
    rate and at that of the busiest hour, by all that the spool keeps, compressed as its packed segments are;
    and the topics that would delete, or refuse, messages that come as late as that.

    A problem that two checks find is reported once.

    Prints a line a check. With --json one document of version 2: ok (nothing is a problem), findings: check,
    level (ok, advice, problem, unknown: it could not be checked), sentence, remedy (may be empty); plan, null
    without --plan or a rate: measured_seconds, compression (ratio of bytes on disk to those of the log;
    known_by: packed, sample or none), room_bytes (for what is undelivered), left_bytes; mean and
    busiest_hour, each with messages_per_second, bytes_per_second, hours_per_gib, hours, hours_left.
    Exits with 1 when a finding is a problem.
    """
    from spool.native.kernel import interpret_at_first

    interpret_at_first()
    from cli.doctor import Level
    from cli.doctor.examination import Examination
    from cli.terminal.output import show_json, show_sentences

    examination = Examination(config, plan=plan)
    if as_json:
        findings = list(_once(examination.findings()))
        made = examination.plan
        document = {
            "version": VERSION,
            "ok": all(found.level is not Level.PROBLEM for found in findings),
            "findings": [found._asdict() for found in findings],
            "plan": None if made is None else dataclasses.asdict(made),
        }
        show_json(document)
    else:
        findings = []
        for found in _once(examination.findings()):
            findings.append(found)
            show_sentences([(found.level.value, "; ".join(filter(None, found[2:])))])
        if examination.plan is not None:
            _show_plan(examination.plan)
    if any(found.level is Level.PROBLEM for found in findings):
        raise typer.Exit(errors.FOUND)


def _once(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Without problems that an earlier check has named."""
    from cli.doctor import Level

    said = set[str]()
    for found in findings:
        # The daemon may have asked another broker, which the sentence names in brackets.
        cause = found.sentence.partition(" (")[0]
        if found.level is not Level.PROBLEM or cause not in said:
            yield found
        said.add(cause)


_KNOWN_BY = {
    "packed": "as its packed segments are",
    "sample": "as a part of it was on trial",
    "none": "with nothing compressed",
}


def _show_plan(plan: Plan) -> None:
    from cli.terminal.output import Amount, say, show_rows
    from spool.words import counted, size_in_words
    from status.health import in_words

    seconds, ratio, mean, busiest = (
        plan.measured_seconds,
        plan.compression.ratio,
        plan.mean,
        plan.busiest_hour,
    )
    messages = counted(round(mean.messages_per_second * seconds), "message")
    say(
        f"\nReckoned from {messages} ({size_in_words(mean.bytes_per_second * seconds)}) that this spool "
        f"keeps,\nreceived within {in_words(seconds)}, {_KNOWN_BY[plan.compression.known_by]}: {ratio:.2f} "
        "bytes of disk for each that comes in."
    )
    if seconds < _MUCH_S:
        say("That is little: ask again when it has a day.")
    gib = size_in_words(plan.room_bytes)
    sizes = (Amount(size_in_words(load.bytes_per_second)) for load in (mean, busiest))
    rows = (
        ("messages a second", round(mean.messages_per_second, 2), round(busiest.messages_per_second, 2)),
        ("bytes a second", *sizes),
        ("hours of outage per GiB of disk", round(mean.hours_per_gib, 2), round(busiest.hours_per_gib, 2)),
        (f"hours of outage, whole spool, {gib}", round(mean.hours, 2), round(busiest.hours, 2)),
        ("hours of outage, what is free now", round(mean.hours_left, 2), round(busiest.hours_left, 2)),
    )
    show_rows(("", "mean", "busiest hour"), rows)
