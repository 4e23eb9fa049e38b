"""The librdkafka producer: its handle, its topics, its events that are no delivery reports.

Delivery reports do not come through here: `dispatch.reports` reads them from `queue` in a kernel and
hands over the events it does not know (`take_event`).

Threads: one thread sends, collects and closes. `fetch_cluster` waits for the network and may run beside
it in a thread of its own.
"""

from __future__ import annotations

import collections
import ctypes
import json
import logging
import re
import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch import librdkafka
from dispatch.cluster import NO_LEADER, Cluster
from dispatch.codes import Code
from dispatch.diagnosis import KafkaError, explain_endings, explain_refusal
from dispatch.errors import BadProperty, DispatchError, Unreachable
from dispatch.librdkafka import Event, Library, MetadataStruct, set_properties
from dispatch.options import DispatchOptions, demand_credentials, properties, topic_properties
from dispatch.timings import Timings
from dispatch.verdicts import listen, verdict_of

_log = logging.getLogger("dispatch.librdkafka")
_SYSLOG_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)
"""Python's logging level by syslog level."""
_QUIET_S = 600.0
"""Between two lines of librdkafka's log for the same cause."""
_NUMBERS = re.compile(r"\b\d+(?:\.\d+)?(?=\s*(?:ms|s|us|bytes|error|identical)\b)")
"""In a line: how long, and how often, which is no other cause."""
_WAKE = (1).to_bytes(8, "little")
"""What an eventfd takes."""


class Refusal(NamedTuple):
    """Why a call about transactions failed."""

    code: int
    text: str
    fatal: bool
    """The producer is finished."""
    requires_abort: bool
    """The transaction is; another can begin."""


class KafkaClient:
    """One producer. Raises BadProperty and DispatchError when it cannot be built.

    `wake_fd`: an eventfd that is written to when events arrive in an empty queue; None for none.
    `transactional_id`: the name under which it begins transactions; empty for none.
    It starts librdkafka's threads, so make it after forking.
    """

    def __init__(
        self, options: DispatchOptions, wake_fd: int | None = None, *, transactional_id: str = ""
    ) -> None:
        self.library = librdkafka.load()
        self._options, self._wake_fd, self.transactional_id = options, wake_fd, transactional_id
        self._topics: dict[bytes, int] = {}
        self._topics_lock, self._asking = threading.Lock(), threading.Lock()
        self._logged: dict[tuple[str, str], float] = {}
        self._stats: bytes | dict[str, Any] = {}
        self.timings = Timings()
        """What the statistics that were looked at said of brokers."""
        self.last_errors: collections.deque[KafkaError] = collections.deque(maxlen=64)
        self.fatal: KafkaError | None = None
        """Why the producer is finished: it takes nothing more, though reports still come."""
        self.handle = 0
        """rd_kafka_t; 0 once closed."""
        self.queue = 0
        """rd_kafka_queue_t with all events."""
        self.open_event: npt.NDArray[np.int64] = np.zeros(1, np.int64)
        """An event whose reports were not all read yet; 0 for none. Belongs to `dispatch.reports`."""
        self._open()

    def _open(self) -> None:
        self.handle = _new_producer(self.library, self._options, self.transactional_id)
        self.queue = int(self.library.queue_get_main(self.handle))
        self.library.set_log_queue(self.handle, None)
        if self._wake_fd is not None:
            self.library.queue_io_event_enable(self.queue, self._wake_fd, _WAKE, len(_WAKE))

    def renew(self) -> None:
        """Build another producer in place of one that is finished. Handles and unread reports are gone.

        Waits for a thread that asks for metadata through the old one. Raises DispatchError.
        """
        with self._asking:
            self.close()
            self.fatal = None
            self._open()

    def topic_handle(self, name: bytes) -> int:
        """The rd_kafka_topic_t of a topic, made at the first call. Raises BadProperty."""
        with self._topics_lock:
            if name not in self._topics:
                self._topics[name] = self._new_topic(name)
            return self._topics[name]

    def name_topics(self, names: Iterable[bytes]) -> None:
        """Have `fetch_cluster` ask about these, too, to which nothing is ever sent."""
        with self._topics_lock:
            for name in names:
                if name not in self._topics and (topic := self.library.topic_new(self.handle, name, None)):
                    self._topics[name] = topic

    def fetch_cluster(self, names: Iterable[bytes], timeout_s: float) -> Cluster:
        """Ask a broker about `names` and every topic used so far; waits for the answer.

        Raises Unreachable when there is none within `timeout_s`.
        """
        with self._asking:
            for name in names:
                self.topic_handle(name)
            return self._ask_cluster(timeout_s, every_topic=False)

    def fetch_all(self, timeout_s: float) -> Cluster:
        """Ask about every topic there is, without making one on demand, as a question by name can.

        Raises Unreachable when there is no answer within `timeout_s`.
        """
        with self._asking:
            return self._ask_cluster(timeout_s, every_topic=True)

    def _ask_cluster(self, timeout_s: float, *, every_topic: bool) -> Cluster:
        found = ctypes.POINTER(MetadataStruct)()
        code = self.library.metadata(
            self.handle, every_topic, None, ctypes.byref(found), int(timeout_s * 1000)
        )
        if code:
            raise Unreachable(code, f"no metadata from Kafka: {self.library.error_text(code)}")
        try:
            return _read_cluster(found.contents)
        finally:
            self.library.metadata_destroy(found)

    def broker_states(self) -> dict[int, str]:
        """UP, DOWN, CONNECT, ... by broker id, from the newest statistics (`statistics.interval.ms`).

        Empty before the first.
        """
        brokers = self.statistics().get("brokers", {}).values()
        return {broker["nodeid"]: broker["state"] for broker in brokers if broker["nodeid"] >= 0}

    def statistics(self) -> dict[str, Any]:
        """librdkafka's newest statistics, as its STATISTICS.md has them; empty before the first."""
        if isinstance(self._stats, bytes):
            # They come every second, asked for or not: parsed when somebody wants to know, and once.
            self._stats = dict[str, Any](json.loads(self._stats))
            self.timings.note(self._stats)
        return self._stats

    def note_events(self) -> None:
        """Take the events that lie in the queue, for a client that sends nothing."""
        while event := self.library.queue_poll(self.queue, 0):
            self.take_event(event)

    def drop_events(self) -> None:
        """Pass over the events that lie in the queue, where another client says what there is to say."""
        while event := self.library.queue_poll(self.queue, 0):
            self.library.event_destroy(event)

    def take_event(self, event: int) -> None:
        """Note what an event says that is no delivery report, and free it."""
        note = {
            Event.ERROR: self._note_error,
            Event.STATS: self._note_stats,
            Event.LOG: self._note_log,
        }.get(self.library.event_type(event))
        if note is not None:
            note(event)
        self.library.event_destroy(event)

    def flush(self, timeout_s: float) -> bool:
        """Send without lingering and wait until every report is read; False when time ran out.

        Whoever reads the reports in the same thread calls this in short slices, between two collections.
        """
        return not self.library.flush(self.handle, int(timeout_s * 1000))

    def transact(self, call: str, *arguments: int) -> Refusal | None:
        """Call a function about transactions, such as `begin_transaction`; None when all is well."""
        library = self.library
        error: int | None = getattr(library, call)(self.handle, *arguments)
        if not error:
            return None
        refusal = Refusal(
            library.error_code(error),
            _text(library.error_string(error)),
            bool(library.error_is_fatal(error)),
            bool(library.error_txn_requires_abort(error)),
        )
        library.error_destroy(error)
        return refusal

    def explain_endings(self) -> str:
        """What it means that brokers end each connection without a word; empty when none does."""
        return explain_endings(self.statistics(), self._options.kafka.get("security.protocol", "plaintext"))

    @property
    def fenced(self) -> bool:
        """Whether the producer is finished because another one has its transactional id."""
        return int(self.library.fatal_error(self.handle, None, 0)) == Code.FENCED

    def close(self) -> None:
        """Drop what is not sent and end the threads; waits for no broker. Unread reports are lost."""
        if not self.handle:
            return
        library = self.library
        library.queue_io_event_enable(self.queue, -1, None, 0)
        if self.open_event[0]:
            library.event_destroy(int(self.open_event[0]))
            self.open_event[0] = 0
        library.purge(self.handle, librdkafka.PURGE_ALL)
        for topic in self._topics.values():
            library.topic_destroy(topic)
        self._topics.clear()
        library.queue_destroy(self.queue)
        library.destroy_flags(self.handle, librdkafka.DESTROY_WITHOUT_GOODBYE)
        self.handle = self.queue = 0

    def _new_topic(self, name: bytes) -> int:
        library = self.library
        conf = library.default_topic_conf_dup(self.handle)
        text = name.decode("utf-8", "surrogateescape")
        set_topic_properties(library, conf, topic_properties(self._options, text), text)
        topic: int | None = library.topic_new(self.handle, name, conf)
        if not topic:
            raise DispatchError(f"librdkafka cannot use the topic {name!r}")
        return topic

    def _note_error(self, event: int) -> None:
        library = self.library
        code = library.event_error(event)
        text = _text(library.event_error_string(event))
        if verdict := verdict_of(text) if "certificate verify failed" in text else "":
            text = text.replace("certificate verify failed", verdict)
        error = KafkaError(time.time(), library.error_name(code), text)
        # A name that does not resolve comes hundreds of times a second, and would push out all others.
        if self.last_errors and self.last_errors[-1][1:] == error[1:]:
            self.last_errors.pop()
        self.last_errors.append(error)
        if library.event_error_is_fatal(event):
            self.fatal = error

    def _note_stats(self, event: int) -> None:
        self._stats = self.library.event_stats(event)

    def _note_log(self, event: int) -> None:
        facility, text, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
        self.library.event_log(event, ctypes.byref(facility), ctypes.byref(text), ctypes.byref(level))
        words = _text(text.value)
        # A broker that is down is tried, and fails, many times a second: one line a cause and a while.
        cause = (_text(facility.value), _NUMBERS.sub("", words.partition(" (after ")[0]))
        if time.monotonic() - self._logged.get(cause, -_QUIET_S) >= _QUIET_S:
            self._logged[cause] = time.monotonic()
            _log.log(_SYSLOG_LEVELS[level.value & 7], "%s: %s", cause[0], words)


def check(options: DispatchOptions) -> None:
    """Try every property without starting anything. Raises BadProperty, with librdkafka's own words."""
    library = librdkafka.load()
    library.conf_destroy(_new_conf(library, options))
    for topic in options.topics:
        conf = library.topic_conf_new()
        set_topic_properties(library, conf, topic_properties(options, topic), topic)
        library.topic_conf_destroy(conf)


def set_topic_properties(library: Library, conf: int, own: dict[str, str], topic: str) -> None:
    """Set the properties of a topic; a refused configuration is freed. Raises BadProperty."""
    try:
        set_properties(library.topic_conf_set, conf, own, f"topics.{topic}")
    except BadProperty:
        library.topic_conf_destroy(conf)
        raise


def _new_conf(library: Library, options: DispatchOptions) -> int:
    demand_credentials(options.kafka)
    wanted = properties(options)
    conf: int = library.conf_new()
    try:
        set_properties(library.conf_set, conf, wanted)
    except BadProperty:
        library.conf_destroy(conf)
        raise
    listen(library, conf)
    library.conf_set_events(conf, Event.DELIVERY | Event.ERROR | Event.STATS | Event.LOG)
    return conf


def _new_producer(library: Library, options: DispatchOptions, transactional_id: str) -> int:
    conf = _new_conf(library, options)
    if transactional_id:
        set_properties(library.conf_set, conf, {"transactional.id": transactional_id})
    said = ctypes.create_string_buffer(512)
    handle: int | None = library.new(librdkafka.PRODUCER, conf, said, len(said))
    if not handle:
        library.conf_destroy(conf)
        raise DispatchError(explain_refusal(_text(said.value)))
    return handle


def _read_cluster(found: MetadataStruct) -> Cluster:
    brokers = {b.id: f"{_text(b.host)}:{b.port}" for b in found.brokers[: found.broker_count]}
    topics: dict[bytes, npt.NDArray[np.int32]] = {}
    errors: dict[bytes, int] = {}
    for topic in found.topics[: found.topic_count]:
        if topic.error:
            errors[topic.name] = topic.error
            continue
        partitions = topic.partitions[: topic.partition_count]
        leaders = np.full(1 + max((p.id for p in partitions), default=-1), NO_LEADER, np.int32)
        for partition in partitions:
            leaders[partition.id] = partition.leader
        leaders.flags.writeable = False
        topics[topic.name] = leaders
    return Cluster(brokers, topics, errors)


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")
