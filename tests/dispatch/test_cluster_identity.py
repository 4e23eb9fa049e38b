"""A cluster says who it is; the ids of topics are in tests/real_kafka/test_cluster_identity.py."""

from __future__ import annotations

import time
from concurrent.futures import Future
from contextlib import closing
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from dispatch import cluster_identity
from dispatch.cluster_identity import identity_of
from dispatch.embedded import EmbeddedKafka
from dispatch.errors import BadProperty, Unreachable

ANSWER_S = 60.0


def test_clusters_are_told_apart() -> None:
    """Each has an id, which stays; the embedded one has no ids of topics, and is not waited for."""
    begun = time.monotonic()
    with closing(EmbeddedKafka(topics=[("t", 1)])) as one, closing(EmbeddedKafka(topics=[("t", 1)])) as other:
        asked = [one, one, other]
        first, again, second = (
            identity_of({"bootstrap.servers": k.bootstrap_servers}, {"t"}, ANSWER_S) for k in asked
        )
    assert first.cluster == again.cluster != second.cluster
    assert first.cluster
    assert first.topics == {}
    assert time.monotonic() - begun < ANSWER_S


def test_a_cluster_that_is_away_is_said() -> None:
    """So is a property without what it needs."""
    with pytest.raises(Unreachable, match="does not tell its id"):
        identity_of({"bootstrap.servers": "127.0.0.1:1"}, {"t"}, 0.2)
    with pytest.raises(BadProperty):
        identity_of({"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_SSL"}, {"t"}, 0.2)


class Admin:
    """A cluster with two topics, which tells of one of them what `answer` is."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def list_topics(self, timeout: float) -> object:
        """A controller is there."""
        return SimpleNamespace(cluster_id="c", controller_id=1, brokers={1: None})

    def describe_topics(self, *_: object, **__: object) -> dict[str, Future[object]]:
        """The id of one, and the answer."""
        good, other = Future[object](), Future[object]()
        good.set_result(SimpleNamespace(topic_id="id"))
        if isinstance(self.answer, Exception):
            other.set_exception(self.answer)
        return {"t": good, "u": other}


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        (KafkaError._TIMED_OUT, True),
        (KafkaError.REQUEST_TIMED_OUT, True),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False),
    ],
)
def test_a_topic_without_an_answer(monkeypatch: pytest.MonkeyPatch, code: int, *, passes: bool) -> None:
    """An error that passes says nothing of it: to ask again is right. Others mean that it has no id."""
    admin = Admin(KafkaException(KafkaError(code)))
    monkeypatch.setattr(cluster_identity, "AdminClient", lambda _properties: admin)
    asked = {"bootstrap.servers": "127.0.0.1:1"}, {"t", "u"}, 1.0
    if passes:
        with pytest.raises(Unreachable, match="does not tell the ids"):
            identity_of(*asked)
    else:
        assert identity_of(*asked).topics == {"t": "id"}
