"""Taking over what jobs delivered: their outcome files become marks, and go; so do their counts files.

For whoever owns `delivery/`, while nothing is handed over to Kafka here. What the files say is written in one
transaction, and they are removed when that is durable; who dies in between takes them over again, which
changes nothing: a message is resolved once, and a discard counts with its first mark only.

What is damaged, of another spool, or speaks of messages that were never stored goes to quarantine, and is not
believed: what it called delivered is sent again.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from router.acks import UNROUTED, Acks
from router.discard_log import DiscardLog
from router.eviction import Eviction
from spool.catalogue import Catalogue
from spool.counts_file import SUFFIX as COUNTS
from spool.counts_file import CountsFile, read_counts
from spool.crash_point import reach
from spool.discarded import SAMPLE_SLOTS
from spool.disk import make_directory
from spool.errors import BadSpool
from spool.layout import Layout
from spool.marks import Marks
from spool.outcome_file import SUFFIX, TAKEN, OutcomeFile, read_outcomes, settle
from spool.reader import Reader
from spool.record import Batch, Topics
from spool.unadopted import Judge, list_unadopted

AT_ONCE = 1 << 22
"""Outcomes taken over in one transaction, beyond those of one file: 12 bytes of memory each."""
_EVERYTHING = 1 << 62
_TOPIC_BITS = 32
_UNKNOWN = -1
"""The topic of a message that the log cannot give any more."""
_log = logging.getLogger("bruce.router")

Sequences = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]
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

    def __init__(self, layout: Layout, spool: bytes, eviction: Eviction | None = None) -> None:
        """`spool`: its uuid. `eviction` gives up what the spool has no room for, delivered by a job or not.

        Raises lmdb.Error when the marks cannot be made.
        """
        self._layout, self._spool, self._eviction = layout, spool, eviction
        self._catalogue = Catalogue(layout)
        self._judge = Judge(layout, spool, self._catalogue)
        self._marks = Marks(layout.delivery, Catalogue(layout))
        self._acks = Acks(self._marks, self._catalogue)
        self._topics = Topics()
        self._reader = Reader(Catalogue(layout), self._topics)
        self._discard_log = DiscardLog()
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
        while found := self._read_some():
            if not self._take_over(*found):
                return False
            for path in found.outcomes:
                self._put_away(path, keep)
            for path in found.counts:
                self._put_away(path)
            reach("adopt.removed")
        self._remove_directories(keep)
        self._discard_log.flush()
        while self._eviction and self._eviction.step(self._acks, Nothing(), self._acks.floor):
            continue
        return not self._acks.due() or self._write_down()

    def close(self) -> None:
        """Let go of the marks."""
        self._reader.close()
        self._acks.close()
        self._marks.close()

    # -- files ------------------------------------------------------------------------------------------

    def _read_some(self) -> Found | None:
        """The next files that can be believed, as many as go into one transaction; None: there are none."""
        self._catalogue.refresh()
        found = Found({}, {})
        count = 0
        for path in sorted(set(list_unadopted(self._layout)) - self._refused):
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
        if len(settled.discarded):
            self._discard(settled.discarded, settled.reasons)
        durable = self._write_down()
        if durable:
            reach("adopt.marked")
        return durable

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

    def _discard(self, sequences: Sequences, reasons: npt.NDArray[np.int32]) -> None:
        """Count these, in ascending order, as discarded: by reason and topic, with samples."""
        topics = np.full(len(sequences), _UNKNOWN, np.int64)
        samples: Counter[tuple[int, int]] = Counter()
        for rows, batch, found in self._look_up(sequences):
            topics[rows] = batch.topic[found]
            for key, same in _groups(reasons[rows], topics[rows]):
                for i in same[: SAMPLE_SLOTS - samples[key]].tolist():
                    name = batch.topics.names[key[1]]
                    datagram = batch.datagram(int(found[i]))
                    self._acks.keep_sample(int(sequences[rows[i]]), key[0], name, datagram)
                samples[key] = min(SAMPLE_SLOTS, samples[key] + len(same))
        for (reason, topic), rows in _groups(reasons, topics):
            name = b"" if topic == _UNKNOWN else self._topics.names[topic]
            if fresh := self._acks.discard(sequences[rows], reason, name):
                self._discard_log.note(reason, name, int(sequences[rows[0]]), fresh)

    def _look_up(self, sequences: Sequences) -> Iterator[tuple[Rows, Batch, Rows]]:
        """(rows of `sequences`, a batch, rows of the batch) of those that the log can give."""
        self._reader.allow(_EVERYTHING, 0)
        at = 0
        with contextlib.suppress(FileNotFoundError):
            while at < len(sequences):
                if sequences[at] != self._reader.sequence:
                    self._reader.seek(int(sequences[at]))
                batch = self._reader.next()
                self._reader.damage.clear()
                if batch is None:
                    return
                end = int(np.searchsorted(sequences, batch.sequence[-1], side="right"))
                found = np.searchsorted(batch.sequence, sequences[at:end])
                there = np.flatnonzero(batch.sequence[found] == sequences[at:end])
                yield at + there, batch, found[there]
                at = end


def _groups(
    reasons: npt.NDArray[np.int32], topics: npt.NDArray[np.int64]
) -> Iterator[tuple[tuple[int, int], Rows]]:
    """(reason, topic number), and the rows of each such pair, in order."""
    pairs = reasons.astype(np.int64) << _TOPIC_BITS | topics - _UNKNOWN
    kinds, which, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    parts = np.split(np.argsort(which, kind="stable"), np.cumsum(counts)[:-1])
    for kind, rows in zip(kinds.tolist(), parts, strict=False):
        yield (kind >> _TOPIC_BITS, (kind & (1 << _TOPIC_BITS) - 1) + _UNKNOWN), rows
