"""The records of bruce in Kafka as columns: a consumer whose loop over records is compiled.

confluent_kafka makes some Python objects of each record. `RecordConsumer` reads librdkafka's messages where
they are. Of each record it keeps the id of its message, and the hash of its content
(`spool.format.message_hash`). The consumer joins no group, commits nothing, and reads what is committed.

One burst is an array of addresses, each of an `rd_kafka_message_t`:

    0   error       int32; 0: a record
    8   topic       address of an rd_kafka_topic_t
    16  partition   int32
    24  value       address; 0: null      32  its length
    40  key         address; 0: null      48  its length
    56  offset      int64

Such a message may also say that a partition has ended, with the offset of the next record, or why a partition
gives nothing. Errors of connections come through another queue, as events.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from dispatch.consumer import ALONE
from dispatch.diagnosis import KafkaError, catch_verify_errors, explain_errors, verify_error_of
from dispatch.errors import BadProperty, Unreachable
from dispatch.header_names import HEADER_BYTES, HEADER_NAME
from dispatch.librdkafka import (
    CONSUMER,
    DESTROY_WITHOUT_GOODBYE,
    Event,
    Library,
    MetadataStruct,
    load,
    set_properties,
)
from dispatch.options import demand_credentials
from dispatch.retry import Action, decide, needs_people
from spool.format.message_hash import SEED, Xxh, hash_body, hash_bytes, hash_length, hash_word, is_replay
from spool.format.wire import load_be64
from spool.native.digest import xxh64_function
from spool.native.kernel import kernel, subkernel
from spool.native.memory import Address, address_of, call, copy, load_i32, load_i64, load_u8

UNTIMED = -(2**63)
"""In place of the time at which a message was sent: the broker wrote its own."""
BURST = 10_000
"""Records that one call of `consume` returns at most."""
BEGINNING, END = -2, -1
"""Logical offsets: of the oldest record, and behind the newest."""

_DEFAULTS = {
    # A partition that gives less in half a second is fetched twice a second.
    "fetch.min.bytes": "65536",
    "fetch.wait.max.ms": "500",
    # librdkafka would look again a second after its queue was full, which we empty in a fraction of it.
    "fetch.queue.backoff.ms": "10",
    "isolation.level": "read_committed",
    # More takes memory, and makes nothing faster.
    "queued.min.messages": "20000",
    "queued.max.messages.kbytes": "16384",
    # Bytes that the network has changed are fetched again; it costs next to nothing.
    "check.crcs": "true",
    # Nothing about brokers that fail: `error` says that once.
    "log_level": "2",
    "enable.metrics.push": "false",
}
_NAMES = ("utf-8", "surrogateescape")
"""The encoding of topics' names."""
_REMEMBERED = 64
"""Errors: brokers that are away give two a second each."""
_UNVERIFIED = "certificate verify failed"
"""librdkafka's words, whatever the cause."""
_OF_PARTITION = re.compile(r"(\S+) \[(\d+)\]: (.*)", re.DOTALL)
_ERROR_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_OWN = "cluster_metadata", "consumer_offsets", "remote_log_metadata", "share_group_state", "transaction_state"
INTERNAL_TOPICS = frozenset(f"__{name}" for name in _OWN)
"""Kafka's own (org.apache.kafka.common.internals.Topic, tiered storage); a user's may begin so, too."""

_TOPIC_AT, _PARTITION_AT, _OFFSET_AT = 8, 16, 56
_VALUE_AT, _VALUE_BYTES_AT, _KEY_AT, _KEY_BYTES_AT = 24, 32, 40, 48
_PARTITION_EOF = -191
"""RD_KAFKA_RESP_ERR__PARTITION_EOF"""
_CREATE_TIME = 1
"""rd_kafka_timestamp_type_t: the producer's."""
_NAME, _VALUE, _VALUE_BYTES, _KIND, _SCRATCH_BYTES = 0, 8, 16, 24, 32
"""Of the scratch memory: where librdkafka writes what it returns through pointers."""
_NAME_BYTES = len(HEADER_NAME)
_NAME_WORD = int.from_bytes(HEADER_NAME, "little")
_SPOOL_BYTES = 16
_LOW_HALF = 0xFFFFFFFF
Numbers = npt.NDArray[np.int64]
Progress = tuple[int, int, int]
"""Of a burst: messages that were read, records that were written, and messages that are errors."""


class Records(NamedTuple):
    """Records with the header bruce-id, in the order of each partition."""

    topic: npt.NDArray[np.int32]
    """int32[n]: index in `RecordConsumer.topics`."""
    partition: npt.NDArray[np.int32]
    """int32[n]"""
    offset: Numbers
    """int64[n]"""
    spool: npt.NDArray[np.uint8]
    """uint8[n, 16]: the spool's uuid."""
    sequence: Numbers
    """int64[n], never negative."""
    content: Numbers
    """int64[n]: the hash of the content; that of the topic's name without the prefix."""
    sent_ms: Numbers
    """int64[n]: ms since the epoch; UNTIMED where the broker wrote its own time."""


class Functions(NamedTuple):
    """The functions to call, and the memory that is written on the way."""

    message_headers: int
    """Addresses of librdkafka's functions."""
    header_cnt: int
    header_get_all: int
    message_timestamp: int
    message_destroy: int
    xxh: Xxh
    scratch: Address
    """Of _SCRATCH_BYTES."""


class Topics(NamedTuple):
    """The topics, by their index, and what was read of their partitions."""

    handles: Numbers
    """int64[topics]: rd_kafka_topic_t; 0 while it was not seen."""
    seeds: Numbers
    """int64[topics]: the hash of the name without the prefix."""
    firsts: Numbers
    """int64[topics]: the row of partition 0 in `positions`."""
    counts: Numbers
    """int64[topics]: its rows."""
    positions: Numbers
    """int64[rows]: the next offset."""


class RecordConsumer:
    """Reads partitions from given offsets. For one thread; it starts librdkafka's, so make it after forking.

    `properties`: librdkafka's, for the way to the brokers. `prefix` is removed from the names of topics that
    begin with it before they are hashed. `burst`: records that one call of `consume` returns at most. Raises
    BadProperty, NoLibrary.
    """

    def __init__(self, properties: Mapping[str, str], prefix: bytes = b"", *, burst: int = BURST) -> None:
        self._library = load()
        # `consume` calls it, for errors that librdkafka gives among the records.
        self._callback = _ERROR_CALLBACK(self._note_error)
        self._handle = _open(self._library, properties, self._callback)
        self._events = int(self._library.queue_get_main(self._handle))
        self._queue = int(self._library.queue_get_consumer(self._handle))
        self._prefix = prefix
        self.topics: list[str] = []
        """By the index that `Records.topic` has. An index stays what it is."""
        self._broken = ""
        """The trouble with connections."""
        self._silent: dict[tuple[str, int], tuple[int, str]] = {}
        """Of a partition that gives nothing: its position, and why."""
        self._errors: deque[KafkaError] = deque(maxlen=_REMEMBERED)
        self._refusals: list[Unreachable] = []
        self._assigned: dict[tuple[str, int], int] = {}
        """The row of each partition in `Topics.positions`."""
        self._indexes: dict[str, int] = {}
        """Of each topic in `topics`."""
        self._topics = Topics(*np.zeros((5, 0), np.int64))
        self._messages: Numbers = np.zeros(burst, np.int64)
        self.taken = 0
        """Messages, ours or not, that the last `consume` took."""
        self._scratch = np.zeros(_SCRATCH_BYTES // 8 + 1, np.int64)
        self._functions = _functions(self._library, self._scratch)

    def assign(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Read these partitions, (topic, partition) -> the first offset, in place of those before.

        It reads from the oldest record on if that offset is not there any more. Raises Unreachable when
        librdkafka refuses the assignment.
        """
        self._lay_out(offsets)
        with self._listed(offsets) as listed:
            if code := self._library.assign(self._handle, listed):
                raise Unreachable(code, f"librdkafka assigns nothing: {self._library.error_text(code)}")

    def consume(self, timeout_s: float) -> Records:
        """The records that came; waits for the first message, `timeout_s` at most.

        Raises Unreachable for an error that does not pass by itself; behind the records that came before it.
        """
        if not self._refusals:
            records = self._receive(timeout_s)
            if len(records.offset) or not self._refusals:
                return records
        refusal = self._refusals[0]
        self._refusals.clear()
        raise refusal

    @property
    def error(self) -> str:
        """The sentence for what keeps records from coming; empty for nothing.

        That of connections is forgotten when messages, or the `ends` of all partitions, come; that of a
        partition, when its own do.
        """
        return self._broken or next((why for _, why in self._silent.values()), "")

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        """(topic, partition) -> the next offset of each that is assigned.

        It goes on over records that are not ours, and over the offsets of transactions' ends and of records
        that were aborted. Before the first message of a partition, it is as it was assigned.
        """
        rows = np.fromiter(self._assigned.values(), np.int64, len(self._assigned))
        return dict(zip(self._assigned, self._topics.positions[rows].tolist(), strict=True))

    def ends(
        self, timeout_s: float, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """(topic, partition) -> (the oldest offset, the offset behind the newest that can be read).

        Of these partitions, or of those that are assigned; without those of which Kafka knows none. Raises
        Unreachable when no broker answers in time.
        """
        wanted = list(self._assigned if partitions is None else partitions)
        deadline = time.monotonic() + timeout_s
        lows, highs = (self._ask_offsets(wanted, which, deadline) for which in (BEGINNING, END))
        found = {one: (lows[one], highs[one]) for one in wanted if one in lows and one in highs}
        for one, (_, high) in found.items():
            # One that has more, and gives none of it, is silent still.
            if one in self._silent and self._silent[one][0] >= high:
                del self._silent[one]
        if found and found.keys() >= self._assigned.keys():
            self._recover()
        return found

    def offsets_at(
        self, ms: int, timeout_s: float, partitions: Iterable[tuple[str, int]]
    ) -> dict[tuple[str, int], int]:
        """The first offset of each partition whose record is not older; without those that have none."""
        return self._ask_offsets(list(partitions), ms, time.monotonic() + timeout_s)

    def topics_known(self, timeout_s: float) -> dict[str, int]:
        """The number of partitions of each topic that Kafka tells us of, without Kafka's own.

        Raises Unreachable when no broker answers in time.
        """
        found = ctypes.POINTER(MetadataStruct)()
        code = self._library.metadata(self._handle, 1, None, ctypes.byref(found), _ms(timeout_s))
        if code:
            raise self._unreachable(code, "Kafka does not tell its topics")
        try:
            topics = found.contents.topics[: found.contents.topic_count]
            counts = {_text(one.name): one.partition_count for one in topics if not one.error}
        finally:
            self._library.metadata_destroy(found)
        return {name: count for name, count in counts.items() if name not in INTERNAL_TOPICS}

    def close(self) -> None:
        """End the consumer's threads; waits for no broker."""
        if self._handle:
            # librdkafka would wait for messages that an interrupt has left here.
            self._note(self._messages)
            for queue in (self._queue, self._events):
                self._library.queue_destroy(queue)
            self._library.destroy_flags(self._handle, DESTROY_WITHOUT_GOODBYE)
            self._handle = 0

    def _lay_out(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Make the tables of an assignment. Addresses of topics may be others' from now on."""
        self.topics += sorted({topic for topic, _ in offsets} - self._indexes.keys())
        self._indexes = {topic: index for index, topic in enumerate(self.topics)}
        counts = np.zeros(len(self.topics), np.int64)
        indexes = [self._indexes[topic] for topic, _ in offsets]
        np.maximum.at(counts, indexes, [partition + 1 for _, partition in offsets])
        firsts = np.cumsum(counts) - counts
        rows = [int(firsts[i]) + n for i, (_, n) in zip(indexes, offsets, strict=True)]
        self._assigned, self._silent = dict(zip(offsets, rows, strict=True)), {}
        positions = np.zeros(int(counts.sum()), np.int64)
        positions[rows] = list(offsets.values())
        seeds = np.array([_hash_topic(topic, self._prefix) for topic in self.topics], np.uint64)
        self._topics = Topics(np.zeros_like(counts), seeds.view(np.int64), firsts, counts, positions)

    def _receive(self, timeout_s: float) -> Records:
        """Take a burst of messages, and note what is wrong."""
        count = self.taken = self._take(timeout_s)
        records, errors = self._read(count)
        self._hear()
        if count > errors:
            self._recover()
            self._drop_answered()
        self._note(self._messages[:errors])
        return records

    def _take(self, timeout_s: float) -> int:
        """Fill `_messages`, from the first message on without waiting; how many there are."""
        at, take = address_of(self._messages), self._library.consume_batch_queue
        if take(self._queue, _ms(timeout_s), at, 1) < 1:
            return 0
        return 1 + max(0, int(take(self._queue, 0, at + 8, len(self._messages) - 1)))

    def _read(self, count: int) -> tuple[Records, int]:
        """The records among the messages; and how many errors are now in front of these."""
        columns, messages = _columns(count), self._messages[:count]
        progress: Progress = (0, 0, 0)
        while progress[0] < count:
            progress = read_messages(self._functions, messages, self._topics, columns, progress)
            if progress[0] < count:
                self._learn(int(messages[progress[0]]))
        return Records._make(column[: progress[1]] for column in columns), progress[2]

    def _learn(self, message: int) -> None:
        """Note the address of a message's topic, which is seen for the first time."""
        handle = load_i64(message + _TOPIC_AT)
        self._topics.handles[self._indexes[_text(self._library.topic_name(handle))]] = handle

    def _recover(self) -> None:
        """Forget what was wrong with connections."""
        self._broken = ""
        self._errors.clear()

    def _drop_answered(self) -> None:
        """Forget why partitions gave nothing that have moved since."""
        if self._silent:
            positions = self._topics.positions
            silent = self._silent.items()
            self._silent = {one: noted for one, noted in silent if positions[self._assigned[one]] == noted[0]}

    def _note(self, messages: Numbers) -> None:
        """Note why partitions give nothing, and free the messages that say so."""
        library = self._library
        for at in np.flatnonzero(messages).tolist():
            message = int(messages[at])
            # Errors without a topic are about our group, which is never joined.
            if topic := load_i64(message + _TOPIC_AT):
                partition = _text(library.topic_name(topic)), load_i32(message + _PARTITION_AT)
                self._fall_silent(partition, load_i32(message), _text(library.message_errstr(message)))
            messages[at] = 0
            library.message_destroy(message)

    def _fall_silent(self, partition: tuple[str, int], code: int, said: str) -> bool:
        """Note why a partition gives nothing; False when it is not assigned."""
        row = self._assigned.get(partition)
        if row is None:
            return False
        why = f"Kafka gives nothing of {partition[0]} [{partition[1]}]: {said}"
        self._silent[partition] = int(self._topics.positions[row]), why
        if not _may_pass(code):
            self._refusals.append(Unreachable(code, why))
        return True

    def _hear(self) -> None:
        """Note the errors of connections."""
        library = self._library
        while event := library.queue_poll(self._events, 0):
            if library.event_type(event) == Event.ERROR:
                self._note_error(0, library.event_error(event), library.event_error_string(event), 0)
            library.event_destroy(event)

    def _note_error(self, _handle: int, code: int, said: bytes | None, _opaque: int) -> None:
        """Note an error of a connection, or of a partition."""
        text = _text(said)
        if (found := _OF_PARTITION.match(text)) and self._fall_silent(
            (found[1], int(found[2])), code, found[3]
        ):
            return
        text = text.replace(_UNVERIFIED, verify_error_of(text) or _UNVERIFIED)
        self._errors.append(KafkaError(time.time(), self._library.error_name(code), text))
        self._broken = explain_errors(self._errors) or self._broken

    def _unreachable(self, code: int, what: str) -> Unreachable:
        self._hear()
        return Unreachable(code, f"{what}: {explain_errors(self._errors) or self._library.error_text(code)}")

    def _ask_offsets(
        self, partitions: Sequence[tuple[str, int]], which: int, deadline: float
    ) -> dict[tuple[str, int], int]:
        """The offset that is BEGINNING or END of each partition of which there is an answer."""
        if not partitions:
            return {}
        with self._listed(dict.fromkeys(partitions, which)) as listed:
            left_ms = _ms(max(0.0, deadline - time.monotonic()))
            if code := self._library.offsets_for_times(self._handle, listed, left_ms):
                raise self._unreachable(code, "Kafka does not tell the ends of partitions")
            answers = listed.contents.offsets[: listed.contents.count]
            return {
                (_text(one.topic), one.partition): one.offset
                for one in answers
                if not one.error and one.offset >= 0
            }

    @contextmanager
    def _listed(self, offsets: Mapping[tuple[str, int], int]) -> Iterator[Any]:
        """A rd_kafka_topic_partition_list_t."""
        listed = self._library.topic_partition_list_new(len(offsets))
        try:
            for (topic, partition), offset in offsets.items():
                added = self._library.topic_partition_list_add(listed, topic.encode(*_NAMES), partition)
                added.contents.offset = offset
            yield listed
        finally:
            self._library.topic_partition_list_destroy(listed)


def _open(library: Library, properties: Mapping[str, str], callback: Any) -> int:
    """A rd_kafka_t."""
    demand_credentials(properties)
    conf = library.conf_new()
    try:
        set_properties(library.conf_set, conf, {**_DEFAULTS, **properties, **ALONE})
    except BadProperty:
        library.conf_destroy(conf)
        raise
    catch_verify_errors(library, conf)
    library.conf_set_events(conf, Event.ERROR)
    library.conf_set_error_cb(conf, ctypes.cast(callback, ctypes.c_void_p))
    said = ctypes.create_string_buffer(512)
    handle: int | None = library.new(CONSUMER, conf, said, len(said))
    if not handle:
        library.conf_destroy(conf)
        raise BadProperty("", f"librdkafka refuses the [kafka] properties: {_text(said.value)}")
    return handle


def _functions(library: Library, scratch: npt.NDArray[np.int64]) -> Functions:
    xxh = xxh64_function(), Address(address_of(scratch) + _SCRATCH_BYTES)
    return Functions._make((*map(library.address, Functions._fields[:-2]), xxh, address_of(scratch)))


def _columns(count: int) -> Records:
    """Room for so many records."""
    topic, partition = np.empty((2, count), np.int32)
    offset, sequence, content, sent_ms = np.empty((4, count), np.int64)
    spool = np.empty((count, _SPOOL_BYTES), np.uint8)
    return Records(topic, partition, offset, spool, sequence, content, sent_ms)


def _hash_topic(topic: str, prefix: bytes) -> int:
    return int(xxhash.xxh64_intdigest(topic.encode(*_NAMES).removeprefix(prefix), SEED))


def _may_pass(code: int) -> bool:
    """Whether records may come again without our doing; errors of librdkafka's own are about connections."""
    return code < 0 or (not needs_people(code) and decide(code).action in (Action.RETRY, Action.REFRESH))


def _ms(seconds: float) -> int:
    return max(0, int(seconds * 1000))


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode(*_NAMES)


@kernel
def read_messages(
    functions: Functions, messages: Numbers, topics: Topics, records: Records, progress: Progress
) -> Progress:
    """Read the messages of a burst, from where `progress` is, up to the first of a topic without an address.

    `messages` int64[n]: their addresses. Writes `records`, each of n rows, and the positions of `topics`.
    Frees the messages that it read, but for errors: their addresses go to the front. 0 replaces an address.
    """
    done, rows, errors = progress
    handle, topic = 0, -1
    while done < len(messages):
        message = Address(messages[done])
        error = load_i32(message)
        if error not in (0, _PARTITION_EOF):
            messages[done] = 0
            messages[errors] = message
            errors += 1
            done += 1
            continue
        if load_i64(message + _TOPIC_AT) != handle or topic < 0:
            handle = load_i64(message + _TOPIC_AT)
            topic = find_topic(topics, handle)
            if topic < 0:
                break
        move(topics, topic, message, error)
        if error == 0 and read_record(functions, message, topics.seeds[topic], records, rows):
            records.topic[rows] = topic
            rows += 1
        messages[done] = 0
        call(functions.message_destroy, message)
        done += 1
    return done, rows, errors


@subkernel
def find_topic(topics: Topics, handle: int) -> int:
    """The index of the topic at an address; -1 for one that was not seen."""
    for index in range(len(topics.handles)):
        if topics.handles[index] == handle:
            return index
    return -1


@subkernel
def move(topics: Topics, topic: int, message: Address, error: int) -> None:
    """Move the position of a message's partition behind it; to its offset, if it is no record."""
    partition = load_i32(Address(message + _PARTITION_AT))
    if 0 <= partition < topics.counts[topic]:
        at = topics.firsts[topic] + partition
        topics.positions[at] = load_i64(message + _OFFSET_AT) + (1 if error == 0 else 0)


@subkernel
def read_record(functions: Functions, message: Address, seed: int, records: Records, row: int) -> bool:
    """Write a record to a row, but for its topic, whose hash is `seed`; False when it has no id."""
    if call(functions.message_headers, message, functions.scratch) & _LOW_HALF != 0:
        return False
    headers = load_i64(functions.scratch)
    count = call(functions.header_cnt, headers)
    at = find_id_header(functions, headers, count)
    if at < 0:
        return False
    value, value_bytes = load_bytes(Address(functions.scratch + _VALUE))
    sequence = load_be64(Address(value + _SPOOL_BYTES)) if value_bytes == HEADER_BYTES else -1
    if sequence < 0:
        return False
    records.sequence[row] = sequence
    copy(Address(records.spool.ctypes.data + _SPOOL_BYTES * row), value, _SPOOL_BYTES)
    key, key_bytes = load_bytes(Address(message + _KEY_AT))
    value, value_bytes = load_bytes(Address(message + _VALUE_AT))
    content = hash_body(functions.xxh, seed, key, key_bytes, value, value_bytes)
    records.content[row] = hash_others(functions, headers, count, at, content)
    records.partition[row] = load_i32(Address(message + _PARTITION_AT))
    records.offset[row] = load_i64(message + _OFFSET_AT)
    sent_ms = call(functions.message_timestamp, message, functions.scratch + _KIND)
    is_sent = load_i32(Address(functions.scratch + _KIND)) == _CREATE_TIME
    records.sent_ms[row] = sent_ms if is_sent else UNTIMED
    return True


@subkernel
def load_bytes(at: Address) -> tuple[Address, int]:
    """(address, length) of which the first is at an address, the other behind it; -1 for a null."""
    start = Address(load_i64(at))
    return start, -1 if start == 0 else max(0, load_i64(Address(at + 8)))


@subkernel
def load_header(functions: Functions, headers: int, number: int) -> tuple[Address, int, Address, int]:
    """(name, its length, value, its length) of a header; -1 for a null."""
    scratch = functions.scratch
    call(functions.header_get_all, headers, number, scratch + _NAME, scratch + _VALUE, scratch + _VALUE_BYTES)
    name = Address(load_i64(scratch + _NAME))
    name_bytes = 0
    while load_u8(name + name_bytes) != 0:
        name_bytes += 1
    value, value_bytes = load_bytes(Address(scratch + _VALUE))
    return name, name_bytes, value, value_bytes


@subkernel
def find_id_header(functions: Functions, headers: int, count: int) -> int:
    """The first header of the name bruce-id, whose value is then in the scratch memory; -1: there is none."""
    for number in range(count):
        name, name_bytes, _, _ = load_header(functions, headers, number)
        if name_bytes == _NAME_BYTES and load_i64(name) == _NAME_WORD:
            return number
    return -1


@subkernel
def hash_others(functions: Functions, headers: int, count: int, id_at: int, seed: int) -> int:
    """The hash with a record's headers, without its id and without those of replays."""
    if count == 1:
        return seed
    found, others = SEED, 0
    for part in range(2):
        for number in range(count):
            name, name_bytes, value, value_bytes = load_header(functions, headers, number)
            if number == id_at or is_replay(name, name_bytes):
                continue
            if part == 0:
                others += 1
                found = hash_length(functions.xxh, value_bytes, found)
            else:
                found = hash_bytes(functions.xxh, name, name_bytes, found)
                found = hash_bytes(functions.xxh, value, value_bytes, found)
    return hash_word(functions.xxh, found, seed) if others > 0 else seed
