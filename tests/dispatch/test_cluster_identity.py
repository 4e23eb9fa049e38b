"""A cluster says who it is; the ids of topics are in tests/real_kafka/test_cluster_identity.py."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

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
