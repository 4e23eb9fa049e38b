"""Why nothing can be sent, in one sentence: what is wrong, where, and what to do about it.

The worst trouble is named: that the producer is finished, that no broker is connected, that none answers,
then what concerns topics. A broker that is away while others are there is none: its state says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from dispatch.client import KafkaClient
from dispatch.diagnosis import KafkaError, explain_errors
from dispatch.errors import Code, name_of
from dispatch.retry import decide, needs_people
from router.cluster.metadata import Metadata
from router.timing import FRESH_S, PATIENCE_S, SLACK_S
from spool.words import clipped_line

MOST_NAMES = 5
"""Of topics, or brokers, in a sentence."""
_COMING = {int(Code.UNKNOWN_TOPIC_OR_PART), int(Code.LEADER_NOT_AVAILABLE)}
"""Kafka's answers about a topic that is being created."""


class Cause(Enum):
    """The subject of a sentence."""

    OTHER = "other"
    """Some messages; others may be delivered."""
    KAFKA = "Kafka"
    """All messages: nothing can be sent."""
    ABSENT = "absent"
    """Topics that are not there yet, and may come within their grace time."""


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


def explain_topics(topics: Mapping[bytes, int], grace_s: float = 0) -> str:
    """The sentence for topics whose messages Kafka does not take, by error code; empty for none.

    Those that only people can mend come first. `grace_s`: for how long messages wait for an unknown topic.
    """
    codes = sorted(set(topics.values()), key=lambda code: (needs_people(code), code), reverse=True)
    for code in codes:
        shown = _few(sorted(n.decode("utf-8", "backslashreplace") for n, c in topics.items() if c == code))
        if code == Code.TOPIC_AUTHORIZATION_FAILED:
            return f"no right to write to {shown}: grant it to bruce's user; its messages wait"
        if code == Code.UNKNOWN_TOPIC_OR_PART:
            return (
                f"Kafka does not have the topic {shown} yet: create it, unless Kafka does by itself; its "
                f"messages are held for up to {grace_s:.0f} s"
            )
        return f"messages to {shown} come back with {name_of(code)}: {decide(code).why}; they wait"
    return ""


def _few(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(map(clipped_line, names[:MOST_NAMES])) + more


class Trouble:
    """The known troubles: those of Kafka, by its client and the metadata, and those that others note here."""

    def __init__(
        self,
        client: KafkaClient,
        metadata: Metadata,
        *,
        grace_s: float = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`grace_s`: for how long messages wait for a topic that is not there."""
        self._client, self._metadata, self._clock = client, metadata, clock
        self._grace_s = grace_s
        self.cause = Cause.OTHER
        """The subject of the last sentence."""
        self._connected_at = self._finished_at = self._ended_at = 0.0
        self._finished = self._ended = ""
        self._delivers = False
        self._complaints: dict[str, str] = {}
        """By what they are about: sentences about what is wrong while Kafka is well."""
        self._denied: Mapping[bytes, int] = {}
        self._failing: Mapping[bytes, int] = {}
        self._coming: dict[bytes, float] = {}
        """Topics that may be being created: since when."""

    def sentence(self) -> str:
        """The worst of it; empty when all is well."""
        finished = self._finished if self._clock() - self._finished_at < FRESH_S else ""
        if kafka := finished or self._connections() or self._answers():
            self.cause = Cause.KAFKA
            return kafka
        # One whose grace time is over is given up with the next metadata, unless Kafka says that it is there.
        latest = self._clock() - self._grace_s - PATIENCE_S
        coming = {
            name: code for name, code in self._denied.items() if self._coming.get(name, latest) > latest
        }
        topics = {**self._denied, **self._failing}
        wrong = {name: code for name, code in topics.items() if name not in coming or name in self._failing}
        complaint = next(iter(self._complaints.values()), "")
        self.cause = Cause.ABSENT if coming and not (complaint or wrong) else Cause.OTHER
        return complaint or explain_topics(wrong or coming, self._grace_s)

    def complain(self, about: str, sentence: str) -> None:
        """Something is wrong while Kafka is well; it replaces the complaint before about the same."""
        self._complaints[about] = sentence

    def take_back(self, about: str) -> None:
        """It is well again."""
        self._complaints.pop(about, None)

    def complaint(self, about: str) -> str | None:
        """The complaint about this that was not taken back."""
        return self._complaints.get(about)

    def note_denied(self, topics: Mapping[bytes, int]) -> None:
        """The newest metadata has an error, by code, for these topics that messages wait for; no others."""
        now = self._clock()
        self._denied = topics
        self._coming = {name: self._coming.get(name, now) for name, code in topics.items() if code in _COMING}

    def note_failing(self, topics: Mapping[bytes, int]) -> None:
        """Messages of these topics came back lately with a code that only people can mend; no others."""
        self._failing = topics

    def note_finished(self, text: str) -> None:
        """The producer is finished, and another is tried; this is so until something is delivered."""
        self._finished_at = self._clock()
        words = _NO_RIGHT if "authorization failed" in text else _FINISHED
        self._finished = words.format(text.removeprefix("Fatal error: "))

    def note_delivered(self) -> None:
        """Something was acknowledged."""
        self._finished = self._ended = ""
        self._delivers = True

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
        if self._delivers:
            # The protocol and the user are right: brokers that end connections now have another reason.
            return ""
        # librdkafka begins its counts at 0 with each round of brokers.
        if ended := self._client.explain_endings():
            self._ended, self._ended_at = ended, self._clock()
        return self._ended if self._clock() - self._ended_at < FRESH_S else ""
