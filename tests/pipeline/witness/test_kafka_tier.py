"""A cluster as a tier: new topics, offsets that were dropped, and a cluster that is away."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from dispatch.record_consumer import RecordConsumer
from pipeline.witness.kafka_tier import ANSWER_S, BEGUN_LATE, PREFIX, SERVERS, KafkaTier, Place
from pipeline.witness.state import WitnessState
from pipeline.witness.tier import Position, TierState
from tests.dispatch.fixture import await_true

ANSWERS = {("t", 0): (0, 10), ("t", 1): (0, 0)}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One cluster with a topic of two partitions."""
    with closing(EmbeddedKafka(topics=[("t", 2), ("east.t", 1)])) as kafka:
        yield kafka


@pytest.fixture
def state(tmp_path: Path) -> Iterator[TierState]:
    """Of a witness that has seen nothing."""
    with closing(WitnessState(tmp_path)) as whole:
        yield whole.tier("kafka")


def opened(kafka: EmbeddedKafka, state: TierState, prefix: str = "") -> KafkaTier:
    """The tier."""
    return KafkaTier(state, Place({"bootstrap.servers": kafka.bootstrap_servers}, prefix))


def answer(monkeypatch: pytest.MonkeyPatch, answers: dict[Position, tuple[int, int]]) -> None:
    """Have Kafka tell these ends: the embedded one drops nothing by itself."""

    def ends(
        _: RecordConsumer, __: float, partitions: Iterable[Position] | None = None
    ) -> dict[Position, tuple[int, int]]:
        return {one: answers[one] for one in partitions or answers if one in answers}

    monkeypatch.setattr(RecordConsumer, "ends", ends)


def test_topics_that_spools_have_are_read(kafka: EmbeddedKafka, state: TierState) -> None:
    """By the names that the mirror gives them; without a list, all."""
    with closing(opened(kafka, state)) as tier:
        tier.look({"t"})
        assert tier.ends == {("t", 0): 0, ("t", 1): 0}
        tier.look(None)
        assert tier.ends.keys() == {("t", 0), ("t", 1), ("east.t", 0)}
        assert (tier.is_fresh, tier.error, tier.lag) == (True, "", 0)
        assert state.facts[SERVERS] == kafka.bootstrap_servers
    with closing(opened(kafka, state, "east.")) as tier:
        tier.look({"t"})
        assert ("east.t", 0) in tier.ends
        assert state.facts[PREFIX] == "east."


def test_a_cluster_that_is_away_is_no_end(kafka: EmbeddedKafka, state: TierState) -> None:
    """The tier says why, and nothing of it counts as read to its end."""
    with closing(opened(kafka, state)) as tier:
        tier.look(None)
        kafka.down()
        tier.look(None)
        assert not tier.is_fresh
        assert tier.error
        begun = time.monotonic()
        tier.look(None)
        # Other tiers are not read meanwhile.
        assert time.monotonic() - begun < ANSWER_S
        kafka.up()

        def is_back() -> bool:
            # librdkafka waits up to 10 s before it connects again.
            tier.look(None)
            return tier.is_fresh

        await_true(is_back)
        assert tier.error == ""


def test_offsets_that_were_dropped_count_once(
    kafka: EmbeddedKafka, state: TierState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were never read: messages may be missing for that."""
    answer(monkeypatch, ANSWERS)
    with closing(opened(kafka, state)) as tier:
        tier.look({"t"})
        assert (BEGUN_LATE in state.facts, state.skipped, tier.lag) == (False, 0, 10)
        for _ in range(2):
            answer(monkeypatch, ANSWERS | {("t", 0): (4, 10)})
            tier.look({"t"})
            assert state.skipped == 4
        answer(monkeypatch, ANSWERS | {("t", 0): (5, 10)})
        tier.look({"t"})
        assert state.skipped == 5


def test_a_first_look_that_comes_late_is_noted(
    kafka: EmbeddedKafka, state: TierState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier messages cannot be judged then, and nothing counts as skipped."""
    answer(monkeypatch, ANSWERS | {("t", 1): (3, 3)})
    with closing(opened(kafka, state)) as tier:
        tier.look({"t"})
        assert (state.facts[BEGUN_LATE], state.skipped) == (1, 0)


def test_a_topic_that_was_made_again_is_read_from_its_beginning(
    kafka: EmbeddedKafka, state: TierState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is before what was read of the one before."""
    state.positions["t", 0] = 50
    answer(monkeypatch, ANSWERS)
    with closing(opened(kafka, state)) as tier:
        tier.look({"t"})
        assert state.positions["t", 0] == 0
