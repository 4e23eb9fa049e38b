"""The paths of a spool: every file name is built and parsed here.

    SPOOL/identity            the spool's uuid, one line; its host, another
    SPOOL/lock                flock: one daemon a spool
    SPOOL/hold                flock: the process that has stopped the intake, while it lives
    SPOOL/ledger              datagrams discarded while the spool was full
    SPOOL/ledger.synced       the same, as of its last sync
    SPOOL/refused             totals of datagrams refused at intake, of segments that are gone
    SPOOL/senders             totals by sender, as of the last second in which a message came
    SPOOL/sums                what must be in Kafka of segments that are gone; `sums.1`: of earlier ones
    SPOOL/ages                when segments were delivered, if they are kept for a time
    SPOOL/segments/           NUMBER.spare   allocated; not in use yet, or too lately to have its name
                              SEQUENCE.seg   named by the sequence number of its first message
                              SEQUENCE.sent  the same, every message delivered
    SPOOL/index/              the committed end, and LMDB; derived from the segments
    SPOOL/delivery/           LMDB, the marks; `owner` is the flock of the process that writes them
                              `lease` is that of a job which asks to deliver, `grant` the answer, `lanes` says
                              which transactional tasks of jobs may have outcomes that are not written down,
                              `lateness` how late messages of each topic may come to Kafka, `topics` how
                              many partitions topics have that clients of the Kafka input use
    SPOOL/delivery/outcomes/  outcomes of jobs on Spark, until they are imported into the marks
    SPOOL/quarantine/         copies of bytes that were cut off or could not be used

Numbers have 20 digits, so that the order of names is the order of messages.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

SEGMENT, SENT, SPARE = ".seg", ".sent", ".spare"
_DIGITS = 20
_LISTINGS = 100
"""While a thousand segments are retired, one after the other, every listing differs from the one before."""


def segment_name(first_sequence: int, suffix: str = SEGMENT) -> str:
    """The name of the segment that begins with this sequence number (of a spare: the segment number)."""
    return f"{first_sequence:0{_DIGITS}d}{suffix}"


def parse_name(name: str) -> tuple[int, str] | None:
    """(number, suffix) of a segment's name; None for any other name."""
    stem, dot, ending = name.partition(".")
    suffix = dot + ending
    whole = len(stem) == _DIGITS and stem.isascii() and stem.isdigit()
    if suffix not in (SEGMENT, SENT, SPARE) or not whole:
        return None
    return int(stem), suffix


def copy_of_ledger(ledger: Path) -> Path:
    """The path of the synced copy of a ledger."""
    return ledger.with_name(f"{ledger.name}.synced")


def older(path: Path) -> Path:
    """The path of the older generation of a file, which the younger one becomes when it has grown long."""
    return path.with_name(f"{path.name}.1")


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one spool."""

    directory: Path

    @property
    def identity(self) -> Path:
        """The file of the spool's uuid and host."""
        return self.directory / "identity"

    @property
    def lock(self) -> Path:
        """The file whose flock the spool's daemon holds."""
        return self.directory / "lock"

    @property
    def hold(self) -> Path:
        """The file whose flock the process holds that has stopped the intake."""
        return self.directory / "hold"

    @property
    def ledger(self) -> Path:
        """The file that counts datagrams discarded while the spool was full."""
        return self.directory / "ledger"

    @property
    def refused(self) -> Path:
        """The file of the intake discard totals."""
        return self.directory / "refused"

    @property
    def senders(self) -> Path:
        """The file of the totals by sender."""
        return self.directory / "senders"

    @property
    def sums(self) -> Path:
        """The book of sums: what must be in Kafka of segments that are gone."""
        return self.directory / "sums"

    @property
    def ages(self) -> Path:
        """The file that says when segments were delivered."""
        return self.directory / "ages"

    @property
    def segments(self) -> Path:
        """The directory of the segments."""
        return self.directory / "segments"

    @property
    def index(self) -> Path:
        """The directory of the index."""
        return self.directory / "index"

    @property
    def delivery(self) -> Path:
        """The directory of the marks, and of who delivers."""
        return self.directory / "delivery"

    @property
    def owner(self) -> Path:
        """The file whose flock the process holds that writes the marks."""
        return self.delivery / "owner"

    @property
    def lease(self) -> Path:
        """The file of the job that asks to deliver."""
        return self.delivery / "lease"

    @property
    def grant(self) -> Path:
        """The file of the answer to it."""
        return self.delivery / "grant"

    @property
    def transactional_tasks(self) -> Path:
        """The file of the transactional tasks of jobs."""
        return self.delivery / "lanes"

    @property
    def lateness(self) -> Path:
        """The file that says how late messages of each topic may come to Kafka."""
        return self.delivery / "lateness"

    @property
    def topics(self) -> Path:
        """The file that says how many partitions topics have that clients of the Kafka input use."""
        return self.delivery / "topics"

    @property
    def outcomes(self) -> Path:
        """The directory of outcomes of jobs, until they are imported."""
        return self.delivery / "outcomes"

    @property
    def quarantine(self) -> Path:
        """The directory of bytes that could not be used."""
        return self.directory / "quarantine"

    def segment(self, first_sequence: int, suffix: str = SEGMENT) -> Path:
        """The path of a segment, or with SPARE that of the spare with this segment number."""
        return self.segments / segment_name(first_sequence, suffix)

    def list_segments(self) -> list[tuple[int, str]]:
        """(first sequence, suffix) of the named segments, in order; other files are passed over."""
        return sorted(pair for pair, is_file in self._named() if pair[1] != SPARE and is_file)

    def list_strangers(self) -> list[Path]:
        """Paths with a name of a segment or a spare but no file, in order: a directory, a pipe, a link."""
        return sorted(self.segment(*pair) for pair, is_file in self._named() if not is_file)

    def list_spares(self) -> list[int]:
        """The numbers of the spares, in order."""
        return sorted(pair[0] for pair, is_file in self._named() if pair[1] == SPARE and is_file)

    def _named(self) -> list[tuple[tuple[int, str], bool]]:
        """((number, suffix), whether it is a file) of each path with a name of a segment or a spare."""
        try:
            entries = self._entries()
            for _ in range(_LISTINGS):
                before, entries = entries.keys(), self._entries()
                if entries.keys() == before:
                    break
        except FileNotFoundError:
            return []
        found = ((parse_name(name), entry) for name, entry in entries.items())
        return [(pair, entry.is_file(follow_symlinks=False)) for pair, entry in found if pair]

    def _entries(self) -> dict[str, os.DirEntry[str]]:
        """The directory's entries by name, from one listing.

        That of a large directory takes several system calls. A file that is renamed between them may come
        twice, by both names, or not at all; a second listing differs then.
        """
        with os.scandir(self.segments) as entries:
            return {entry.name: entry for entry in entries}


SETTLED_NS = 2_000_000_000
"""A filesystem may count time in steps, and give changes within one the same mtime; none has longer steps."""


class SegmentNames:
    """The named segments of a spool, for a process that asks for them many times a second."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._directory = layout, os.fspath(layout.segments)
        self._named: list[tuple[int, str]] = []
        self._changed_ns = -1
        """The directory's mtime as of the last look; -1: look again."""

    def look(self) -> list[tuple[int, str]]:
        """Layout.list_segments, which looks only after a change; the same object if nothing has changed."""
        try:
            changed_ns = os.stat(self._directory).st_mtime_ns
        except OSError:
            changed_ns = -1
        if changed_ns < 0 or changed_ns != self._changed_ns:
            begun_ns = time.time_ns()
            named = self._layout.list_segments()
            self._named = self._named if named == self._named else named
            self._changed_ns = changed_ns if begun_ns - changed_ns > SETTLED_NS else -1
        return self._named
