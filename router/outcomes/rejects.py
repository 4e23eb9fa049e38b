"""Messages that Kafka will never take: to the dead-letter topic, else to the discard file, else counted only.

They are read again from the log, since messages in flight are not kept. Until the topic or the file has a
message durably it is not resolved: a process that dies in between begins with it again. Meanwhile no other
message waits for them: they count as taken, so that both readers pass them over; the lowest of them keeps its
place in the offsets. Beyond MOST they are not kept in mind but read again, from the first such on.

A dead letter is the datagram as it was received, under the key of its message, with headers: reason, topic,
first and last attempt. Kafka can refuse that too, and for one of them all in its batch: so what comes back
refused goes alone before it is believed, and then is discarded for its own reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dispatch.errors import Code, name_of
from dispatch.options import UNKNOWN_TOPIC_S, DispatchOptions
from dispatch.pool import Outcomes
from dispatch.records import Letters
from dispatch.retry import Action, decide
from router.cluster.brokers import Kafka
from router.cluster.trouble import Trouble
from router.outcomes.counts import DiscardLog, DiscardNames, OpenCounts
from router.outcomes.outcome_table import OutcomeTable
from router.timing import DECLINED_S, PATIENCE_S, PAUSE_S, STOP_S
from spool.errors import BadSpool
from spool.format.batch import Batch, Topics
from spool.format.wire import DEAD_LETTERED, Reason
from spool.marks.discard_file import DiscardFile, encode_records
from spool.marks.discarded import MOST_COUNTS, SAMPLE_SLOTS
from spool.read.reader import Reader
from spool.words import waiting

MOST = 1 << 16
"""Kept in mind at once; 36 bytes each."""
AT_ONCE = 256
"""Dead letters in flight, and messages written to the discard file by one sync."""
POSTED_AT_ONCE = 64
"""Dead letters that a step hands over: others are delivered in between."""
SAMPLED = 16
"""Of messages that are discarded together, samples of so many topics and reasons are kept."""

ROW = np.dtype(
    [
        ("sequence", np.int64),
        ("first_ms", np.int64),  # of the first attempt, since the epoch
        ("last_ms", np.int64),  # of the last one
        ("reason", np.int32),  # spool.format.wire.Reason
        ("topic", np.int32),  # number of its topic in the router's table; -1: it has none
        ("name", np.int32),  # number of the name that it is counted under (router.outcomes.counts)
    ]
)


class RejectTable:
    """Messages that are given up, each once, as rows in the order of their sequences."""

    def __init__(self) -> None:
        self._rows: npt.NDArray[Any] = np.empty(0, ROW)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def sequences(self) -> npt.NDArray[np.int64]:
        """int64[rows], ascending."""
        return np.ascontiguousarray(self._rows["sequence"])

    def add(self, rows: npt.NDArray[Any]) -> None:
        """Keep these, too: ROW, in any order."""
        self._rows = np.concatenate([self._rows, rows])
        sequences = self._rows["sequence"]
        if (sequences[1:] < sequences[:-1]).any():
            self._rows = self._rows[np.argsort(sequences, kind="stable")]

    def rows(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The rows of these, which are in it; they ascend."""
        return self._rows[np.searchsorted(self._rows["sequence"], sequences)]

    def take(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The same; and take them out."""
        taken, count = self.rows(sequences), len(sequences)
        # Most often they are the first.
        first = count == 0 or int(self._rows["sequence"][count - 1]) == int(sequences[-1])
        self._rows = self._rows[count:] if first else self._rows[~np.isin(self._rows["sequence"], sequences)]
        return taken


class Found(NamedTuple):
    """Messages that were looked for: where they are, or that they are nowhere."""

    sequences: npt.NDArray[np.int64]
    """int64[messages], ascending."""
    batch: Batch | None
    """That has all of them, until the next look; None: they are damaged or gone, or, with no sequences, the
    disk gives an error for the first one at present."""
    rows: npt.NDArray[np.int64]
    """int64[messages]: of the batch."""


class Contents(Protocol):
    """Reads messages again, since they are not kept while in flight."""

    @property
    def topics(self) -> Topics:
        """The names of their topics, as the pool numbers them."""

    def read(self, wanted: npt.NDArray[np.int64], most: int) -> Found:
        """The lowest of these ascending sequences, and those that one look brings along; `most` at most."""

    def close(self) -> None:
        """Let go of the log."""


class LogContents:
    """Reads messages from the log, with a reader of its own."""

    def __init__(self, reader: Reader, committed: Callable[[], tuple[int, int]]) -> None:
        """`reader` is for this alone; `committed`: up to where the log may be read."""
        self._reader, self._committed = reader, committed
        self._batch: Batch | None = None
        """The batch that was read last."""

    @property
    def topics(self) -> Topics:
        return self._reader.topics

    def read(self, wanted: npt.NDArray[np.int64], most: int) -> Found:
        first = int(wanted[0])
        batch = self._batch
        if batch is None or not _has(batch, first):
            batch = self._batch = self._read_from(first)
        if batch is None and any(one.first <= first for one in self._reader.take_unread()):
            return _NOT_NOW
        if batch is None:
            return Found(wanted[:1], None, np.zeros(1, np.int64))
        chosen = wanted[:most]
        chosen = chosen[chosen <= batch.sequence[-1]]
        rows = np.searchsorted(batch.sequence, chosen)
        there = batch.sequence[rows] == chosen
        return Found(chosen[there], batch, rows[there])

    def close(self) -> None:
        self._reader.close()

    def _read_from(self, first: int) -> Batch | None:
        """The batch that begins there; None where the message is damaged or gone."""
        self._reader.allow(*self._committed())
        self._reader.take_unread()
        try:
            self._reader.seek(first)
            batch = self._reader.next()
        except FileNotFoundError:
            batch = None
        self._reader.take_damage()
        return batch if batch is not None and int(batch.sequence[0]) == first else None


_NOTHING: Final = np.empty(0, np.int64)
_NOT_NOW = Found(_NOTHING, None, _NOTHING)


def _has(batch: Batch, sequence: int) -> bool:
    at = int(np.searchsorted(batch.sequence, sequence))
    return at < len(batch) and int(batch.sequence[at]) == sequence


def discard_file_of(options: DispatchOptions) -> DiscardFile | None:
    """The discard file that a configuration names; None without one."""
    path = options.discard_file
    return DiscardFile(path, options.discard_file_bytes) if path else None


class Rejection(NamedTuple):
    """The treatment of messages that Kafka will never take."""

    dead_letter_topic: bytes = b""
    """Empty: none."""
    file: DiscardFile | None = None
    spool: bytes = bytes(16)
    """The spool's uuid, for the file."""
    grace_s: float = UNKNOWN_TOPIC_S
    """How long messages wait for a topic that Kafka does not know."""
    patience_s: float = PATIENCE_S
    """How long Kafka may not know the dead-letter topic before that is a complaint."""
    most: int = MOST
    """Messages kept in mind at once."""
    posted_at_once: int = POSTED_AT_ONCE
    """Dead letters that a step hands over."""
    names: int = MOST_COUNTS
    """Topics that discards are counted by; all others count together."""


class _Sample(NamedTuple):
    """The beginning of a discarded message, to be kept."""

    sequence: int
    reason: int
    name: int
    """Number of the name that it is counted under."""
    datagram: bytes


class _Filing(NamedTuple):
    """Messages that are being written to the discard file."""

    sequences: npt.NDArray[np.int64]
    samples: list[_Sample]
    task: Future[None]


class Rejects:
    """All messages that were given up and are not settled."""

    def __init__(
        self,
        contents: Contents,
        kafka: Kafka,
        acks: OutcomeTable,
        trouble: Trouble,
        rejection: Rejection,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._contents, self._names = contents, DiscardNames()
        self.acks = acks
        self._pool, self._capacity, self._metadata = kafka.pool, kafka.capacity, kafka.metadata
        self._trouble, self._clock = trouble, clock
        self._topic, self._file, self._spool = rejection.dead_letter_topic, rejection.file, rejection.spool
        self._patience_s, self._most = rejection.patience_s, rejection.most
        self._posted_at_once = rejection.posted_at_once
        self._log = DiscardLog(clock=clock)
        self._writer = ThreadPoolExecutor(1, "discards")
        self._filing: _Filing | None = None
        self._letters = RejectTable()
        """To be sent to the dead-letter topic."""
        self._singles: set[int] = set()
        """Of these, those that must go alone."""
        self._posted = RejectTable()
        self._alone = -1
        """The one that is out by itself."""
        self._discards = RejectTable()
        """To be discarded."""
        self._post_at = self._file_at = 0.0
        """Not before."""
        self._unknown_since = 0.0
        """Since when Kafka does not know the dead-letter topic; 0: it does."""
        self._turn = 0
        """Counts dead letters, so that the partitions get them in turn."""
        self._open_counts: OpenCounts | None = None
        self._over_from: int | None = None
        """The first that was not kept in mind."""
        self.moved = 0
        """Messages given up since the start."""

    def count_by(self, names: DiscardNames, open_counts: OpenCounts | None) -> None:
        """Count discards under these names, and in `open_counts`. Call it before anything is given up."""
        self._names, self._open_counts = names, open_counts

    def __len__(self) -> int:
        return len(self._letters) + len(self._posted) + len(self._discards)

    def add(
        self, sequences: npt.NDArray[np.int64], reason: int, topics: Sequence[bytes], first_ms: Sequence[int]
    ) -> None:
        """Give messages up; `topics` and `first_ms`, the first attempts, one a message."""
        if reason == Reason.UNCONFIRMED:
            # It may be in Kafka, and must not be sent again.
            for topic in set(topics):
                self.discard(sequences[[one == topic for one in topics]], reason, topic)
            return
        known = {name: (self._contents.topics.find(name), self._names.number(name)) for name in set(topics)}
        some = slice(self.room)
        rows = np.zeros(len(sequences[some]), ROW)
        rows["sequence"], rows["reason"], rows["first_ms"] = sequences[some], reason, first_ms[some]
        rows["topic"] = [known[name][0] for name in topics[some]]
        rows["name"] = [known[name][1] for name in topics[some]]
        self._keep(rows, np.array([name != self._topic for name in topics[some]], np.bool_))
        self._leave(sequences[len(rows) :])

    def add_rows(
        self, batch: Batch, rows: npt.NDArray[np.int64], reason: int, first_ms: Callable[[int], int]
    ) -> None:
        """Give up rows of a batch; `first_ms`: the first attempt of a topic, by number."""
        if not (self._topic or self._file):
            self.drop_rows(batch, rows, reason)
            return
        # No more than there is room for is looked at: the rest comes again, from its first on.
        some, rest = np.split(rows, [self.room])
        topics, of = np.unique(batch.topic[some], return_inverse=True)
        kept = np.zeros(len(some), ROW)
        kept["sequence"], kept["reason"] = batch.sequence[some], reason
        kept["first_ms"] = np.array([first_ms(topic) for topic in topics.tolist()], np.int64)[of]
        kept["topic"], kept["name"] = batch.topic[some], self._names.numbers(batch, some)
        self._keep(kept, batch.topic[some] != batch.topics.find(self._topic))
        self._leave(batch.sequence[rest])

    @property
    def room(self) -> int:
        """How many more may be kept in mind."""
        return max(0, self._most - len(self))

    def _keep(self, rows: npt.NDArray[Any], others: npt.NDArray[np.bool_]) -> None:
        """Keep these in mind; `others`: which are not of the dead-letter topic itself."""
        rows["last_ms"] = time.time_ns() // 1_000_000
        letters = others & bool(self._topic)
        self._letters.add(rows[letters])
        self._discards.add(rows[~letters])
        self.acks.take(np.ascontiguousarray(rows["sequence"]))
        self.moved += len(rows)

    def _leave(self, sequences: npt.NDArray[np.int64]) -> None:
        """These are to be read again."""
        if len(sequences):
            self.acks.give_back(sequences)
            lowest = int(sequences.min())
            self._over_from = lowest if self._over_from is None else min(lowest, self._over_from)

    def drop_rows(self, batch: Batch, rows: npt.NDArray[np.int64], reason: int) -> None:
        """Discard rows at once: nothing is to be waited for, and there may be very many, of any topics."""
        rows = rows[self.acks.unresolved(batch.sequence[rows])]
        if not len(rows):
            return
        sequences, numbers = batch.sequence[rows], self._names.numbers(batch, rows)
        self._keep_samples(_samples(Found(sequences, batch, rows), np.full(len(rows), reason), numbers))
        self.acks.discard(sequences, reason, self._names.count(numbers))
        if self._open_counts:
            self._open_counts.note_resolved(batch.topic[rows])
        name = self._names.name(int(numbers[0])) if (numbers == numbers[0]).all() else b""
        self._log.note(reason, name, int(sequences[0]), len(rows))
        self.moved += len(rows)

    def discard(self, sequences: npt.NDArray[np.int64], reason: int, topic: bytes) -> None:
        """Count messages of one topic as discarded at once, those that were not before."""
        count = self.acks.discard(sequences, reason, topic)
        if self._open_counts:
            self._open_counts.note_discarded(topic, count)
        if count:
            self._log.note(reason, topic, int(sequences[0]), count)
        self.moved += count

    def lowest(self) -> list[int]:
        """Sequences below which nothing is unsettled here."""
        tables = self._letters, self._posted, self._discards
        return [
            *(int(table.sequences[0]) for table in tables if table),
            *([] if self._over_from is None else [self._over_from]),
        ]

    def step(self) -> bool:
        """Do what can be done without waiting; False when there was nothing."""
        self._log.flush()
        if not len(self):
            return False
        return self._finish_filing() | self._post_some() | self._discard_some()

    def take_over(self) -> int | None:
        """The first sequence of those that were not kept in mind, once there is room for them; None: none."""
        if self._over_from is None or len(self) > self._most // 2:
            return None
        start, self._over_from = self._over_from, None
        return start

    def close(self) -> None:
        """Wait for what is being written, and log the last discards."""
        self._writer.shutdown()
        self._contents.close()
        self._log.close()

    # -- dead letters -----------------------------------------------------------------------------------

    def _post_some(self) -> bool:
        if not self._letters or self._alone >= 0 or self._clock() < self._post_at:
            return False
        flats = self._dead_letter_partitions()
        if len(flats) == 0 or (self._singles and self._posted):
            return False
        alone = bool(self._singles)
        room = 1 if alone else min(self._posted_at_once, AT_ONCE - len(self._posted))
        if room == 0:
            return False
        wanted = np.array(sorted(self._singles)) if alone else self._letters.sequences
        found = self._contents.read(wanted, room)
        if not len(found.sequences):
            self._post_at = self._clock() + STOP_S
            return False
        rows = self._letters.take(found.sequences)
        if found.batch is None:
            self._singles.difference_update(found.sequences.tolist())
            self._discards.add(rows)
        else:
            columns = (np.ascontiguousarray(rows[name]) for name in ("reason", "first_ms", "last_ms"))
            self._post(rows, Letters(found.batch, found.rows, *columns), flats, alone=alone)
        return True

    def _post(
        self, rows: npt.NDArray[Any], letters: Letters, flats: npt.NDArray[np.int64], *, alone: bool
    ) -> None:
        """Hand these over, to the partitions in turn; `alone`: one that was refused."""
        turns = np.arange(self._turn, self._turn + len(rows)) % len(flats)
        self._turn += len(rows)
        codes = self._pool.post(letters, flats[turns].astype(np.int32))
        self._posted.add(rows[codes == 0])
        if alone and codes[0] == 0:
            self._alone = int(rows["sequence"][0])
            self._singles.discard(self._alone)
        # librdkafka says of each alone what it says.
        self._come_back(rows[codes != 0], codes[codes != 0], alone=True)

    def _dead_letter_partitions(self) -> npt.NDArray[np.int64]:
        """Flat numbers of those that can be sent to now."""
        topic = self._contents.topics.add(self._topic)
        if not self._pool.partitions.count_of(topic):
            self._metadata.want([self._topic])
            self._post_at = self._clock() + PAUSE_S
            self._unknown_since = self._unknown_since or self._clock()
            if self._clock() - self._unknown_since >= self._patience_s:
                self._complain(f"Kafka does not know {self._name()}: create it")
            return np.empty(0, np.int64)
        self._unknown_since = 0.0
        flats = self._pool.partitions.ever_of_topic(topic)
        return flats[self._capacity.led()[flats]]

    @property
    def awaits_letters(self) -> bool:
        """Whether dead letters are in flight."""
        return len(self._posted) > 0

    def settle(self, outcomes: Outcomes) -> npt.NDArray[np.bool_]:
        """Take note of what became of dead letters; which of the outcomes are theirs."""
        if not self._posted:
            return np.zeros(len(outcomes.rows), np.bool_)
        ours = np.isin(outcomes.sequence, self._posted.sequences)
        if not ours.any():
            return ours
        sequences, codes = outcomes.sequence[ours], outcomes.code[ours]
        alone, refused = self._alone, codes != 0
        if alone in sequences:
            self._alone = -1
        if not refused.all():
            self._count(self._posted.take(np.sort(sequences[~refused])), DEAD_LETTERED)
            self._trouble.take_back("dead letters")
        for mine in (refused & (sequences == alone), refused & (sequences != alone)):
            order = np.argsort(sequences[mine])
            rows = self._posted.take(sequences[mine][order])
            self._come_back(rows, codes[mine][order], alone=bool((rows["sequence"] == alone).any()))
        return ours

    def _come_back(self, rows: npt.NDArray[Any], codes: npt.NDArray[np.int32], *, alone: bool) -> None:
        """Dead letters were not taken; `alone`: each for what it is itself."""
        for code in np.unique(codes).tolist():
            some, decision = rows[codes == code], decide(code)
            if decision.action is Action.DISCARD and alone:
                self._singles.difference_update(some["sequence"].tolist())
                self._discards.add(some)
                continue
            self._letters.add(some)
            if decision.action is Action.DISCARD:
                self._singles.update(some["sequence"].tolist())
            elif code == Code.QUEUE_FULL:
                self._post_at = self._clock() + DECLINED_S
            else:
                stop = decision.action is Action.STOP
                self._post_at = self._clock() + (STOP_S if stop else PAUSE_S)
                self._complain(f"messages to {self._name()} come back with {name_of(code)}, {decision.why}")

    def _complain(self, words: str) -> None:
        self._trouble.complain("dead letters", f"{words}; {waiting(len(self._letters))} for it")

    def _name(self) -> str:
        return f"the dead-letter topic {self._topic.decode()}"

    # -- discards ---------------------------------------------------------------------------------------

    def _discard_some(self) -> bool:
        if not self._discards or self._filing or self._clock() < self._file_at:
            return False
        found = self._contents.read(self._discards.sequences, AT_ONCE)
        if not len(found.sequences):
            # Only the file needs what they hold.
            if self._file is not None:
                self._file_at = self._clock() + STOP_S
                return False
            found = Found(self._discards.sequences[:1], None, np.zeros(1, np.int64))
        rows = self._discards.rows(found.sequences)
        samples = _samples(found, rows["reason"], rows["name"])
        if self._file is None or found.batch is None:
            self._discard(found.sequences, samples)
            return True
        records = encode_records(found.batch, found.rows, rows["reason"], self._spool, time.time_ns())
        task = self._writer.submit(self._file.append, records)
        self._filing = _Filing(found.sequences, samples, task)
        return True

    def _finish_filing(self) -> bool:
        if self._filing is None or not self._filing.task.done():
            return False
        filing, self._filing = self._filing, None
        try:
            filing.task.result()
        except (OSError, BadSpool) as error:
            assert self._file
            reason = error.strerror if isinstance(error, OSError) else error
            self._trouble.complain(
                "discards",
                f"the discard file {self._file.path} cannot be written ({reason}): make room, or take it out "
                f"of [dispatch] and restart; {waiting(len(self._discards))} for it",
            )
            self._file_at = self._clock() + STOP_S
            return False
        self._trouble.take_back("discards")
        self._discard(filing.sequences, filing.samples)
        return True

    def _discard(self, sequences: npt.NDArray[np.int64], samples: list[_Sample]) -> None:
        """Count these as discarded, and keep their samples."""
        self._keep_samples(samples)
        self._count(self._discards.take(sequences))

    def _keep_samples(self, samples: list[_Sample]) -> None:
        for sequence, reason, name, datagram in samples:
            self.acks.keep_sample(sequence, reason, self._names.name(name), datagram)

    def _count(self, rows: npt.NDArray[Any], flag: int = 0) -> None:
        """These are done with, each for its reason, to which `flag` is added."""
        rows = rows[self.acks.unresolved(np.ascontiguousarray(rows["sequence"]))]
        for reason in np.unique(rows["reason"]).tolist():
            some = rows[rows["reason"] == reason]
            sequences, names = np.ascontiguousarray(some["sequence"]), self._names.count(some["name"])
            self.acks.discard(sequences, reason | flag, names)
            if self._open_counts:
                self._open_counts.note_resolved(some["topic"][some["topic"] >= 0])
            name = next(iter(names)) if len(names) == 1 else b""
            self._log.note(reason | flag, name, int(sequences[0]), len(some))
            self.moved += len(some)


def _samples(
    found: Found, reasons: npt.NDArray[np.integer[Any]], names: npt.NDArray[np.integer[Any]]
) -> list[_Sample]:
    """Of these messages the first few, for some reasons and topics, since there may be very many."""
    whys = np.asarray(reasons, np.int64) << 32 | names
    samples = []
    for why in np.unique(whys)[:SAMPLED].tolist():
        for at in np.flatnonzero(whys == why)[:SAMPLE_SLOTS].tolist():
            datagram = found.batch.datagram(int(found.rows[at])) if found.batch else b""
            samples.append(_Sample(int(found.sequences[at]), int(reasons[at]), int(names[at]), datagram))
    return samples
