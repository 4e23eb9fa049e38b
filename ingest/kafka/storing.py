"""A ProduceRequest on its way into the log, and what is known of it: the answer is for the worker to send.

    judge     the head of each batch is checked, and looked up among those that its producer sent before
    write     its records are decompressed, checked, and become messages in a lane; a large batch takes
              several runs, and is decompressed for each: memory is that of one batch, for all clients
    settle    the run is taken: what is stored is noted for the producer, before the lane is used again

While a request has a producer's batch in hand, the same producer's batch by another connection waits for it.
A batch that a producer sends again is not stored again: the answer is that of the first time. If only its
beginning is in the log, since a process was killed or the rest was refused, the rest is stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ingest.access import NO_ID
from ingest.kafka.compression import Decompressor
from ingest.kafka.errors import Code
from ingest.kafka.lanes import Frame, Lane
from ingest.kafka.produce import Answer, Part, ProduceRequest
from ingest.kafka.producers import Batch, Producer, Producers, Range
from ingest.kafka.record_batch import (
    HEAD_BYTES,
    NO_PRODUCER,
    BadBatch,
    Head,
    Source,
    Wrong,
    check_records,
    skip_records,
)
from spool.format.wire import Reason
from spool.log.quotas import is_over
from spool.native.memory import Address, address_of
from spool.options import WhenFull
from spool.shared.state import Field
from spool.words import counted

MOST_TIMEOUT_S = 600.0
"""A client's own time, at most, for an answer that waits for delivery."""
LARGE_BYTES = 64 << 10
"""Of records, for which a lane gets all its memory."""
STEP_BYTES = 16 << 20
"""Decompressed for one client before others have their turn."""
_COMPRESSED = 4
"""So many times as large compressed records are taken for, before they are decompressed."""
_RUN_BITS, _LANE_BITS = 16, 10
_LANES, _FRAMES = (1 << _RUN_BITS - _LANE_BITS) - 1, (1 << _LANE_BITS) - 1
"""Masks of the lane's number, and of how many Batches precede, in `run` of a producer's batch."""
_SENTENCES = {
    Wrong.RECORDS: (Code.INVALID_RECORD, "the records do not fit their batch"),
    Wrong.HEADERS: (
        Code.INVALID_RECORD,
        "bruce takes up to 256 headers a record, with names of up to 255 bytes of UTF-8",
    ),
    Wrong.TOO_LARGE: (Code.MESSAGE_TOO_LARGE, "a record is larger than [ingest] max_stream_message_bytes"),
    Wrong.LENGTH: (Code.CORRUPT_MESSAGE, "the length of the batch is wrong"),
    Wrong.MAGIC: (Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, "bruce takes record batches of format 2"),
    Wrong.CRC: (Code.CORRUPT_MESSAGE, "the checksum of the batch is wrong"),
    Wrong.CODEC: (Code.UNSUPPORTED_COMPRESSION_TYPE, "Kafka has no such codec"),
    # Java's client splits the batch then, and sends the halves.
    Wrong.UNPACKED: (
        Code.MESSAGE_TOO_LARGE,
        "the records of the batch are more than 16 MiB, or cannot be decompressed",
    ),
    Wrong.TRANSACTION: (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "bruce takes no transactions"),
    Wrong.CONTROL: (Code.INVALID_RECORD, "the batch is of a kind that only brokers write"),
}
_REFUSALS = {
    Reason.SPOOL_FULL: (Code.NOT_ENOUGH_REPLICAS, "bruce's spool is full; send it again later"),
    Reason.OVER_QUOTA: (Code.NOT_ENOUGH_REPLICAS, "the topic has used its quota of bruce's spool"),
    Reason.NOT_PERMITTED: (Code.TOPIC_AUTHORIZATION_FAILED, "[access] does not permit it by TCP"),
}
_OTHERWISE = (Code.INVALID_RECORD, "bruce does not store it: see `brucectl discards`")


@dataclass(slots=True)
class Batching:
    """The batch of one partition."""

    part: Part
    answer: Answer = field(default_factory=Answer)
    is_new: bool = False
    """The topic is one that Kafka does not have yet: its partitioner chooses."""
    head: Head | None = None
    is_checked: bool = False
    """Each of its records can be stored."""
    at: int = 0
    left: int = 0
    """Records that are not written yet, from this offset on; none when there is nothing to store."""
    producer: Producer | None = None
    batch: Batch | None = None
    frames: range = range(0)
    """Which of the Batches of the lane's run are its."""
    is_counted: bool = False
    """The log counts it as discarded."""
    is_stored_now: bool = False
    """Something of it was stored for this request."""
    ranges: list[Range] = field(default_factory=list)
    """Its messages in the log."""
    end: int = 0
    """The sequence behind the last of them."""

    def refuse(self, code: int, message: str) -> None:
        """Answer with an error, and store nothing more."""
        self.answer.error, self.answer.message = int(code), message
        self.answer.offset = -1
        self.left = 0
        if self.batch and self.producer and not (self.batch.stored or self.batch.run):
            self.producer.drop(self.batch)

    def let_go(self, holder: object) -> None:
        """Let other connections go on with the producer."""
        if self.producer and self.producer.holder is holder:
            self.producer.holder = None


@dataclass(slots=True)
class Rules:
    """The things that a request is judged by."""

    producers: Producers
    partitions: Callable[[str], int]
    """Of a topic, or -Code."""
    is_known: Callable[[str], bool]
    """Whether Kafka has the topic."""
    is_full: Callable[[bytes], Reason | None]
    """Why a message of this topic would be discarded now for want of room; None: it has room."""
    limit: int
    """Bytes of a message."""
    decompressor: Decompressor


class Storing:
    """One request of one client."""

    def __init__(self, request: ProduceRequest, rules: Rules, uid: int = NO_ID) -> None:
        self.request, self._rules, self._uid = request, rules, uid
        self.parts = [Batching(part) for part in request.parts]
        self.due = time.monotonic() + min(request.timeout_s, MOST_TIMEOUT_S)
        """When its client waits no longer."""
        self.look_at, self.seen = 0.0, (0, 0)
        """When to look again whether it is delivered, and which marks have said that it was not."""
        self.is_parked = False
        """Whether it waits for a batch of another connection, which is on its way."""
        self.end = 0
        """The sequence behind all that it stored, or had stored before."""

    @property
    def is_full(self) -> bool:
        """Whether anything was refused as the spool is full."""
        return any(one.answer.error == Code.NOT_ENOUGH_REPLICAS for one in self.parts)

    @property
    def unsaid(self) -> str:
        """Why something was refused that neither an answer nor the log tells; empty: nothing was."""
        bad = (one.answer.message for one in self.parts if one.answer.error and not one.is_counted)
        return "" if self.request.acks else next(bad, "")

    @property
    def has_more(self) -> bool:
        """Whether there is something to write to a lane."""
        return any(one.left for one in self.parts)

    def give_up(self) -> None:
        """Wait for delivery no longer."""
        for one in self.parts:
            if not one.answer.error:
                one.refuse(Code.REQUEST_TIMED_OUT, "it is stored, and Kafka has not acknowledged it yet")

    def judge(self) -> None:
        """Find out what is to be stored."""
        seen: set[tuple[bytes, int]] = set()
        for one in self.parts:
            place = one.part.topic, one.part.partition
            if place in seen:
                one.refuse(Code.INVALID_REQUEST, "a request has one batch for a partition")
                continue
            seen.add(place)
            self._judge(one)
        self._release_if_parked()

    def look_again(self) -> None:
        """A batch of another connection is in the log, or is not: see whether that was the one waited for."""
        self.is_parked = False
        for one in self.parts:
            if one.head and not one.answer.error:
                self._look_up(one)
        self._release_if_parked()

    def _release_if_parked(self) -> None:
        """Hold nothing while it waits: two requests would wait for each other."""
        if self.is_parked:
            for one in self.parts:
                one.let_go(self)

    def _judge(self, one: Batching) -> None:
        if self.request.is_transactional:
            one.refuse(*_SENTENCES[Wrong.TRANSACTION])
            return
        if self.request.acks not in (0, 1, -1):
            one.refuse(Code.INVALID_REQUIRED_ACKS, "acks are 0, 1 or all")
            return
        if not self._may_choose(one):
            return
        try:
            one.head = Head.read(one.part.records)
        except BadBatch as error:
            _refuse_batch(one, error)
            return
        self._look_up(one)

    def _may_choose(self, one: Batching) -> bool:
        """Whether there is such a partition."""
        name = one.part.topic.decode("utf-8", "replace")
        count = self._rules.partitions(name)
        if count < 0:
            one.refuse(-count, "Kafka does not have the topic, or was not asked for it yet")
        elif not 0 <= one.part.partition < count:
            one.refuse(Code.UNKNOWN_TOPIC_OR_PARTITION, f"the topic has {counted(count, 'partition')}")
        one.is_new = not self._rules.is_known(name)
        return not one.answer.error

    def _unpack(self, one: Batching, head: Head) -> npt.NDArray[np.uint8]:
        """The records, valid until the next are unpacked. Raises BadBatch."""
        found = np.frombuffer(
            self._rules.decompressor.records(head.codec, one.part.records[HEAD_BYTES:]), np.uint8
        )
        if not len(found):
            raise BadBatch(Wrong.RECORDS)
        begin = address_of(found)
        end = Address(begin + len(found))
        if not one.is_checked:
            wrong, at = check_records(begin, end, head.records, len(one.part.topic), self._rules.limit)
            if wrong:
                raise BadBatch(Wrong(wrong), at)
            one.is_checked = True
            if one.batch and one.batch.stored:
                one.at = skip_records(begin, end, one.batch.stored)
        return found

    def _look_up(self, one: Batching) -> None:
        """See whether the producer has sent this batch before, and whether it may send it now."""
        head = one.head
        assert head
        one.left = head.records
        if head.producer != NO_PRODUCER and not self._is_next(one, head):
            return
        # Without an answer that says so it would be lost uncounted: the ingest worker discards, and counts.
        if one.left and self.request.acks and (reason := self._rules.is_full(one.part.topic)):
            one.refuse(*_REFUSALS[reason])
            one.let_go(self)

    def _is_next(self, one: Batching, head: Head) -> bool:
        """Whether to go on; what was stored before is noted."""
        topic = one.part.topic
        producer = self._rules.producers.find(head.producer, topic, one.part.partition, self._uid)
        one.ranges = []
        if producer.holder not in (None, self):
            self.is_parked = True
            return False
        if not _is_of_epoch(one, head, producer):
            return False
        batch = producer.find(head.sequence, head.records)
        if batch is None:
            if not producer.expects(head.sequence):
                follows = f"the producer's next record is {producer.follows}"
                one.refuse(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, follows)
                return False
            batch = producer.begin(head.sequence, head.records)
        one.producer, one.batch = producer, batch
        one.left = batch.count - batch.stored
        one.answer.offset, one.end = batch.first, batch.end
        self.end = max(self.end, batch.end)
        if batch.stored:
            one.ranges += _ranges_of(batch)
        if one.left:
            producer.holder = self
        return True

    def write(self, lane: Lane, now_ms: int) -> bool:
        """Write as much as the lane's next run takes, and offer it; whether there was anything to offer.

        There may be more to write without anything to offer: others are to have their turn before.
        """
        large = self._guess() > LARGE_BYTES
        # One record may take more than was guessed.
        return self._fill(lane, now_ms, large=large) or (
            self.has_more and not large and self._fill(lane, now_ms, large=True)
        )

    def _fill(self, lane: Lane, now_ms: int, *, large: bool) -> bool:
        """Write and offer a run; False, with nothing offered, if nothing was written."""
        lane.begin(large=large)
        room = STEP_BYTES
        for one in self.parts:
            before = len(lane.messages)
            if one.left and room > 0:
                room -= self._write(one, lane, now_ms)
            one.frames = range(before, len(lane.messages))
            if one.batch and one.producer and one.frames:
                one.batch.begun = one.batch.stored
                one.batch.run = run_word(lane.run + 1, lane.number, before)
                one.producer.note(one.batch)
            if one.frames and one.left:
                # The lane is full.
                room = 0
        if lane.messages:
            lane.offer()
        return bool(lane.messages)

    def _guess(self) -> int:
        """Bytes of the records that are left, about."""
        left = [one for one in self.parts if one.left]
        return sum(
            len(one.part.records) * (_COMPRESSED if one.head and one.head.codec else 1) for one in left
        )

    def _write(self, one: Batching, lane: Lane, now_ms: int) -> int:
        """Write some records of a part, as far as there is room; how many bytes were unpacked for it."""
        assert one.head
        try:
            records = self._unpack(one, one.head)
        except BadBatch as error:
            _refuse_batch(one, error)
            one.let_go(self)
            # As much as it may have been.
            return STEP_BYTES // _COMPRESSED
        topic, begin = np.frombuffer(one.part.topic, np.uint8), address_of(records)
        source = Source(
            begin,
            Address(begin + len(records)),
            one.head.timestamp,
            now_ms,
            -1 if one.is_new else one.part.partition,
            address_of(topic),
            len(topic),
        )
        written, one.at = lane.write(source, one.at, one.left)
        one.left -= written
        return len(records)

    def settle(self, lane: Lane) -> None:
        """The lane's run is taken."""
        for one in self.parts:
            if one.frames:
                self._settle(one, lane)
            one.frames = range(0)

    def _settle(self, one: Batching, lane: Lane) -> None:
        refused = 0
        stored = one.batch.begun if one.batch else 0
        for number in one.frames:
            refused, sequence = lane.outcome(number)
            if refused:
                break
            count = lane.messages[number]
            _add(one.ranges, sequence, count)
            if one.batch:
                _add(one.batch.parts, sequence, count)
            one.answer.offset = one.answer.offset if one.answer.offset >= 0 else sequence
            one.end = sequence + count
            self.end = max(self.end, one.end)
            stored += count
            one.is_stored_now = True
        if one.batch and one.producer:
            note_stored(one.producer, one.batch, stored, one.answer.offset, one.end)
        if refused and one.left and not self.request.acks and not one.batch:
            # The rest is offered, too: so the log counts it.
            refused = 0
        if refused:
            code, sentence = _REFUSALS.get(Reason(refused), _OTHERWISE)
            one.is_counted = not one.left
            one.refuse(code, sentence)
        if not one.left:
            one.let_go(self)


def why_full(words: npt.NDArray[np.int64], topic: bytes) -> Reason | None:
    """Why a message of this topic would be discarded now for want of room; None: it has room.

    `words`: of the shared state.
    """
    if words[Field.FULL] and words[Field.WHEN_FULL] != WhenFull.BLOCK:
        return Reason.SPOOL_FULL
    return Reason.OVER_QUOTA if is_over(words, topic) else None


def _add(ranges: list[Range], first: int, messages: int) -> None:
    """Add messages to ranges; those of a run have no others in between."""
    if ranges and ranges[-1].first + ranges[-1].messages == first:
        ranges[-1] = Range(ranges[-1].first, ranges[-1].messages + messages)
    else:
        ranges.append(Range(first, messages))


def _ranges_of(batch: Batch) -> list[Range]:
    """The messages of a batch in the log; with those of others in between, if a predecessor stored some."""
    if sum(messages for _, messages in batch.parts) == batch.stored:
        return list(batch.parts)
    return [Range(batch.first, batch.end - batch.first)]


def _is_of_epoch(one: Batching, head: Head, producer: Producer) -> bool:
    """Whether the producer may send in this epoch, which may be a new one."""
    if head.epoch < producer.epoch:
        one.refuse(Code.INVALID_PRODUCER_EPOCH, "the producer has a later epoch")
        return False
    if head.epoch > producer.epoch >= 0 and head.sequence:
        one.refuse(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, "a producer's new epoch begins with its record 0")
        return False
    if head.epoch > producer.epoch:
        producer.restart(head.epoch)
    return True


def _refuse_batch(one: Batching, error: BadBatch) -> None:
    which = f" (record {error.at})" if error.at >= 0 else ""
    code, sentence = _SENTENCES[error.wrong]
    one.refuse(code, sentence + which)


def run_word(run: int, lane: int, frames: int) -> int:
    """`run` of a producer's batch."""
    return run << _RUN_BITS | lane << _LANE_BITS | frames


def note_stored(producer: Producer, batch: Batch, stored: int, first: int, end: int) -> None:
    """A run with some of a batch is taken: so many of its records are in the log."""
    if not stored:
        batch.run = 0
        producer.drop(batch)
        return
    batch.stored, batch.first, batch.end, batch.run = stored, first, end, 0
    producer.note(batch)


def settle_predecessor(producers: Producers, lanes: Sequence[Lane]) -> None:
    """Note what became of the runs of a worker that was killed; all lanes' runs are taken."""
    by_number = {lane.number: lane for lane in lanes}
    for producer in producers:
        for batch in [one for one in producer.batches if one.run]:
            lane = by_number.get(batch.run >> _LANE_BITS & _LANES)
            stored, first, end = batch.begun, batch.first, batch.end
            if lane and lane.run == batch.run >> _RUN_BITS:
                for frame in _frames_of(lane, batch.run & _FRAMES):
                    first = frame.sequence if first < 0 else first
                    end = frame.sequence + frame.messages
                    stored += frame.messages
            note_stored(producer, batch, stored, first, end)


def _frames_of(lane: Lane, begin: int) -> Iterator[Frame]:
    """Those of a batch that are stored, which begin with this one."""
    for number, frame in enumerate(lane.frames()):
        if number > begin and not frame.follows:
            return
        if number >= begin:
            if frame.reason:
                return
            yield frame
