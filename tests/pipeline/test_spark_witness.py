"""The witness on Spark finds what it finds without, and each record counts once, whatever dies."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from pyroaring import BitMap64

from dispatch.embedded import EmbeddedKafka
from pipeline.errors import JobFailed
from pipeline.witness.expected import Spools
from pipeline.witness.kafka_tier import TIER, Place
from pipeline.witness.report import Report, report
from pipeline.witness.run import Witness, watch
from pipeline.witness.state import WitnessState
from spool.format.segment_format import BLOCK
from tests.pipeline.witness.test_run import MESSAGES, Clock, Host

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipeline.spark_witness import SparkTier

pytestmark = pytest.mark.spark

PATIENCE_S = 120.0
BATCH = 2500
"""Offsets: so that there are several."""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """One."""
    return Host(tmp_path / "host")


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """With topics of two partitions."""
    with EmbeddedKafka(topics=[(f"t{one}", 2) for one in range(3)]) as running:
        yield running


class Watching:
    """A witness on Spark that works step by step, and can be killed."""

    def __init__(self, session: SparkSession, directory: Path, host: Host, kafka: EmbeddedKafka) -> None:
        from pipeline.spark_witness import SparkPlace

        place = Place({"bootstrap.servers": kafka.bootstrap_servers})
        self.where = SparkPlace(place, session, Event(), BATCH)
        self.directory, self.host, self.clock = directory, host, Clock()
        self.open()

    def open(self) -> None:
        """Begin, or go on where the last checkpoint was."""
        self.state = WitnessState(self.directory)
        self.tier: SparkTier = self.where.tier(self.state.tier(TIER))
        self.witness = Witness(
            self.state, Spools([self.host.path]), [self.tier], late_s=60.0, clock=self.clock
        )

    def close(self) -> None:
        """As a kill does: nothing is written."""
        self.tier.close()
        self.state.close()

    def read_until(self, is_enough: Callable[[], bool]) -> None:
        """Take in batches, and look as often as a witness does."""
        deadline = time.monotonic() + PATIENCE_S
        looked = 0.0
        while not is_enough():
            assert time.monotonic() < deadline, "the query gave too little"
            if time.monotonic() - looked > 1.0:
                self.witness.look()
                looked = time.monotonic()
            self.witness.read(0.2)

    def catch_up(self) -> None:
        """Read all that Kafka has."""
        self.witness.look()
        self.read_until(lambda: not self.tier.is_behind(self.tier.ends))

    def round(self) -> Report:
        """Catch up, let time pass, and catch up: then all that was delivered is due."""
        self.catch_up()
        self.witness.look()
        self.clock.now += 61.0
        self.catch_up()
        self.witness.look()
        self.witness.look()
        with closing(WitnessState(self.directory, readonly=True)) as state:
            return report(state, Spools([self.host.path]).look())


@pytest.fixture
def watching(spark: SparkSession, tmp_path: Path, host: Host, kafka: EmbeddedKafka) -> Iterator[Watching]:
    """One that has seen nothing."""
    with closing(Watching(spark, tmp_path / "witness", host, kafka)) as made:
        yield made


def counts(found: Report) -> tuple[bool, int, int, int]:
    """Whether all is sound; messages judged, there twice, and late."""
    (row,) = found.rows
    verdict = row.verdict
    return found.sound, verdict.judged, len(verdict.duplicated), verdict.late


def all_but(gone: Iterable[int]) -> list[int]:
    """All messages but these."""
    return sorted(set(range(MESSAGES)) - set(gone))


@pytest.mark.oldest_spark
def test_planted_faults_are_found(watching: Watching, host: Host, kafka: EmbeddedKafka) -> None:
    """Exactly those, by sequence, or by block, in batches that end anywhere."""
    host.deliver(MESSAGES)
    lost, twice, altered = {3, 4, 5, 4100}, {7, 8, 9000}, {BLOCK * 2 + 77}
    host.send(kafka, all_but(lost | altered))
    host.send(kafka, twice)
    host.send(kafka, altered, other=b"!")
    found = watching.round()
    (row,) = found.rows
    assert not found.sound
    assert row.verdict.missing == BitMap64(lost)
    assert row.verdict.duplicated == BitMap64(twice)
    assert (list(row.verdict.altered), list(row.verdict.uncompared)) == ([2], [])
    assert (found.tiers[0][1], watching.tier.lag) == (MESSAGES - len(lost) + len(twice), 0)


@pytest.mark.long
def test_a_kill_before_and_after_a_checkpoint(watching: Watching, host: Host, kafka: EmbeddedKafka) -> None:
    """Records that were taken in and not written are read again, and no others. Each counts once."""
    host.deliver(MESSAGES)
    host.send(kafka, range(MESSAGES))
    for written in (False, True, False):
        before = watching.tier.state.records
        watching.read_until(lambda before=before: watching.tier.state.records > before)  # type: ignore[misc]
        if written:
            watching.witness.look()
        at = watching.tier.state.records
        watching.close()
        watching.open()
        assert (watching.tier.state.records == at) == written
    found = watching.round()
    assert counts(found) == (True, MESSAGES, 0, 0)
    assert found.tiers[0][1:] == (MESSAGES, 0)


def test_one_process_goes_on(watching: Watching, host: Host, kafka: EmbeddedKafka) -> None:
    """`brucectl witness run` reads from where Spark was, in the same tier; and Spark from where that was."""
    host.deliver(MESSAGES)
    host.send(kafka, range(5000))
    watching.catch_up()
    watching.witness.look()
    watching.close()
    host.send(kafka, range(5000, 9000))
    with closing(WitnessState(watching.directory)) as state:
        assert state.tiers() == [TIER]
        with closing(watching.where.place.tier(state.tier(TIER))) as tier:
            witness = Witness(state, Spools([host.path]), [tier], late_s=60.0)
            while state.tier(TIER).records < 9000:
                witness.look()
                witness.read(0.2)
            witness.look()
    watching.open()
    assert watching.tier.state.records == 9000
    host.send(kafka, range(9000, MESSAGES))
    assert counts(watching.round()) == (True, MESSAGES, 0, 0)


def test_a_batch_that_spark_gives_again(
    watching: Watching, host: Host, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts once, and so do the others; the next look begins another query at the positions."""
    from pipeline.spark_witness import Feed

    take, given = Feed.take, list[Any]()

    def twice(feed: Feed, timeout_s: float) -> Any:
        if len(given) == 1:
            given.append(given[0])
            return given[0]
        if (table := take(feed, timeout_s)) is not None and table.num_rows:
            given.append(table)
        return table

    monkeypatch.setattr(Feed, "take", twice)
    host.deliver(MESSAGES)
    host.send(kafka, range(MESSAGES))
    watching.witness.look()
    first = watching.tier._feed
    assert counts(watching.round()) == (True, MESSAGES, 0, 0)
    assert len(given) > 2
    assert watching.tier._feed is not first


@pytest.mark.oldest_spark
def test_a_query_that_fails(
    watching: Watching, host: Host, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a batch that was taken in: the tier says why, another query goes on, and all count once."""
    from pipeline.spark_witness import Feed

    give, failed = Feed._give, list[int]()

    def give_and_fail(feed: Feed, batch: DataFrame, number: int) -> None:
        give(feed, batch, number)
        if not failed:
            failed.append(number)
            raise OSError("the disk of this test")

    monkeypatch.setattr(Feed, "_give", give_and_fail)
    host.deliver(MESSAGES)
    host.send(kafka, range(MESSAGES))
    watching.witness.look()
    watching.read_until(lambda: watching.tier.error != "")
    assert counts(watching.round()) == (True, MESSAGES, 0, 0)
    assert (failed, watching.tier.error) == ([0], "")


@pytest.mark.long
def test_a_query_that_always_fails(
    watching: Watching, host: Host, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends the witness with the sentence, where Kafka answers; and nothing counts that was not read."""
    from pipeline.spark_witness import Feed

    def fail(feed: Feed, batch: DataFrame, number: int) -> None:
        raise JobFailed("no room on this host")

    monkeypatch.setattr(Feed, "_give", fail)
    host.send(kafka, range(10))
    with pytest.raises(JobFailed, match="no room on this host"):
        watching.read_until(lambda: False)
    assert watching.tier.state.records == 0


def test_a_topic_that_appears(spark: SparkSession, tmp_path: Path, host: Host) -> None:
    """While the query runs: it is read from its beginning, and no other topic is read again."""
    host.deliver(MESSAGES)
    on_t2 = [one for one in range(MESSAGES) if one // 64 * 64 % 3 == 2]
    with (
        EmbeddedKafka(topics=[("t0", 2), ("t1", 2)]) as kafka,
        closing(Watching(spark, tmp_path / "witness", host, kafka)) as watching,
    ):
        host.send(kafka, all_but(on_t2))
        watching.catch_up()
        assert watching.tier.state.records == MESSAGES - len(on_t2)
        kafka.topic("t2", 3)
        host.send(kafka, on_t2)
        assert counts(watching.round()) == (True, MESSAGES, 0, 0)
        assert watching.tier.state.records == MESSAGES


@pytest.mark.long
def test_kafka_being_away(watching: Watching, host: Host, kafka: EmbeddedKafka) -> None:
    """Is said, and ends nothing: the query goes on when Kafka is there again."""
    host.deliver(MESSAGES)
    host.send(kafka, range(100))
    watching.catch_up()
    kafka.down(-1)
    watching.read_until(lambda: watching.tier.error != "")
    kafka.up(-1)
    host.send(kafka, range(100, MESSAGES))
    assert counts(watching.round()) == (True, MESSAGES, 0, 0)
    assert watching.tier.error == ""


@pytest.mark.long
def test_the_whole_until_it_is_stopped(
    spark: SparkSession, tmp_path: Path, host: Host, kafka: EmbeddedKafka
) -> None:
    """It writes the document, and leaves all written, and no query. No plan shows a secret."""
    from pipeline.spark_witness import SparkPlace

    host.deliver(MESSAGES)
    host.send(kafka, range(MESSAGES))
    stop, directory = Event(), tmp_path / "witness"
    secret = {"sasl.password": "s3cr3t-1", "sasl.oauthbearer.config": "principal=s3cr3t-2"}
    place = Place({"bootstrap.servers": kafka.bootstrap_servers, **secret})
    places = {TIER: SparkPlace(place, spark, stop)}
    errors: list[BaseException] = []

    def work() -> None:
        try:
            watch(directory, [host.path], places, stop, late_s=0.0)
        except BaseException as error:  # noqa: BLE001  (the test tells it)
            errors.append(error)

    thread = Thread(target=work)
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    document: dict[str, Any] = {}
    plans = ""
    while not document.get("tiers", [{}])[0].get("records") and time.monotonic() < deadline and not errors:
        time.sleep(0.2)
        for query in spark.streams.active:
            plans += query._jsq.explainInternal(True)
        if (directory / "witness.json").exists():
            document = json.loads((directory / "witness.json").read_text())
    stop.set()
    thread.join(PATIENCE_S)
    assert not errors
    assert not thread.is_alive()
    assert not spark.streams.active
    (tier,) = document["tiers"]
    assert (tier["tier"], tier["records"], tier["error"]) == ("kafka", MESSAGES, "")
    assert "bruce-stamps" in plans
    assert "s3cr3t" not in plans
    with closing(WitnessState(directory, readonly=True)) as state:
        assert state.tier("kafka").records == MESSAGES
