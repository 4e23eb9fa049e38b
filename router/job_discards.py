"""Discards that jobs report: into the discard file, where there is one, then counted, with samples.

Executors have no file to write to; what they will not deliver stands in their outcome files with its reason,
and stays open until the owner of the marks has it in the file, durably. Who dies in between files AT_ONCE
messages again, at most, and whoever takes over sees by the marks what was done before.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.options import DispatchOptions
from router.acks import Acks
from router.discard_log import DiscardLog
from spool.catalogue import Catalogue
from spool.crash_point import reach
from spool.discard_file import DiscardFile, GivenUp
from spool.discarded import MOST_COUNTS, SAMPLE_SLOTS
from spool.errors import BadSpool
from spool.layout import Layout
from spool.reader import Reader
from spool.record import Batch, Topics
from spool.wire import DEAD_LETTERED, Reason

AT_ONCE = 1024
"""Messages written to the file by one sync, and marked by one transaction."""
MOST_BYTES = 8 << 20
"""Of their datagrams, beyond the last one's."""
_EVERYTHING = 1 << 62
_TOPIC_BITS = 32
_UNKNOWN = -1
"""The topic of a message that the log cannot give any more."""

Sequences = npt.NDArray[np.int64]
Reasons = npt.NDArray[np.int32]
Rows = npt.NDArray[np.intp]


def discard_file_of(options: DispatchOptions) -> DiscardFile | None:
    """The file that a configuration names."""
    path = options.discard_file
    return DiscardFile(path, options.discard_file_bytes) if path else None


class _Found(NamedTuple):
    """A message for the file, and its row in what is taken over."""

    row: int
    message: GivenUp


class JobDiscards:
    """Takes discards over, for one spool."""

    def __init__(self, layout: Layout, spool: bytes, acks: Acks, file: DiscardFile | None) -> None:
        """`spool`: its uuid. `file`: None when discards are to be counted only."""
        self._spool, self._acks, self._file = spool, acks, file
        self._topics = Topics()
        self._topics.bound(MOST_COUNTS)
        self._reader = Reader(Catalogue(layout), self._topics)
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
        """Let go of the segments."""
        self._reader.close()

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
        held: list[_Found] = []
        size = 0
        for one in self._find(sequences, reasons, topics):
            if self._failed:
                continue
            held.append(one)
            size += len(one.message.datagram)
            if len(held) == AT_ONCE or size > MOST_BYTES:
                yield self._write(held, topics)
                held, size = [], 0
        if held and not self._failed:
            yield self._write(held, topics)

    def _find(self, sequences: Sequences, reasons: Reasons, topics: Sequences) -> Iterator[_Found]:
        filed, now = self._belongs_there(reasons), time.time_ns()
        for rows, batch, found in self._look_up(sequences):
            topics[rows] = batch.topic[found]
            here = filed[rows]
            self._sample_some(sequences[rows[~here]], reasons[rows[~here]], batch, found[~here])
            for row, at in zip(rows[here].tolist(), found[here].tolist(), strict=True):
                sequence, reason = int(sequences[row]), int(reasons[row])
                yield _Found(row, GivenUp(self._spool, sequence, reason, now, batch.datagram(at)))

    def _write(self, found: Sequence[_Found], topics: Sequences) -> Rows:
        """The rows of these, when they are in the file; none of them when it fails."""
        assert self._file
        try:
            self._file.append([one.message for one in found])
        except (OSError, BadSpool) as error:
            self._failed = True
            reason = error.strerror if isinstance(error, OSError) else error
            self.trouble = (
                f"the discard file {self._file.path} cannot be written ({reason}): make room, or take it "
                "out of [dispatch]; messages that jobs would discard wait for it"
            )
            return np.empty(0, np.intp)
        self.trouble = ""
        reach("adopt.filed")
        for row, message in found:
            self._sample(message.sequence, message.reason, int(topics[row]), message.datagram)
        return np.array([one.row for one in found], np.intp)

    # -- counting ---------------------------------------------------------------------------------------

    def _count(self, sequences: Sequences, reasons: Reasons, topics: Sequences) -> None:
        for (reason, topic), rows in _groups(reasons, topics):
            name = b"" if topic == _UNKNOWN else self._topics.names[topic]
            if fresh := self._acks.discard(sequences[rows], reason, name):
                self._log.note(reason, name, int(sequences[rows[0]]), fresh)

    def _sample_some(self, sequences: Sequences, reasons: Reasons, batch: Batch, found: Rows) -> None:
        for (reason, topic), same in _groups(reasons, batch.topic[found].astype(np.int64)):
            for row in same[:SAMPLE_SLOTS].tolist():
                self._sample(int(sequences[row]), reason, topic, batch.datagram(int(found[row])))

    def _sample(self, sequence: int, reason: int, topic: int, datagram: bytes) -> None:
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
                self._reader.damage.clear()
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
