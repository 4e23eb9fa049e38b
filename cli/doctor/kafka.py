"""Kafka: the library, whether brokers answer, whether the topics are there that the configuration names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np

from cli.config import EMBEDDED, Config
from cli.doctor.finding import Finding, Level
from dispatch import librdkafka
from dispatch.client import KafkaClient
from dispatch.cluster import NO_LEADER, Cluster
from dispatch.errors import DispatchError, Unreachable
from router.trouble import explain_connections, explain_silence, states_of

TIMEOUT_S = 10.0
HASTE_S = 3.0
"""After an error, so long one of the other brokers may take to answer."""
_SLICE_S = 0.5
_NAME, _TOPIC = "kafka", "topic"


def look(config: Config, seconds: float = TIMEOUT_S) -> Iterator[Finding]:
    """All checks of Kafka. Its brokers are asked for `seconds` at most."""
    yield check_library()
    if config.dispatch.kafka.get("bootstrap.servers") == EMBEDDED:
        yield Finding(_NAME, Level.OK, "Kafka is the embedded one, which lives as long as the daemon")
        return
    try:
        cluster = ask(config, seconds)
    except DispatchError as error:
        yield Finding(_NAME, Level.PROBLEM, str(error))
        return
    brokers = ", ".join(cluster.brokers[number] for number in sorted(cluster.brokers))
    yield Finding(_NAME, Level.OK, f"brokers answer: {brokers}")
    yield from check_topics(config, cluster)


def check_library() -> Finding:
    """Which librdkafka it is, and what it can do."""
    return Finding("librdkafka", Level.OK, f"librdkafka {librdkafka.version()}: {librdkafka.features()}")


def ask(config: Config, seconds: float) -> Cluster:
    """Every topic that Kafka shows. Raises Unreachable, whose text says why and what to do; DispatchError."""
    start, ended = time.monotonic(), ""
    with closing(KafkaClient(config.dispatch)) as client:
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


def _why(client: KafkaClient, ended: str) -> str:
    """What librdkafka has said of the brokers by now; empty when one is connected, or nothing is known."""
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
                f"of the topic {name} nobody leads partition {listed}: their messages wait",
                "look at Kafka's brokers",
            )
    if missing and not (set(missing) - {name.decode() for name in cluster.topics}):
        yield Finding(_TOPIC, Level.OK, f"Kafka has the topics that the configuration names: {len(missing)}")
