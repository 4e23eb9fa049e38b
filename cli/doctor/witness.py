"""The witness that this host shows: whether it is at work, and its verdict."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

from cli.doctor import Finding, Level
from spool.words import agreeing, counted
from status.witness import Witness, WitnessView, summed

NAME = "witness"


def look(directory: Path | None) -> Iterator[Finding]:
    """All checks of the witness in this directory; none without one."""
    if directory is not None:
        yield from check_witness(Witness(directory).look(), directory)


def check_witness(found: WitnessView, directory: Path) -> Iterator[Finding]:
    """Whether the witness writes its document, reads all tiers, and has found every message."""
    wrong = [*_check_document(found, directory), *_check_tiers(found)]
    if found.loss:
        wrong.append(Finding(NAME, Level.PROBLEM, found.loss, "see which by brucectl audit --witness"))
    yield from wrong
    if not wrong:
        every, lag = summed(tier.verdict for tier in found.tiers), sum(tier.lag for tier in found.tiers)
        judged, tiers = counted(every.judged, "message"), counted(len(found.tiers), "tier")
        late = f", {every.late:,} late" if every.late else ""
        yield Finding(
            NAME,
            Level.OK,
            f"the witness has judged {judged} in {tiers}: nothing is missing{late}; "
            f"{agreeing(lag, 'offset')} not read yet",
        )


def _check_document(found: WitnessView, directory: Path) -> Iterator[Finding]:
    if not found.problem:
        return
    if found.errno in (errno.EACCES, errno.EPERM):
        remedy = "ask again as root, or as the user that the witness runs as"
        yield Finding(NAME, Level.UNKNOWN, found.problem, remedy)
        return
    remedy = f"see whether brucectl witness run is at work in {directory}, and what it says"
    yield Finding(NAME, Level.PROBLEM, found.problem, remedy)


def _check_tiers(found: WitnessView) -> Iterator[Finding]:
    for sentence in found.unread:
        yield Finding(NAME, Level.PROBLEM, sentence, "its messages are judged when it can be read again")
    for tier in found.tiers:
        if tier.skipped:
            yield Finding(
                NAME,
                Level.ADVICE,
                f"tier {tier.tier} deleted {counted(tier.skipped, 'offset')} before the witness read them",
                "let the witness run all the time, or raise retention.ms of the topics",
            )
