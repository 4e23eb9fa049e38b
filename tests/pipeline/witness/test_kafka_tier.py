"""A cluster as a tier: new topics, offsets that were dropped, and a cluster that is away."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from pyroaring import BitMap64

from dispatch.cluster_identity import Identity
from dispatch.embedded import EmbeddedKafka
from dispatch.record_consumer import RecordConsumer
from pipeline.errors import JobFailed
from pipeline.witness import kafka_tier
from pipeline.witness.expected import Expected, SpoolSide
from pipeline.witness.kafka_tier import ANSWER_S, BEGUN_LATE, CLUSTER, PREFIX, SERVERS, KafkaTier, Place
from pipeline.witness.state import WitnessState
from pipeline.witness.tier import Position, TierState, begin_of, is_begun
from spool.format.segment_format import SUM
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
    # As if it had been killed behind a checkpoint.
    with closing(opened(kafka, state)) as tier:
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


def identify(monkeypatch: pytest.MonkeyPatch, cluster: str, topics: dict[str, str]) -> None:
    """Have Kafka tell these ids: topics of the embedded one have none."""
    found = Identity(cluster, topics)
    monkeypatch.setattr(kafka_tier, "identity_of", lambda *_: found)


def test_a_topic_that_was_made_again_is_read_from_its_beginning(
    kafka: EmbeddedKafka, state: TierState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another id says so, though it has more records than were read; or else an end before what was read."""
    state.positions["t", 0] = 50
    answer(monkeypatch, ANSWERS)
    with closing(opened(kafka, state)) as tier:
        tier.look({"t"})
        assert state.positions["t", 0] == 0
    state.positions["t", 0] = 8
    for made, position in (("a", 8), ("a", 8), ("b", 0), ("b", 8)):
        identify(monkeypatch, str(state.facts[CLUSTER]), {"t": made})
        with closing(opened(kafka, state)) as tier:
            tier.look({"t"})
            assert state.positions["t", 0] == position
            state.positions["t", 0] = 8


def test_the_same_topic_that_ends_earlier_is_not_read_again(
    kafka: EmbeddedKafka, state: TierState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that had less leads it: what was read would all be there twice."""
    identify(monkeypatch, "c", {"t": "a"})
    answer(monkeypatch, ANSWERS | {("t", 0): (0, 50)})
    with closing(opened(kafka, state)) as tier:
        tier.look({"t"})
    state.positions["t", 0] = 50
    answer(monkeypatch, ANSWERS)
    with closing(opened(kafka, state)) as tier:
        tier.look({"t"})
        assert state.positions["t", 0] == 10


def test_another_cluster_is_refused(
    kafka: EmbeddedKafka, state: TierState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions of the one before mean nothing there."""
    with closing(opened(kafka, state)) as tier:
        tier.look({"t"})
        assert tier.is_fresh
    identify(monkeypatch, "other", {})
    with closing(opened(kafka, state)) as tier, pytest.raises(JobFailed, match="is another cluster"):
        tier.look({"t"})


def test_a_topic_that_is_gone_is_not_waited_for(
    kafka: EmbeddedKafka, state: TierState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that was made again with less: only what is there can be read."""
    answer(monkeypatch, ANSWERS)
    with closing(opened(kafka, state)) as tier:
        tier.look({"t"})
        ends = tier.ends
        assert tier.is_behind(ends)
        answer(monkeypatch, {("t", 0): (0, 4), ("t", 1): (0, 0)})
        tier.look({"t"})
        assert tier.is_behind(ends)
        state.positions["t", 0] = 4
        assert not tier.is_behind(ends)
        answer(monkeypatch, {("t", 1): (0, 0)})
        tier.look(set())
        assert not tier.is_behind(ends)
        kafka.down()
        tier.look({"t"})
        assert tier.is_behind(ends)


def test_a_spool_is_judged_from_its_beginning_once_that_is_known(
    kafka: EmbeddedKafka, state: TierState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Kafka has all, from 0 on; else behind the last message that was delivered; decided once."""
    nothing = np.empty(0, np.int64)
    stored, waiting = BitMap64(range(100)), BitMap64([40, 50])
    expected = Expected(
        stored, BitMap64(), waiting, nothing, np.empty(0, SUM), nothing.view(np.bool_), nothing.view(np.bool_)
    )
    side = SpoolSide("aa" * 16, "host", "/spool", frozenset(), True, expected, 100)
    with closing(opened(kafka, state)) as tier:
        tier.begin(side)
        assert not is_begun(state, side.spool)
        answer(monkeypatch, ANSWERS)
        tier.look({"t"})
        tier.begin(side)
        assert (is_begun(state, side.spool), begin_of(state, side.spool)) == (True, 0)
        state.facts[BEGUN_LATE] = 1
        for uuid, more, begin in (
            ("aa", expected, 0),
            ("bb", expected, 100),
            ("cc", expected._replace(open=BitMap64(range(40, 100))), 40),
            ("dd", expected._replace(open=stored), 0),
        ):
            tier.begin(side._replace(spool=uuid * 16, expected=more))
            assert begin_of(state, uuid * 16) == begin
