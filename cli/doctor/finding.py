"""A finding: the result of one check of the doctor."""

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
