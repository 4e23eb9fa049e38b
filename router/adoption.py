"""Taking over what jobs delivered: their outcome files become marks, and go; so do their counts files.

For whoever owns `delivery/`, while nothing is handed over to Kafka here. What the files say is written in one
transaction, and they are removed when that is durable; who dies in between takes them over again, which
changes nothing: a message is resolved once, and a discard counts with its first mark only.

What is damaged, of another spool, or speaks of messages that were never stored goes to quarantine, and is not
believed: what it called delivered is sent again.

Where there is a discard file, what tasks discarded goes there first (`router.job_discards`). While it cannot
be written their outcome files stay, as long as their job delivers; then what they called discarded is open
again, and left to who delivers next.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from router.acks import UNROUTED, Acks
from router.eviction import Eviction
from router.job_discards import JobDiscards
from spool.catalogue import Catalogue
from spool.counts_file import SUFFIX as COUNTS
from spool.counts_file import CountsFile, read_counts
from spool.crash_point import reach
from spool.discard_file import DiscardFile
from spool.disk import make_directory
from spool.errors import BadSpool
from spool.layout import Layout
from spool.marks import Marks
from spool.outcome_file import SUFFIX, TAKEN, OutcomeFile, read_outcomes, settle
from spool.unadopted import Judge, list_unadopted

AT_ONCE = 1 << 22
"""Outcomes taken over in one transaction, beyond those of one file: 12 bytes of memory each."""
STOP_S = 5.0
"""Before the discard file is tried again."""
_log = logging.getLogger("bruce.router")

Sequences = npt.NDArray[np.int64]
File = TypeVar("File", OutcomeFile, CountsFile)


class Found(NamedTuple):
    """Files that can be believed, by path."""

    outcomes: dict[Path, OutcomeFile]
    counts: dict[Path, CountsFile]


class Nothing:
    """What is in flight of an owner who hands nothing over."""

    def lowest_in_flight(self) -> Sequences:
        """None."""
        return np.empty(0, np.int64)


class Adoption:
    """The marks of a spool, and the files that go into them. It starts a thread: make it after forking."""

    def __init__(
        self,
        layout: Layout,
        spool: bytes,
        eviction: Eviction | None = None,
        *,
        file: DiscardFile | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`spool`: its uuid. `eviction` gives up what the spool has no room for, delivered by a job or not.

        `file`: where discards go, beside being counted.

        Raises lmdb.Error when the marks cannot be made.
        """
        self._layout, self._spool, self._eviction = layout, spool, eviction
        self._catalogue = Catalogue(layout)
        self._judge = Judge(layout, spool, self._catalogue)
        self._marks = Marks(layout.delivery, Catalogue(layout))
        self._acks = Acks(self._marks, self._catalogue)
        self._discards = JobDiscards(layout, spool, self._acks, file)
        self._clock, self._file_at = clock, 0.0
        self._unfiled: set[Path] = set()
        """Files whose discards wait for the discard file, which is tried again at `_file_at`."""
        self._refused: set[Path] = set()
        """Files that are passed over: they could not be read, moved or removed."""

    @property
    def floor(self) -> int:
        """Every message below this sequence is resolved, and marked so."""
        return self._acks.marked_floor

    def take_counts(self) -> tuple[int, int]:
        """(delivered, discarded): how many messages were taken over since the last call."""
        return self._acks.take_counts()

    def step(self, keep: str = "") -> bool:
        """Take over the files that are there; False when some must stay, since marks could not be written.

        Their directories go too, but for that of the job that delivers now: `keep`. Who is late, and writes
        into one that is gone, is told by an error. Raises OSError.
        """
        if self._clock() >= self._file_at or any(path.parent.name != keep for path in self._unfiled):
            self._unfiled.clear()
        while found := self._read_some():
            if not self._take_over(*found):
                return False
            for path, file in found.outcomes.items():
                if not self._waits(path, file, keep):
                    self._put_away(path, keep)
            for path in found.counts:
                self._put_away(path)
            reach("adopt.removed")
        self._remove_directories(keep)
        self._discards.flush()
        while self._eviction and self._eviction.step(self._acks, Nothing(), self._acks.floor):
            continue
        return not self._acks.due() or self._write_down()

    @property
    def trouble(self) -> str:
        """Why discards wait, in one sentence; empty when none do."""
        return self._discards.trouble if self._unfiled else ""

    def _waits(self, path: Path, file: OutcomeFile, keep: str) -> bool:
        """Whether a file must stay, since the discard file did not take what it calls discarded."""
        count = int(self._acks.open(file.sequences[file.sequences >= self._acks.floor]).sum())
        if not count:
            return False
        if path.parent.name == keep:
            self._unfiled.add(path)
            self._file_at = self._clock() + STOP_S
            return True
        _log.error("%s; the job is over, and %d of them are open again", self._discards.trouble, count)
        return False

    def close(self) -> None:
        """Let go of the marks."""
        self._discards.close()
        self._acks.close()
        self._marks.close()

    # -- files ------------------------------------------------------------------------------------------

    def _read_some(self) -> Found | None:
        """The next files that can be believed, as many as go into one transaction; None: there are none."""
        self._catalogue.refresh()
        found = Found({}, {})
        count = 0
        for path in sorted(set(list_unadopted(self._layout)) - self._refused - self._unfiled):
            if file := self._believe(path, read_outcomes, self._judge.judge):
                found.outcomes[path] = file
                count += len(file.sequences)
                if count >= AT_ONCE:
                    break
        # Behind them: what goes by a counts file comes after it, and may not be in the marks without it.
        for path in sorted(set(self._layout.outcomes.rglob(f"*{COUNTS}")) - self._refused):
            if counts := self._believe(path, read_counts, self._judge_counts):
                found.counts[path] = counts
        return found if found.outcomes or found.counts else None

    def _believe(
        self, path: Path, read: Callable[[Path], File], judge: Callable[[Path, File], None]
    ) -> File | None:
        """What a file says; None when it is out of the way."""
        try:
            file = read(path)
            judge(path, file)
        except BadSpool as error:
            self._refuse(path, error)
        except OSError as error:
            self._leave(path, f"cannot be read: {error.strerror}")
        else:
            return file
        return None

    def _judge_counts(self, path: Path, file: CountsFile) -> None:
        if file.spool != self._spool:
            raise BadSpool(f"{path} is of the spool {file.spool.hex()}, and not of this one")

    def end(self) -> int:
        """Behind the last message of the log."""
        return self._judge.end()

    def _refuse(self, path: Path, error: BadSpool) -> None:
        """Keep the evidence where nobody takes it for more."""
        _log.error("%s; it is moved to quarantine, and what it called delivered is sent again", error)
        try:
            make_directory(self._layout.quarantine)
            os.rename(path, self._layout.quarantine / path.name)
        except OSError as failure:
            self._leave(path, f"cannot be moved: {failure.strerror}")

    def _put_away(self, path: Path, keep: str = "") -> None:
        """Keep what the job that delivers now may ask for, when it tries a task again; remove the rest."""
        try:
            if path.parent.name == keep:
                path.replace(path.with_suffix(TAKEN))
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            self._leave(path, f"cannot be removed: {error.strerror}")

    def _leave(self, path: Path, why: str) -> None:
        """Pass a file over until the next owner comes; that it is taken over again does no harm."""
        _log.error("%s %s; have jobs run as the user or in the group of bruce", path, why)
        self._refused.add(path)

    def _remove_directories(self, keep: str) -> None:
        """Remove the directories of jobs that deliver no more, and what they left half written."""
        for directory in self._layout.outcomes.glob("*/"):
            if directory.name == keep:
                continue
            # With a file that has come meanwhile it is not empty, and goes the next time.
            with contextlib.suppress(OSError):
                for path in directory.iterdir():
                    if path.suffix != SUFFIX:
                        path.unlink(missing_ok=True)
                directory.rmdir()

    # -- marks ------------------------------------------------------------------------------------------

    def _take_over(self, outcomes: Mapping[Path, OutcomeFile], counts: Mapping[Path, CountsFile]) -> bool:
        """Write down what they say; whether that is durable."""
        for file in counts.values():
            self._learn(file)
        settled = settle(list(outcomes.values()))
        # Segment by segment: there may be thousands, and to look for each in all of them takes seconds.
        starts = [info.first_sequence for info in self._catalogue.segments[1:]]
        for part in np.split(settled.delivered, np.searchsorted(settled.delivered, starts)):
            self._acks.resolve(part)
        for _ in self._discards.take_over(settled.discarded, settled.reasons):
            if not self._write_down():
                return False
        reach("adopt.marked")
        return True

    def _learn(self, file: CountsFile) -> None:
        """Remember counts that the marks do not have; they may have been taken over before, and gone on."""
        for topic, history in file.histories.items():
            known = self._acks.partitions.get(topic)
            if known is None or history[-1][0] > known[-1][0]:
                self._acks.note_partitions(topic, history)

    def _write_down(self) -> bool:
        """Write the marks; whether they are durable."""
        before = self._acks.generation
        self._acks.write_down({UNROUTED: self._acks.floor})
        self._acks.wait()
        return self._acks.generation > before
