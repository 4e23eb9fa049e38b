"""Messages that Kafka will never take: to the dead-letter topic, else to the discard file, else counted only.

They are read again from the log, since nobody keeps what is in flight. Until the one or the other has a
message durably it is not resolved: whoever dies in between begins with it anew. Meanwhile nobody waits for
them: they count as taken, so that both readers pass them over; the lowest of them keeps its place in the
offsets. Beyond MOST they are not kept in mind but come by again, from `over_from` on.

A dead letter is the datagram as it was received, under the key of its message, with headers: reason, topic,
first and last attempt. Kafka can refuse that too, and for one of them all in its batch: so what comes back
refused goes alone before it is believed, and then is discarded for its own reason.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dispatch.codes import name_of
from dispatch.letters import Letter
from dispatch.pool import Outcomes
from dispatch.retry import Action, decide
from router.contents import UNREADABLE, Content, Contents
from router.discard_log import DiscardLog
from router.discard_names import DiscardNames
from router.ends import Kafka
from router.open_counts import OpenCounts
from router.trouble import PATIENCE_S, Trouble
from router.unknown import GRACE_S
from spool.discard_file import DiscardFile, GivenUp
from spool.discarded import SAMPLE_SLOTS
from spool.errors import BadSpool
from spool.record import Batch
from spool.wire import DEAD_LETTERED, Reason, reason_name

MOST = 1 << 16
"""Kept in mind at once; about 300 bytes each."""
AT_ONCE = 256
"""Dead letters in flight, and messages written to the discard file by one sync."""
SAMPLED_TOPICS = 16
"""Of a batch that is discarded, samples of so many topics are kept."""
PAUSE_S = 0.5
STOP_S = 5.0
"""Before it is tried again, after an error that passes, or that somebody has to mend."""


class Rejection(NamedTuple):
    """What is done with messages that Kafka will never take."""

    dead_letter_topic: bytes = b""
    """Empty: none."""
    file: DiscardFile | None = None
    spool: bytes = bytes(16)
    """The spool's uuid, for the file."""
    grace_s: float = GRACE_S
    """How long messages wait for a topic that Kafka does not know."""


class Fates(Protocol):
    """Where it is noted what becomes of messages: `router.acks` says how."""

    def take(self, sequences: npt.NDArray[np.int64]) -> None: ...

    def give_back(self, sequences: npt.NDArray[np.int64]) -> None: ...

    def unresolved(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]: ...

    def discard(
        self, sequences: npt.NDArray[np.int64], reason: int, topic: bytes | Mapping[bytes, int]
    ) -> int: ...

    def keep_sample(self, sequence: int, reason: int, topic: bytes, datagram: bytes) -> None: ...


Book = TypeVar("Book", bound=Fates)


class Reject(NamedTuple):
    """Why one message was given up. Times in ms since the epoch."""

    reason: int
    topic: bytes
    first_ms: int
    last_ms: int


_Filing = tuple[dict[int, Content], Future[None]]


class Rejects(Generic[Book]):
    """All that are not settled."""

    def __init__(
        self,
        contents: Contents,
        kafka: Kafka,
        acks: Book,
        trouble: Trouble,
        rejection: Rejection,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._contents, self.names = contents, DiscardNames()
        self.acks = acks
        _, self._pool, self._room, self._metadata = kafka
        self._trouble, self._clock = trouble, clock
        self._topic, self._file, self._spool, _ = rejection
        self.log = DiscardLog(clock=clock)
        self._writer = ThreadPoolExecutor(1, "discards")
        self._filing: _Filing | None = None
        self._letters: dict[int, Reject] = {}
        """To be sent to the dead-letter topic, by sequence."""
        self._suspects: set[int] = set()
        """Of these, those that must go alone."""
        self._posted: dict[int, Reject] = {}
        self._alone = -1
        """The one that is out by itself."""
        self._discards: dict[int, Reject] = {}
        """To be discarded, by sequence."""
        self._post_at = self._file_at = 0.0
        """Not before."""
        self._unknown_since = 0.0
        """Since when Kafka does not know the dead-letter topic; 0: it does."""
        self._turn = itertools.count()
        self.shares: OpenCounts | None = None
        """Counts what is open of topics with a quota."""
        self.over_from: int | None = None
        """The first that was not kept in mind."""
        self.moved = 0

    def __len__(self) -> int:
        return len(self._letters) + len(self._posted) + len(self._discards)

    def add(
        self, sequences: npt.NDArray[np.int64], reason: int, topics: Sequence[bytes], first_ms: Sequence[int]
    ) -> None:
        """Give messages up; `topics` and `first_ms`, the first attempts, one a message."""
        if reason == Reason.UNCONFIRMED:
            # It may be in Kafka: nobody is to send it again.
            for topic in set(topics):
                self.discard(sequences[[one == topic for one in topics]], reason, topic)
            return
        now = time.time_ns() // 1_000_000
        taken = sequences[: max(0, MOST - len(self))]
        for sequence, topic, first in zip(taken.tolist(), topics, first_ms, strict=False):
            kind = self._letters if self._topic and topic != self._topic else self._discards
            kind[sequence] = Reject(reason, topic, first, now)
        self.acks.take(taken)
        self.moved += len(taken)
        left = sequences[len(taken) :]
        if len(left):
            self.acks.give_back(left)
            lowest = int(left.min())
            self.over_from = lowest if self.over_from is None else min(lowest, self.over_from)

    def add_rows(
        self, batch: Batch, rows: npt.NDArray[np.int64], reason: int, first_ms: Callable[[int], int]
    ) -> None:
        """Give up rows of a batch; `first_ms`: the first attempt of a topic, by number."""
        if not (self._topic or self._file):
            self.drop_rows(batch, rows, reason)
            return
        # No more than there is room for is looked at: the rest comes again, from its first on.
        some = rows[: max(0, MOST - len(self))].tolist()
        names = [batch.topic_name(row) for row in some]
        self.add(batch.sequence[rows], reason, names, [first_ms(int(batch.topic[row])) for row in some])

    def drop_rows(self, batch: Batch, rows: npt.NDArray[np.int64], reason: int) -> None:
        """Discard rows at once: nothing is to be waited for, and there may be very many, of any topics."""
        rows = rows[self.acks.unresolved(batch.sequence[rows])]
        if not len(rows):
            return
        sequences, numbers = batch.sequence[rows], self.names.numbers(batch, rows)
        found = np.unique(numbers)
        for number in found[:SAMPLED_TOPICS].tolist():
            name = self.names.name(number)
            for row in rows[numbers == number][:SAMPLE_SLOTS].tolist():
                self.acks.keep_sample(int(batch.sequence[row]), reason, name, batch.datagram(row))
        self.acks.discard(sequences, reason, self.names.count(numbers))
        if self.shares:
            self.shares.note_resolved(batch.topic[rows])
        name = self.names.name(int(found[0])) if len(found) == 1 else b""
        self.log.note(reason, name, int(sequences[0]), len(rows))
        self.moved += len(rows)

    def discard(self, sequences: npt.NDArray[np.int64], reason: int, topic: bytes) -> None:
        """Count messages of one topic as discarded at once, those that were not before."""
        count = self.acks.discard(sequences, reason, topic)
        if self.shares:
            self.shares.note_discarded(topic, count)
        if count:
            self.log.note(reason, topic, int(sequences[0]), count)
        self.moved += count

    def lowest(self) -> list[int]:
        """Sequences below which nothing is unsettled here."""
        kept = (min(some) for some in (self._letters, self._posted, self._discards) if some)
        return [*kept, *([] if self.over_from is None else [self.over_from])]

    def step(self) -> bool:
        """Do what can be done without waiting; False when there was nothing."""
        self.log.flush()
        if not len(self):
            return False
        return self._finish_filing() | self._post_some() | self._discard_some()

    def take_over(self) -> int | None:
        """Where to come by again for those that were not kept in mind, once there is room; None: nowhere."""
        if self.over_from is None or len(self) > MOST // 2:
            return None
        start, self.over_from = self.over_from, None
        return start

    def close(self) -> None:
        """Wait for what is being written."""
        self._writer.shutdown()

    # -- dead letters -----------------------------------------------------------------------------------

    def _post_some(self) -> bool:
        if not self._letters or self._alone >= 0 or self._clock() < self._post_at:
            return False
        flats = self._dead_letter_partitions()
        if len(flats) == 0 or (self._suspects and self._posted):
            return False
        room = 1 if self._suspects else AT_ONCE - len(self._posted)
        candidates = self._suspects or self._letters
        found = self._contents.read(candidates, room) if room else {}
        for sequence, content in found.items():
            if not self._post(sequence, content, int(flats[next(self._turn) % len(flats)])):
                break
        return bool(found)

    def _dead_letter_partitions(self) -> npt.NDArray[np.int64]:
        """Flat numbers of those that can be sent to now."""
        topic = self._contents.topics.add(self._topic)
        counts = self._pool.partitions.partitions_of
        if topic >= len(counts) or counts[topic] == 0:
            self._metadata.want([self._topic])
            self._post_at = self._clock() + PAUSE_S
            self._unknown_since = self._unknown_since or self._clock()
            if self._clock() - self._unknown_since >= PATIENCE_S:
                self._complain(f"Kafka does not know {self._name()}: create it")
            return np.empty(0, np.int64)
        self._unknown_since = 0.0
        rows = self._pool.partitions.rows[: self._pool.partitions.count]
        return np.flatnonzero(self._room.led() & (rows["topic"] == topic))

    def _post(self, sequence: int, content: Content, flat: int) -> bool:
        """Hand over one; False when no more can be."""
        reject = self._letters.pop(sequence)
        if content is UNREADABLE:
            self._suspects.discard(sequence)
            self._discards[sequence] = reject
            return True
        code = self._pool.post(_letter(sequence, reject, content), flat)
        if code == 0:
            self._posted[sequence] = reject
            if self._suspects:
                self._suspects.discard(sequence)
                self._alone = sequence
            return True
        # librdkafka says of this one alone what it says.
        self._come_back(sequence, reject, code, alone=True)
        return decide(code).action is Action.DISCARD

    def settle(self, outcomes: Outcomes) -> npt.NDArray[np.bool_]:
        """Take note of what became of dead letters; which of the outcomes are theirs."""
        if not self._posted:
            return np.zeros(len(outcomes.sequence), np.bool_)
        ours = np.isin(outcomes.sequence, np.fromiter(self._posted, np.int64))
        for sequence, code in zip(
            outcomes.sequence[ours].tolist(), outcomes.code[ours].tolist(), strict=True
        ):
            reject, alone = self._posted.pop(sequence), sequence == self._alone
            if alone:
                self._alone = -1
            if code:
                self._come_back(sequence, reject, code, alone=alone)
            else:
                self._count(sequence, reject.reason | DEAD_LETTERED, reject.topic)
                self._trouble.noted.pop("dead letters", None)
        return ours

    def _come_back(self, sequence: int, reject: Reject, code: int, *, alone: bool) -> None:
        """A dead letter was not taken."""
        decision = decide(code)
        if decision.action is Action.DISCARD and alone:
            self._suspects.discard(sequence)
            self._discards[sequence] = reject
            return
        self._letters[sequence] = reject
        if decision.action is Action.DISCARD:
            self._suspects.add(sequence)
            return
        stop = decision.action is Action.STOP
        self._post_at = self._clock() + (STOP_S if stop else PAUSE_S)
        self._complain(f"messages to {self._name()} come back with {name_of(code)}, {decision.why}")

    def _complain(self, words: str) -> None:
        self._trouble.noted["dead letters"] = f"{words}; {len(self._letters)} messages wait for it"

    def _name(self) -> str:
        return f"the dead-letter topic {self._topic.decode()}"

    # -- discards ---------------------------------------------------------------------------------------

    def _discard_some(self) -> bool:
        if not self._discards or self._filing or self._clock() < self._file_at:
            return False
        found = self._contents.read(self._discards, AT_ONCE)
        if self._file is None:
            self._discard(found)
            return True
        now = time.time_ns()
        messages = [
            GivenUp(self._spool, sequence, self._discards[sequence].reason, now, content.datagram)
            for sequence, content in found.items()
            if content is not UNREADABLE
        ]
        self._filing = found, self._writer.submit(self._file.append, messages)
        return True

    def _finish_filing(self) -> bool:
        if self._filing is None or not self._filing[1].done():
            return False
        found, done = self._filing
        self._filing = None
        try:
            done.result()
        except (OSError, BadSpool) as error:
            assert self._file
            reason = error.strerror if isinstance(error, OSError) else error
            self._trouble.noted["discards"] = (
                f"the discard file {self._file.path} cannot be written ({reason}): make room, or take it out "
                f"of [dispatch] and restart; {len(self._discards)} messages wait for it"
            )
            self._file_at = self._clock() + STOP_S
            return False
        self._trouble.noted.pop("discards", None)
        self._discard(found)
        return True

    def _discard(self, found: dict[int, Content]) -> None:
        """Count these as discarded, and keep samples of some."""
        sampled: dict[tuple[int, bytes], int] = {}
        for sequence, content in found.items():
            reject = self._discards.pop(sequence)
            key = reject.reason, reject.topic
            sampled[key] = sampled.get(key, 0) + 1
            if sampled[key] <= SAMPLE_SLOTS:
                self.acks.keep_sample(sequence, *key, content.datagram)
            self._count(sequence, *key)

    def _count(self, sequence: int, reason: int, topic: bytes) -> None:
        self.discard(np.array([sequence]), reason, topic)


def _letter(sequence: int, reject: Reject, content: Content) -> Letter:
    headers = [
        (b"bruce-reason", reason_name(reject.reason).encode()),
        (b"bruce-topic", reject.topic),
        (b"bruce-first-attempt", b"%d" % reject.first_ms),
        (b"bruce-last-attempt", b"%d" % reject.last_ms),
    ]
    # Not the message's own timestamp: that may be what it was refused for.
    now = time.time_ns() // 1_000_000
    return Letter(sequence, now, content.key, content.datagram, headers, reject.reason, reject.topic)
