"""`brucectl doctor`: what is wrong on a host, or could be better: findings, each with its remedy.

A `Finding` is below, for those that only name it. Read `examination` first: it makes all checks. A check is
a pure function of what was read, and `look` of its module reads: `host`, `disk`, `spools`, `kafka`,
`witness`. A thing that cannot be read is a finding, and nothing is guessed from it. `plan` says how long
Kafka may be away. Nothing is changed.

Commands may import this folder. It imports `config`, `status` and `terminal`.

    for found in Examination(None).findings():
        print(found.level, found.sentence, found.remedy)
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    ADVICE = "advice"
    """It works, and could be better or safer."""
    PROBLEM = "problem"
    """It does not work, or loses what is promised."""
    UNKNOWN = "unknown"
    """The check could not be made."""


class Finding(NamedTuple):
    """How one thing is."""

    check: str
    """The subject: a word or two, the same on every host."""
    level: Level
    sentence: str
    remedy: str = ""
    """The advice to the operator; empty where there is nothing to do."""
