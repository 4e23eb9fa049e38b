"""Kafka: the library, whether brokers answer, whether topics are there, and whether Kafka keeps what is late.

For the last, settings of topics are compared with what waits in the spool, and with what could wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress

import numpy as np

from cli.config.config import EMBEDDED, Config
from cli.doctor import Finding, Level
from cli.status.report import UNDER_WAY_S, oldest_records
from dispatch import librdkafka
from dispatch.client import NO_LEADER, Cluster, KafkaClient
from dispatch.errors import DispatchError, Unreachable
from dispatch.topic_settings import Lateness, read_lateness
from router.cluster.trouble import explain_connections, explain_silence, states_of
from spool.errors import SpoolError
from spool.index.environment import UNREADABLE
from spool.index.segment_list import SegmentList
from spool.index.soundness import has_begun
from spool.layout import Layout
from spool.marks.marks import Marks
from spool.read.backlog import Backlog
from status.health import in_words, limits_of, too_late

MOST_TOPICS = 200
"""Of those in the spool that Kafka is asked about."""
TIMEOUT_S = 10.0
HASTE_S = 3.0
"""After an error, the time for another broker to answer."""
_SLICE_S = 0.5
_NAME, _TOPIC = "kafka", "topic"


def judge(
    found: Mapping[bytes, Lateness], oldest: Mapping[bytes, float], room_s: float | None
) -> Iterator[Finding]:
    """The topics that delete or refuse messages that come as late as that.

    `oldest`: by topic, the age of the oldest message that waits by its own timestamp, in seconds. `room_s`:
    the longest outage that the spool has room for; None: not known.
    """
    late = list(too_late(found, oldest))
    for one in late:
        yield Finding("late", Level.PROBLEM, one.sentence, one.remedy)
    known = {one.topic for one in late}
    for topic, lateness in sorted(found.items()):
        for limit_s, limit, end, remedy in limits_of(topic, lateness):
            if room_s is not None and room_s > limit_s and topic not in known:
                outage = f"after a longer outage, for which the spool has room ({in_words(room_s)})"
                yield Finding("late", Level.ADVICE, f"{limit}: {outage}, {end}", remedy)


def look(
    config: Config,
    seconds: float = TIMEOUT_S,
    *,
    room_s: float | None = None,
) -> Iterator[Finding]:
    """All checks of Kafka. Its brokers are asked for `seconds` at most.

    `room_s`: the longest outage that the spool has room for, where that is known.
    """
    yield check_library()
    if config.dispatch.kafka.get("bootstrap.servers") == EMBEDDED:
        yield Finding(_NAME, Level.OK, "Kafka is the embedded one, which ends with the daemon")
        return
    try:
        cluster = ask(config, seconds)
    except DispatchError as error:
        yield Finding(_NAME, Level.PROBLEM, str(error))
        yield from check_lateness(config, None, seconds, room_s)
        return
    brokers = ", ".join(cluster.brokers[number] for number in sorted(cluster.brokers))
    yield Finding(_NAME, Level.OK, f"brokers answer: {brokers}")
    yield from check_topics(config, cluster)
    yield from check_lateness(config, cluster, seconds, room_s)


def check_lateness(
    config: Config, cluster: Cluster | None, seconds: float, room_s: float | None
) -> Iterator[Finding]:
    """Of the spool's topics: whether Kafka keeps and takes what comes late.

    Without a cluster, as the delivery worker learnt last.
    """
    layout, now_ns = Layout(config.spool.directory), time.time_ns()
    found, oldest = dict[bytes, Lateness](), dict[bytes, float]()
    # Of a spool that cannot be read other checks tell.
    with suppress(*UNREADABLE, SpoolError, OSError), closing(Backlog(layout)) as backlog:
        waiting = backlog.look()
        waits = waiting.oldest is not None and now_ns - waiting.oldest.received_ns > UNDER_WAY_S * 1e9
        if waits or room_s is not None:
            topics = _delivered_to(layout) | waiting.topics.keys()
            found = _learn(config, topics, cluster, seconds)
        if waits:
            oldest = oldest_records(backlog, waiting, found, now_ns)
    yield from judge(found, oldest, room_s)


def _delivered_to(layout: Layout) -> set[bytes]:
    """The topics that have had messages of this spool."""
    if not has_begun(layout.delivery):
        return set()
    with closing(Marks(layout.delivery, SegmentList(layout), readonly=True)) as marks:
        return set(marks.partitions())


def _learn(
    config: Config, topics: set[bytes], cluster: Cluster | None, seconds: float
) -> dict[bytes, Lateness]:
    """How late messages of topics may come: as noted last, and as Kafka says where it answers."""
    found = read_lateness(Layout(config.spool.directory))
    if cluster is not None:
        known = sorted(topics & cluster.topics.keys())[:MOST_TOPICS]
        with _quiet(), closing(KafkaClient(config.dispatch)) as client:
            found |= client.fetch_lateness(known, seconds)
    return found


def check_library() -> Finding:
    """Which librdkafka it is, and what it can do."""
    return Finding("librdkafka", Level.OK, f"librdkafka {librdkafka.version()}: {librdkafka.features()}")


def ask(config: Config, seconds: float) -> Cluster:
    """Every topic that Kafka shows. Raises Unreachable, whose text says why and what to do; DispatchError."""
    start, ended = time.monotonic(), ""
    with _quiet(), closing(KafkaClient(config.dispatch)) as client:
        while True:
            try:
                return client.fetch_all(_SLICE_S)
            except Unreachable as error:
                client.note_events()
                ended = client.explain_endings() or ended
                why, elapsed = _why(client, ended), time.monotonic() - start
                if (why and elapsed > HASTE_S) or elapsed > seconds:
                    why = why or ended or explain_silence(states_of(client), str(error))
                    raise Unreachable(error.code, why) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the lines of librdkafka, of which the finding says the cause in words."""
    log = logging.getLogger("dispatch.librdkafka")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _why(client: KafkaClient, ended: str) -> str:
    """The broker errors that librdkafka reported so far; empty if a broker is connected, or none is known."""
    states = [state for _, state in states_of(client)]
    return explain_connections(states, client.last_errors, 0, ended)


def expected(config: Config) -> dict[str, Finding]:
    """By topic that the configuration names, what is to be said when Kafka does not have it."""
    dispatch = config.dispatch
    found = {
        name: Finding(
            _TOPIC,
            Level.ADVICE,
            f"Kafka has no topic {name}, or does not show it to bruce's user; the configuration names it",
            "create it, unless Kafka makes topics by itself; grant DESCRIBE and WRITE",
        )
        for name in {*dispatch.topics, *config.partitioners, *config.rates}
        | {name.decode() for name in config.spool.quotas}
    }
    if dispatch.mode == "exactly_once":
        found[dispatch.progress_topic] = Finding(
            _TOPIC,
            Level.OK,
            f"the topic {dispatch.progress_topic} is not there yet: bruce makes it at its first start",
        )
    if dispatch.dead_letter_topic:
        found[dispatch.dead_letter_topic] = Finding(
            _TOPIC,
            Level.PROBLEM,
            f"Kafka has no topic {dispatch.dead_letter_topic}, or does not show it to bruce's user: "
            "dead letters wait, and hold their segments",
            "create it; grant DESCRIBE and WRITE",
        )
    return found


def check_topics(config: Config, cluster: Cluster) -> Iterator[Finding]:
    """Those that the configuration names: whether they are there, and can be written to."""
    missing = expected(config)
    for name, finding in sorted(missing.items()):
        leaders = cluster.topics.get(name.encode())
        if leaders is None:
            yield finding
        elif headless := np.flatnonzero(leaders == NO_LEADER).tolist():
            listed = ", ".join(map(str, headless))
            yield Finding(
                _TOPIC,
                Level.PROBLEM,
                f"topic {name}: partition {listed} has no leader; its messages wait",
                "look at Kafka's brokers",
            )
    if missing and not (set(missing) - {name.decode() for name in cluster.topics}):
        yield Finding(_TOPIC, Level.OK, f"Kafka has the topics that the configuration names: {len(missing)}")
