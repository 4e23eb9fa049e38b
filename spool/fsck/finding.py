"""Findings: the results of a check of a spool."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The names of kinds are in help texts, which load no NumPy.
    from spool.format.damage import Ranges


class Severity(StrEnum):
    """How bad a finding is."""

    DAMAGE = "damage"
    """Bytes are not as they were written, or contradict others."""
    NOTE = "note"
    """Nothing is wrong: a crash leaves this, and the next start puts it in order."""


class Kind(StrEnum):
    """The subject of a finding. The values are part of `brucectl inspect verify --json`."""

    IDENTITY = "identity"
    """The file that names the spool's uuid is damaged, or names another than the segments."""
    UNREADABLE = "unreadable"
    """The operating system cannot read a file."""
    HEADER = "header"
    """The file does not begin with a good segment header."""
    VERSION = "version"
    """Written by a newer release."""
    NAME = "name"
    """The file's name is not that of its first message."""
    FOREIGN = "foreign"
    """The segment belongs to another spool."""
    ORDER = "order"
    """The segment does not continue the one before it."""
    MISSING = "missing"
    """Messages, or whole segments, that existed are gone."""
    FRAME = "frame"
    """Bytes where a frame was, and no good frame is."""
    CHAIN = "chain"
    """A frame that is good by itself, but does not follow the one before it."""
    DATAGRAM = "datagram"
    """A frame is as it was written, but its content is no list of datagrams."""
    GAP = "gap"
    """A hole that a repair left for lost messages."""
    FOOTER = "footer"
    """The footer is damaged, or does not describe the frames."""
    TORN = "torn"
    """The last segment ends in a frame that was never finished."""
    INDEX = "index"
    """The index cannot be read, or does not match the segments."""
    MARKS = "marks"
    """The delivery marks cannot be read, or do not match the segments."""
    OUTCOMES = "outcomes"
    """A job's outcome file is damaged, belongs to another spool, or is not imported yet."""
    LEDGER = "ledger"
    """The counts of messages discarded while the spool was full cannot be read."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be, or that an operator should know."""

    path: Path
    offset: int
    """In bytes; 0 if the finding is about the whole file."""
    severity: Severity
    kind: Kind
    sentence: str
    """The problem, and what follows from it."""
    gone: Ranges | None = field(default=None, compare=False)
    """The messages that are gone from the log, no part of the JSON."""


def damage(path: Path, offset: int, kind: Kind, sentence: str, gone: Ranges | None = None) -> Finding:
    """A finding of damage."""
    return Finding(path, offset, Severity.DAMAGE, kind, sentence, gone)
