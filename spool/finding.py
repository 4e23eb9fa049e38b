"""What a check of a spool finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Severity(StrEnum):
    """How bad a finding is."""

    DAMAGE = "damage"
    """Bytes are not as they were written, or contradict others."""
    NOTE = "note"
    """Nothing is wrong: what a crash leaves, and what the next start puts in order."""


class Kind(StrEnum):
    """What a finding is about. The values are part of `brucectl inspect verify --json`."""

    IDENTITY = "identity"
    """The file that names the spool's uuid is damaged, or names another than the segments."""
    UNREADABLE = "unreadable"
    """The operating system does not give a file's bytes."""
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
    """Messages, or whole segments, that were there are gone."""
    FRAME = "frame"
    """Bytes where a frame was, and no good one is."""
    CHAIN = "chain"
    """A frame that is good by itself, but does not follow the one before it."""
    DATAGRAM = "datagram"
    """A frame is as it was written, and what it holds is no list of datagrams."""
    GAP = "gap"
    """What a repair left for messages that are lost."""
    FOOTER = "footer"
    """The footer is damaged, or does not describe the frames."""
    TORN = "torn"
    """The last segment ends in a frame that was never finished."""
    INDEX = "index"
    """The index cannot be read, or does not match the segments."""
    MARKS = "marks"
    """The marks of what was delivered cannot be read, or do not match the segments."""
    OUTCOMES = "outcomes"
    """What a job delivered stands in a file that is damaged or of another spool, or not in the marks yet."""
    LEDGER = "ledger"
    """The counts of what was discarded while the spool was full cannot be read."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be, or that somebody should know."""

    path: Path
    offset: int
    """In bytes; 0 where the finding is about the whole file."""
    severity: Severity
    kind: Kind
    sentence: str
    """What is there, and what follows from it."""


def damage(path: Path, offset: int, kind: Kind, sentence: str) -> Finding:
    """A finding of damage."""
    return Finding(path, offset, Severity.DAMAGE, kind, sentence)
