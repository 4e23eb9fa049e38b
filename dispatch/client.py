"""The librdkafka producer: its handle, its topics, its metadata, its events that are no delivery reports.

`KafkaClient` is the producer; `Cluster` is what it knows of Kafka's metadata, `BrokerLatency` what its
statistics say of brokers. `Inquiry` asks about topics through producers of its own. By `Wakeup` librdkafka
and other threads wake the one that waits for them.

Delivery reports do not come through here: `dispatch.records` reads them from `queue` in a kernel and
hands over the events it does not know (`take_event`).

Threads: one thread sends, collects and closes. `fetch_cluster` and `fetch_lateness` wait for the network
and may run beside it in a thread of their own, `fetch_all` in another.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import json
import logging
import os
import re
import select
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch import librdkafka
from dispatch.diagnosis import (
    KafkaError,
    catch_verify_errors,
    explain_endings,
    explain_refusal,
    verify_error_of,
)
from dispatch.errors import BadProperty, Code, DispatchError, Unreachable
from dispatch.hurry import Hurry
from dispatch.librdkafka import Event, Library, MetadataStruct, set_properties
from dispatch.options import DispatchOptions, chooses_linger, demand_credentials, properties, topic_properties
from dispatch.timing import QUIET_S
from dispatch.topic_settings import Lateness, ask_lateness
from spool.format.topic_table import legal
from spool.throttle import Throttle

_log = logging.getLogger("dispatch.librdkafka")
_SYSLOG_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)
"""Python's logging level by syslog level."""
_CONNECTIONS = ("FAIL", "ERROR", "REQTMOUT")
"""librdkafka's names of lines about connections that fail."""
_NUMBERS = re.compile(r"\b\d+(?:\.\d+)?(?=\s*(?:ms|s|us|bytes|error|identical)\b)")
"""In a line: how long, and how often, which is no other cause."""
_TOPICS = b'"topics":'
"""In statistics: where those of brokers end, and 4 KB of each topic begin. No name has a quote in it."""
_TOPPARS = re.compile(rb'"toppars":\{ (?:(?:, )?"[^"]*": \{ "topic":"[^"]*", "partition":-?\d+\} )*\} ')
"""The list of its partitions that each broker has there."""
_LIBC = ctypes.CDLL(None)
_LIBC.strstr.argtypes, _LIBC.strstr.restype = (ctypes.c_void_p, ctypes.c_char_p), ctypes.c_void_p
_WAKE = (1).to_bytes(8, "little")
"""The 8 bytes that an eventfd takes."""

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class Cluster:
    """One picture of the metadata, as it was when it was fetched: brokers, and who leads which partition."""

    brokers: Mapping[int, str] = field(default_factory=dict)
    """Broker id -> "host:port"."""
    topics: Mapping[bytes, npt.NDArray[np.int32]] = field(default_factory=dict)
    """Topic -> broker id of the leader by partition id; NO_LEADER where there is none.

    Topics that the cluster named together with an error are in `errors` alone.
    """
    errors: Mapping[bytes, int] = field(default_factory=dict)
    """Topic -> Kafka's error code, such as UNKNOWN_TOPIC_OR_PART."""
    asked_at: float = 0.0
    """When Kafka was asked, by the monotonic clock."""

    def is_like(self, other: Cluster) -> bool:
        """Whether both say the same."""
        return (self.brokers, self.errors, self.topics.keys()) == (
            other.brokers,
            other.errors,
            other.topics.keys(),
        ) and all(np.array_equal(leaders, other.topics[name]) for name, leaders in self.topics.items())


LATENCY_ROW_WORDS = 12
_LATENCIES = (("rtt", 1), ("int_latency", 1), ("throttle", 1000))
"""By name in the statistics: µs of one of its units."""
_NO_LATENCY = np.array([0, 0, -1, -1] * len(_LATENCIES), np.int64)


class BrokerLatency:
    """How long brokers take, by librdkafka's statistics: round trip, queue and throttle time of each.

    The statistics are about windows, from one emission to the next (`statistics.interval.ms`). Sums and
    counts are added up here, so that a scraper gets them however seldom it looks. Quantiles are those of the
    newest window.

        row := round trip, queue, throttle, each: count, sum, median, 99th percentile         all int64, in µs

    Round trip is that of requests (`rtt`). Queue is how long messages waited in the producer before they went
    into a request, lingering included (`int_latency`). Throttle is how long brokers asked to be left alone
    (`throttle`). A quantile is -1 where the window had nothing.
    """

    def __init__(self) -> None:
        self._rows: dict[int, npt.NDArray[np.int64]] = {}

    def note(self, statistics: Mapping[str, Any]) -> None:
        """Add the windows of one emission."""
        for broker in statistics.get("brokers", {}).values():
            if broker["nodeid"] >= 0:
                row = self._rows.setdefault(broker["nodeid"], _NO_LATENCY.copy())
                for at, (name, scale) in enumerate(_LATENCIES):
                    _add_window(row[4 * at :][:4], broker.get(name, {}), scale)

    def table(self, brokers: Sequence[int]) -> npt.NDArray[np.int64]:
        """int64[brokers, LATENCY_ROW_WORDS] by id, in this order; zeros and -1 for unknown brokers."""
        rows = [self._rows.get(broker, _NO_LATENCY) for broker in brokers]
        return np.array(rows, np.int64).reshape(-1, LATENCY_ROW_WORDS)


def _add_window(row: npt.NDArray[np.int64], window: Mapping[str, int], scale: int) -> None:
    count = window.get("cnt", 0)
    row[0] += count
    row[1] += scale * window.get("sum", 0)
    row[2:] = [scale * window[name] for name in ("p50", "p99")] if count else -1


class Refusal(NamedTuple):
    """Why a call about transactions failed."""

    code: int
    text: str
    fatal: bool
    """The producer is finished."""
    requires_abort: bool
    """The transaction is; another can begin."""


class Wakeup:
    """An eventfd that becomes readable when there is something to do."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """For librdkafka to write to, and to wait for along with others."""
        self._lock, self._closed = threading.Lock(), False

    def ring(self) -> None:
        """Wake the waiting thread; from any thread."""
        # A thread may be late: the number of a closed descriptor is another file's by then.
        with self._lock:
            if not self._closed:
                os.eventfd_write(self.fd, 1)

    def wait(self, seconds: float) -> None:
        """Sleep until it rings, `seconds` at most."""
        if select.select([self.fd], [], [], seconds)[0]:
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """Close it, once librdkafka writes to it no more."""
        with self._lock:
            self._closed = True
            os.close(self.fd)


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
        self._topics_lock = threading.Lock()
        self._asking, self._listing = threading.Lock(), threading.Lock()
        """Held while a question waits for its answer; a list waits for no other question."""
        self._log_throttle = Throttle(QUIET_S)
        self._stats: bytes | dict[str, Any] = {}
        self.latency = BrokerLatency()
        """Of brokers, by the statistics that were looked at."""
        self.last_errors: collections.deque[KafkaError] = collections.deque(maxlen=64)
        self.fatal: KafkaError | None = None
        """Why the producer is finished: it takes nothing more, though reports still come."""
        self.handle = 0
        """rd_kafka_t; 0 once closed."""
        self.queue = 0
        """rd_kafka_queue_t with all events."""
        self.open_event: npt.NDArray[np.int64] = np.zeros(1, np.int64)
        """An event whose reports were not all read yet; 0 for none. Belongs to `dispatch.records`."""
        self.lingers_by_choice = chooses_linger(options)
        """Whether the configuration says how long it lingers."""
        self._hurry: Hurry | None = None
        self._open()

    def _open(self) -> None:
        self.handle = _new_producer(self.library, self._options, self.transactional_id)
        self.queue = int(self.library.queue_get_main(self.handle))
        self.library.set_log_queue(self.handle, None)
        if self._wake_fd is not None:
            self.library.queue_io_event_enable(self.queue, self._wake_fd, _WAKE, len(_WAKE))

    def renew(self) -> None:
        """Build another producer in place of one that is finished. Handles and unread reports are gone.

        Waits for the threads that ask for metadata through the old one. Raises DispatchError.
        """
        with self._asking, self._listing:
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
        with self._listing:
            return self._ask_cluster(timeout_s, every_topic=True)

    def fetch_lateness(self, topics: Sequence[bytes], timeout_s: float) -> dict[bytes, Lateness]:
        """Ask a broker how late messages of these may come; empty when there is no answer in time."""
        with self._asking:
            return ask_lateness(self.library, self.handle, topics, timeout_s)

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
        """librdkafka's newest statistics, up to the brokers; empty before the first."""
        if isinstance(self._stats, bytes):
            # They come every second, asked for or not: parsed when somebody wants to know, and once.
            self._stats = parse_statistics(self._stats)
            self.latency.note(self._stats)
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

    def note_fatal(self, why: KafkaError) -> None:
        """The producer is finished, unless it was so already."""
        self.fatal = self.fatal or why

    def hurry(self) -> None:
        """Have what was handed over sent without lingering. Returns at once. For one thread alone."""
        self._hurrying().ask()

    @property
    def wake_fd(self) -> int:
        """The eventfd that is written to when events arrive in an empty queue."""
        assert self._wake_fd is not None
        return self._wake_fd

    @property
    def hurry_fd(self) -> int:
        """An eventfd that does the same as `hurry` when it is written to; -1 when it lingers by choice."""
        return -1 if self.lingers_by_choice else self._hurrying().fd

    def _hurrying(self) -> Hurry:
        self._hurry = self._hurry or Hurry(self.library, self.handle)
        return self._hurry

    def flush(self, timeout_s: float) -> bool:
        """Send without lingering, and wait until every report is read elsewhere; False when time ran out.

        It waits by the time of day: longer, when that is set back meanwhile.
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
        """The sentence for brokers that end each connection without a word; empty when none does."""
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
        if self._hurry is None or self._hurry.end():
            library.destroy_flags(self.handle, librdkafka.DESTROY_WITHOUT_GOODBYE)
        self.handle = self.queue = 0
        self._hurry = None

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
        if reason := verify_error_of(text) if "certificate verify failed" in text else "":
            text = text.replace("certificate verify failed", reason)
        error = KafkaError(time.time(), library.error_name(code), text)
        # A name that does not resolve comes hundreds of times a second, and would push out all others.
        if self.last_errors and self.last_errors[-1][1:] == error[1:]:
            self.last_errors.pop()
        self.last_errors.append(error)
        if library.event_error_is_fatal(event):
            self.fatal = error

    def _note_stats(self, event: int) -> None:
        at = self.library.event_stats(event)
        # ctypes lets other threads go on meanwhile.
        end = _LIBC.strstr(at, _TOPICS)
        self._stats = ctypes.string_at(at, end - at if end else -1)

    def _note_log(self, event: int) -> None:
        facility, text, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
        self.library.event_log(event, ctypes.byref(facility), ctypes.byref(text), ctypes.byref(level))
        words = _text(text.value)
        # A broker that is down is tried, and fails, many times a second: one line a cause and a while.
        cause = (_text(facility.value), _NUMBERS.sub("", words.partition(" (after ")[0]))
        if self._log_throttle.due(cause):
            # Those about connections come as error events, too, and are said in our words.
            known = cause[0] in _CONNECTIONS
            _log.log(logging.INFO if known else _SYSLOG_LEVELS[level.value & 7], "%s: %s", cause[0], words)


def parse_statistics(text: bytes) -> dict[str, Any]:
    """librdkafka's statistics as STATISTICS.md has them, without anything that grows with the topics.

    `text`: all of them, or the part before `"topics":`. A topic takes 60 µs to parse, each second.
    Empty when they are no JSON.
    """
    brokers, cut, _ = text.partition(_TOPICS)
    brokers = _TOPPARS.sub(b'"toppars":{}', brokers)
    whole = brokers if brokers.endswith(b"}") and not cut else brokers.rstrip(b", ") + b"}"
    try:
        return dict(json.loads(whole))
    except ValueError:
        # librdkafka writes the names that brokers give themselves as they are, quotes included.
        return {}


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
    catch_verify_errors(library, conf)
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
        if topic.name is None or not legal(topic.name):
            # Kafka has no such topic, and a name of this length or kind has no place in the marks.
            continue
        if topic.error:
            errors[topic.name] = topic.error
            continue
        partitions = topic.partitions[: topic.partition_count]
        if not partitions or {p.id for p in partitions} != set(range(len(partitions))):
            # It is half made, or a proxy's: no message can have a place in it yet.
            errors[topic.name] = Code.LEADER_NOT_AVAILABLE
            continue
        leaders = np.empty(len(partitions), np.int32)
        for partition in partitions:
            leaders[partition.id] = partition.leader
        leaders.flags.writeable = False
        topics[topic.name] = leaders
    return Cluster(brokers, topics, errors)


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


MOST_ASKED = 1000
"""Names that one producer is asked for: 8 MB where Kafka has them."""


class Inquiry:
    """Asks Kafka about topics that it may not have, through short-lived producers.

    For one thread, which waits for the answers. librdkafka never forgets a topic that it was asked for, even
    after its handle is destroyed, and asks for all of them again with each request. So names that any sender
    may have made up are asked for here. Statistics would take 24 KB more for each name: these producers have
    none.

    If Kafka makes topics on demand, a request by name makes one, unless the request forbids it. So there are
    two producers: one only looks, the other lets Kafka make the topics.
    """

    def __init__(self, options: DispatchOptions) -> None:
        self.makes = options.kafka.get("allow.auto.create.topics", "true") != "false"
        """Whether `make` can have Kafka make topics."""
        self._looks, self._maker = _Asker(options, {"allow.auto.create.topics": "false"}), _Asker(options, {})

    def ask(self, names: Collection[bytes], timeout_s: float) -> Cluster:
        """Kafka's metadata of these, MOST_ASKED at most; makes no topic. Raises DispatchError."""
        return self._looks.ask(names, timeout_s)

    def make(self, names: Collection[bytes], timeout_s: float) -> None:
        """Have Kafka make these, if it makes topics on demand: `ask` tells. Raises DispatchError."""
        self._maker.ask(names, timeout_s)

    def close(self) -> None:
        """Close the producers; the next request makes another."""
        self._looks.close()
        self._maker.close()


class _Asker:
    """One producer at a time."""

    def __init__(self, options: DispatchOptions, own: dict[str, str]) -> None:
        # It sends nothing, and so wants no producer id.
        kafka = {**options.kafka, "enable.idempotence": "false", "statistics.interval.ms": "0", **own}
        self._options = dataclasses.replace(options, mode="at_least_once", kafka=kafka)
        self._client: KafkaClient | None = None
        self._asked: set[bytes] = set()

    def ask(self, names: Collection[bytes], timeout_s: float) -> Cluster:
        if len(self._asked.union(names)) > MOST_ASKED:
            self.close()
        if self._client is None:
            self._client = KafkaClient(self._options)
        self._asked.update(names)
        self._client.name_topics(names)
        found = self._client.fetch_cluster((), timeout_s)
        self._client.drop_events()
        wanted = set(names)
        return Cluster(
            found.brokers,
            {name: leaders for name, leaders in found.topics.items() if name in wanted},
            {name: code for name, code in found.errors.items() if name in wanted},
        )

    def close(self) -> None:
        if self._client:
            self._client.close()
        self._client = None
        self._asked.clear()
