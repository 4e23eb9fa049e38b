"""Outcome import: outcomes that jobs report become marks, and their files go; so do their counts files.

For the process that owns `delivery/`, while it hands nothing over to Kafka. All that the files say is written
in one transaction, and they are removed when that is durable. A process that dies in between imports them
again, which changes nothing: a message is resolved once, and a discard counts with its first mark only.

A file that is damaged, of another spool, or about messages that were never stored goes to quarantine, and is
not believed: what it called delivered is sent again.

Executors have no discard file to write to. A message that they will not deliver is in their outcome files
with its reason, and stays open until it is durable in the discard file here, where there is one
(`JobDiscards`). A process that dies in between files FILED_AT_ONCE messages again, at most; its successor
sees by the marks what was done before. While the discard file cannot be written such outcome files stay until
their job ends; then what they called discarded is open again, and left to the next deliverer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from router.cluster.brokers import UNROUTED
from router.outcomes.acks import Acks
from router.outcomes.counts import DiscardLog
from router.outcomes.outcome_table import Eviction
from router.timing import STOP_S
from spool.errors import BadSpool
from spool.format.batch import Batch, Topics
from spool.format.wire import DEAD_LETTERED, Reason
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks.discard_file import DiscardFile, Records, encode_records
from spool.marks.discarded import MOST_COUNTS, SAMPLE_SLOTS
from spool.marks.marks import Marks
from spool.marks.outcome_file import SUFFIX, TAKEN, OutcomeFile, read_outcomes, settle
from spool.marks.outcomes import Judge, list_pending
from spool.marks.task_files import SUFFIX as COUNTS
from spool.marks.task_files import CountsFile, read_counts
from spool.read.reader import Reader
from spool.storage.disk import make_directory
from spool.storage.failpoint import reach

AT_ONCE = 1 << 22
"""Outcomes taken over in one transaction, beyond those of one file: 12 bytes of memory each."""
FILED_AT_ONCE = 1024
"""Messages written to the file by one sync, and marked by one transaction."""
FILED_BYTES = 8 << 20
"""Of their datagrams, beyond the last one's."""
_EVERYTHING = 1 << 62
_TOPIC_BITS = 32
_UNKNOWN = -1
"""The topic of a message that the log cannot give any more."""
_log = logging.getLogger("bruce.router")

Sequences = npt.NDArray[np.int64]
Reasons = npt.NDArray[np.int32]
Rows = npt.NDArray[np.intp]
File = TypeVar("File", OutcomeFile, CountsFile)


class Found(NamedTuple):
    """Files that can be believed, by path."""

    outcomes: dict[Path, OutcomeFile]
    counts: dict[Path, CountsFile]


class Nothing:
    """Replaces the pool of an owner that hands nothing over: nothing is in flight."""

    def lowest_in_flight(self) -> Sequences:
        """None."""
        return np.empty(0, np.int64)


class OutcomeImport:
    """The marks of a spool, and the files that go into them. It starts a thread: make it after forking."""

    def __init__(
        self,
        layout: Layout,
        spool: bytes,
        eviction: Eviction | None = None,
        *,
        file: DiscardFile | None = None,
        filed_at_once: int = FILED_AT_ONCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`spool`: its uuid. `eviction` gives up what the spool has no room for, delivered by a job or not.

        `file`: where discards go, beside being counted; `filed_at_once`: messages that one write takes.

        Raises lmdb.Error when the marks cannot be made.
        """
        self._layout, self._spool, self._eviction = layout, spool, eviction
        self._segment_list = SegmentList(layout)
        self._judge = Judge(layout, spool, self._segment_list)
        self._marks = Marks(layout.delivery, SegmentList(layout))
        self._acks = Acks(self._marks, self._segment_list)
        self._discards = JobDiscards(layout, spool, self._acks, file, filed_at_once)
        self._clock, self._file_at = clock, 0.0
        self._unfiled: set[Path] = set()
        """Files whose discards wait for the discard file, which is tried again at `_file_at`."""
        self._refused: set[Path] = set()
        """Files that are passed over: they could not be read, moved or removed."""

    @property
    def low_watermark(self) -> int:
        """Every message below this sequence is resolved, and marked so."""
        return self._acks.marked_watermark

    def take_counts(self) -> tuple[int, int]:
        """(delivered, discarded): how many messages were taken over since the last call."""
        return self._acks.take_counts()

    def step(self, keep: str = "") -> bool:
        """Take over the files that are there; False when some must stay, since marks could not be written.

        Their directories go too, but for that of the job that delivers now: `keep`. A task that is late, and
        writes into one that is gone, gets an error. Raises OSError.
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
        while self._eviction and self._eviction.step(self._acks, Nothing(), self._acks.low_watermark):
            continue
        return not self._acks.due() or self._write_down()

    @property
    def trouble(self) -> str:
        """Why discards wait, in one sentence; empty when none do."""
        return self._discards.trouble if self._unfiled else ""

    def _waits(self, path: Path, file: OutcomeFile, keep: str) -> bool:
        """Whether a file must stay, since the discard file did not take what it calls discarded."""
        count = int(self._acks.open(file.sequences[file.sequences >= self._acks.low_watermark]).sum())
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
        self._segment_list.refresh()
        found = Found({}, {})
        count = 0
        for path in sorted(set(list_pending(self._layout)) - self._refused - self._unfiled):
            if file := self._believe(path, read_outcomes, self._judge.judge):
                found.outcomes[path] = file
                count += len(file.sequences)
                if count >= AT_ONCE:
                    break
        # Behind them: what goes by a counts file comes after it, and may not be in the marks without it.
        for path in sorted(set(list_pending(self._layout, COUNTS)) - self._refused):
            if counts := self._believe(path, read_counts, self._judge_counts):
                found.counts[path] = counts
        return found if found.outcomes or found.counts else None

    def _believe(
        self, path: Path, read: Callable[[Path], File], judge: Callable[[Path, File], None]
    ) -> File | None:
        """The contents of a file; None when it was moved out of the way."""
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
        """Keep the evidence in quarantine, where no outcomes are imported from."""
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
        starts = [info.first_sequence for info in self._segment_list.segments[1:]]
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
            known = self._acks.history_of(topic)
            if not known or history[-1][0] > known[-1][0]:
                self._acks.note_partitions(topic, history)

    def _write_down(self) -> bool:
        """Write the marks; whether they are durable."""
        before = self._acks.generation
        self._acks.write_down({UNROUTED: self._acks.low_watermark})
        self._acks.wait()
        return self._acks.generation > before


class _Part(NamedTuple):
    """Messages for the file, of one batch."""

    rows: Rows
    """In what is taken over."""
    records: Records
    samples: list[tuple[int, int, int, bytes]]
    """Sequence, reason, number of the topic, and datagram, of some."""


class JobDiscards:
    """Takes discards over, for one spool."""

    def __init__(
        self, layout: Layout, spool: bytes, acks: Acks, file: DiscardFile | None, filed_at_once: int
    ) -> None:
        """`spool`: its uuid. `file`: None when discards are to be counted only."""
        self._filed_at_once = filed_at_once
        self._spool, self._acks, self._file = spool, acks, file
        self._topics = Topics()
        self._topics.bound(MOST_COUNTS)
        self._reader = Reader(SegmentList(layout), self._topics)
        self._samples: Counter[tuple[int, int]] = Counter()
        """By reason and topic, how many of those that are being taken over were kept."""
        self._log = DiscardLog()
        self._failed = False
        """Whether the file did not take something of what is being taken over."""
        self.trouble = ""
        """Why the file does not take them, in one sentence; empty when it does."""

    def flush(self) -> None:
        """Say in the log what is due."""
        self._log.flush()

    def close(self) -> None:
        """Let go of the segments, and log the last discards."""
        self._reader.close()
        self._log.close()

    def take_over(self, sequences: Sequences, reasons: Reasons) -> Iterator[None]:
        """Count these, in ascending order, by reason and topic; what is marked already is passed over.

        Behind each step the marks must be written down. When the file fails, `trouble` says so, and what
        should be in it stays open. Raises OSError when the log cannot be read.
        """
        fresh = self._acks.open(sequences)
        sequences, reasons = sequences[fresh], reasons[fresh]
        topics = np.full(len(sequences), _UNKNOWN, np.int64)
        left = np.ones(len(sequences), np.bool_)
        self._failed = False
        self._samples.clear()
        for rows in self._file_all(sequences, reasons, topics):
            self._count(sequences[rows], reasons[rows], topics[rows])
            left[rows] = False
            yield
        if self._failed:
            left &= ~self._belongs_there(reasons)
        self._count(sequences[left], reasons[left], topics[left])
        yield

    def _belongs_there(self, reasons: Reasons) -> npt.NDArray[np.bool_]:
        """Whether messages with these reasons go to the file: the others are in Kafka, or may be."""
        if self._file is None:
            return np.zeros(len(reasons), np.bool_)
        return (reasons < DEAD_LETTERED) & (reasons != Reason.UNCONFIRMED)

    # -- the file ---------------------------------------------------------------------------------------

    def _file_all(self, sequences: Sequences, reasons: Reasons, topics: Sequences) -> Iterator[Rows]:
        """Fill in the topics, and write to the file what belongs there: the rows that are in it by now."""
        held: list[_Part] = []
        count = size = 0
        for part in self._find(sequences, reasons, topics):
            if self._failed:
                continue
            held.append(part)
            count, size = count + len(part.rows), size + len(part.records.data)
            if count >= self._filed_at_once or size > FILED_BYTES:
                yield self._write(held)
                held, count, size = [], 0, 0
        if held and not self._failed:
            yield self._write(held)

    def _find(self, sequences: Sequences, reasons: Reasons, topics: Sequences) -> Iterator[_Part]:
        filed, now = self._belongs_there(reasons), time.time_ns()
        for rows, batch, found in self._look_up(sequences):
            topics[rows] = batch.topic[found]
            here = filed[rows]
            self._keep(self._samples_of(sequences[rows[~here]], reasons[rows[~here]], batch, found[~here]))
            for first in range(0, int(here.sum()), self._filed_at_once):
                some = slice(first, first + self._filed_at_once)
                mine, there = rows[here][some], found[here][some]
                records = encode_records(batch, there, reasons[mine], self._spool, now)
                samples = self._samples_of(sequences[mine], reasons[mine], batch, there)
                yield _Part(mine, records, samples)

    def _write(self, parts: Sequence[_Part]) -> Rows:
        """The rows of these, when they are in the file; none of them when it fails."""
        assert self._file
        try:
            self._file.append(Records.join([one.records for one in parts]))
        except (OSError, BadSpool) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            self._fail(
                f"the discard file {self._file.path} cannot be written ({reason}): make room, or take it "
                "out of [dispatch]; messages that jobs would discard wait for it"
            )
            return np.empty(0, np.intp)
        self.trouble = ""
        reach("adopt.filed")
        for part in parts:
            self._keep(part.samples)
        return np.concatenate([part.rows for part in parts])

    def _fail(self, why: str) -> None:
        """Leave open the messages that belong to the file and are not in it; without a file, none."""
        if self._file is not None:
            self._failed, self.trouble = True, why

    # -- counting ---------------------------------------------------------------------------------------

    def _count(self, sequences: Sequences, reasons: Reasons, topics: Sequences) -> None:
        for (reason, topic), rows in _groups(reasons, topics):
            name = b"" if topic == _UNKNOWN else self._topics.names[topic]
            if fresh := self._acks.discard(sequences[rows], reason, name):
                self._log.note(reason, name, int(sequences[rows[0]]), fresh)

    def _samples_of(
        self, sequences: Sequences, reasons: Reasons, batch: Batch, found: Rows
    ) -> list[tuple[int, int, int, bytes]]:
        return [
            (int(sequences[row]), reason, topic, batch.datagram(int(found[row])))
            for (reason, topic), same in _groups(reasons, batch.topic[found].astype(np.int64))
            for row in same[:SAMPLE_SLOTS].tolist()
        ]

    def _keep(self, samples: Iterable[tuple[int, int, int, bytes]]) -> None:
        for sequence, reason, topic, datagram in samples:
            if self._samples[reason, topic] < SAMPLE_SLOTS:
                self._samples[reason, topic] += 1
                self._acks.keep_sample(sequence, reason, self._topics.names[topic], datagram)

    def _look_up(self, sequences: Sequences) -> Iterator[tuple[Rows, Batch, Rows]]:
        """(rows of `sequences`, a batch, rows of the batch) of those that the log can give."""
        self._reader.allow(_EVERYTHING, 0)
        at = 0
        with contextlib.suppress(FileNotFoundError):
            while at < len(sequences):
                if sequences[at] != self._reader.sequence:
                    self._reader.seek(int(sequences[at]))
                batch = self._reader.next()
                self._reader.take_damage()
                for unread in self._reader.take_unread():
                    self._fail(f"{unread.error}; messages that jobs would discard wait for it")
                if batch is None:
                    return
                end = int(np.searchsorted(sequences, batch.sequence[-1], side="right"))
                found = np.searchsorted(batch.sequence, sequences[at:end])
                there = np.flatnonzero(batch.sequence[found] == sequences[at:end])
                yield at + there, batch, found[there]
                at = end


def _groups(reasons: Reasons, topics: Sequences) -> Iterator[tuple[tuple[int, int], Rows]]:
    """(reason, topic number), and the rows of each such pair, in order."""
    pairs = reasons.astype(np.int64) << _TOPIC_BITS | topics - _UNKNOWN
    kinds, which, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    parts = np.split(np.argsort(which, kind="stable"), np.cumsum(counts)[:-1])
    for kind, rows in zip(kinds.tolist(), parts, strict=False):
        yield (kind >> _TOPIC_BITS, (kind & (1 << _TOPIC_BITS) - 1) + _UNKNOWN), rows
