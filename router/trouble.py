"""Why nothing can be sent, in one sentence: what is wrong, where, and what to do about it.

The worst trouble is named: that the producer is finished, that no broker is connected, that none answers,
then what concerns topics. A broker that is away while others are there is none: its state says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dispatch.client import KafkaClient
from dispatch.codes import Code, name_of
from dispatch.diagnosis import KafkaError, explain_errors
from dispatch.retry import decide, needs_people
from router.metadata import Metadata

FRESH_S = 60.0
"""Librdkafka repeats an error of a broker every 30 s at least."""
SLACK_S = 2.0
"""Statistics come every second: what was said shortly before they called a broker connected may be newer."""
PATIENCE_S = 5.0
"""So long a broker may fail to answer before it is called a trouble."""
MOST_NAMES = 5
"""Of topics, or brokers, in a sentence."""

_SILENT = (
    "no broker can be reached (nothing comes back from {}): look at the network between, or at the brokers"
)
_NO_RIGHT = "Kafka gives bruce's user no right to write ({}): grant it WRITE and DESCRIBE on its topics"
_FINISHED = "the producer is finished ({}), and another is tried: look at the brokers if this stays"


def explain_connections(
    states: Iterable[str], errors: Iterable[KafkaError], since: float, ended: str = ""
) -> str:
    """The sentence when no broker is connected; empty when one is, or nothing is known.

    `states`: of all brokers, in librdkafka's words; `since`: errors before it do not count; `ended`: what is
    said when there are none (KafkaClient.explain_endings).
    """
    known = set(states)
    if not known or "UP" in known:
        return ""
    return explain_errors(error for error in errors if error.at >= since) or ended


def explain_silence(brokers: Sequence[tuple[str, str]], error: str) -> str:
    """The sentence when no broker answers. `brokers`: as `states_of`; `error`: how the question ended."""
    if brokers and "UP" not in [state for _, state in brokers]:
        return _SILENT.format(_few(sorted({name for name, _ in brokers if name})))
    return f"Kafka is connected and does not answer ({error}): look at its brokers"


def states_of(client: KafkaClient) -> list[tuple[str, str]]:
    """(host:port, state) of each broker, in librdkafka's words; [] before its first statistics."""
    brokers: dict[str, Any] = client.statistics().get("brokers", {})
    real = [broker for broker in brokers.values() if broker.get("source") != "logical"]
    return [(broker.get("nodename", ""), broker["state"]) for broker in real]


def explain_topics(topics: Mapping[bytes, int]) -> str:
    """The sentence for topics whose messages Kafka does not take, by error code; empty for none.

    Those that only people can mend come first.
    """
    codes = sorted(set(topics.values()), key=lambda code: (needs_people(code), code), reverse=True)
    for code in codes:
        shown = _few(sorted(n.decode("utf-8", "backslashreplace") for n, c in topics.items() if c == code))
        if code == Code.TOPIC_AUTHORIZATION_FAILED:
            return f"no right to write to {shown}: grant it to bruce's user; its messages wait"
        if code == Code.UNKNOWN_TOPIC_OR_PART:
            return f"Kafka does not know the topic {shown}: create it; its messages wait for their grace time"
        return f"messages to {shown} come back with {name_of(code)}: {decide(code).why}; they wait"
    return ""


def _few(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


class Trouble:
    """What is known of troubles."""

    def __init__(
        self, client: KafkaClient, metadata: Metadata, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._client, self._metadata, self._clock = client, metadata, clock
        self._connected_at = self._finished_at = self._ended_at = 0.0
        self._finished = self._ended = ""
        self.noted: dict[str, str] = {}
        """By whoever says it, a sentence about what is wrong while Kafka is well, until it is taken back."""
        self.denied: dict[bytes, int] = {}
        """Topics that the newest metadata has an error for, and that messages wait for."""
        self.failing: dict[bytes, int] = {}
        """Topics whose messages came back lately, with a code that somebody has to mend."""

    def sentence(self) -> str:
        """The worst of it; empty when all is well."""
        if self._finished and self._clock() - self._finished_at < FRESH_S:
            return self._finished
        noted = next(iter(self.noted.values()), "")
        topics = {**self.denied, **self.failing}
        return self._connections() or self._answers() or noted or explain_topics(topics)

    def note_finished(self, text: str) -> None:
        """The producer is finished, and another is tried; this stands until something is delivered."""
        self._finished_at = self._clock()
        words = _NO_RIGHT if "authorization failed" in text else _FINISHED
        self._finished = words.format(text.removeprefix("Fatal error: "))

    def note_delivered(self) -> None:
        """Something was acknowledged."""
        self._finished = self._ended = ""

    def _connections(self) -> str:
        states = [state for _, state in states_of(self._client)]
        if "UP" in states:
            self._connected_at = self._clock()
        since = max(self._connected_at - SLACK_S, self._clock() - FRESH_S)
        errors = self._client.last_errors
        return explain_connections(states, errors, since, self._endings())

    def _answers(self) -> str:
        if not self._metadata.error or self._metadata.failing_s() < PATIENCE_S:
            return ""
        return self._endings() or explain_silence(states_of(self._client), self._metadata.error)

    def _endings(self) -> str:
        # librdkafka begins its counts anew with each round of brokers.
        if ended := self._client.explain_endings():
            self._ended, self._ended_at = ended, self._clock()
        return self._ended if self._clock() - self._ended_at < FRESH_S else ""
