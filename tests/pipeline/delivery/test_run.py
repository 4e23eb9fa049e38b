"""A run delivers what waited for its topic before what is newer, gives up the rest, and remembers counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dispatch.client import Cluster
from dispatch.embedded import EmbeddedKafka
from dispatch.errors import Code
from dispatch.options import DispatchOptions
from pipeline.delivery.run import Span, Waiting, usable
from spool.format.wire import Reason, encode, encode_message
from spool.index.segment_list import SegmentList
from spool.marks.marks import Marks
from spool.marks.task_files import read_counts
from spool.read.overview import take_totals
from tests.spool.fixture import SpoolFixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.delivery.run import Routing
    from pipeline.delivery.sending import Sent

NO_AUTO = {"allow.auto.create.topics": "false"}


def leaders(*brokers: int) -> Any:
    """The leaders of a topic, by partition."""
    return np.array(brokers, np.int32)


def test_what_waits_is_told_by_spans() -> None:
    """By topic and spool; given up when Kafka has denied the topic for the grace time, and never before."""
    now = [0.0]
    waiting = Waiting(10, clock=lambda: now[0])
    waiting.add(Span("a", "late", 2, 5, 9))
    waiting.add(Span("b", "late", 1, 7, 8))
    waiting.add(Span("a", "late", 3, 20, 30))
    waiting.add(Span("a", "not legal", 1, 3, 4))
    assert waiting.open_topics == ["late"]
    runs = waiting.runs("late")
    assert np.flatnonzero(runs["a"].hold(np.arange(40))).tolist() == [*range(5, 9), *range(20, 30)]
    assert np.flatnonzero(runs["b"].hold(np.arange(40))).tolist() == [7]
    denied = Cluster({}, {}, {b"late": int(Code.UNKNOWN_TOPIC_OR_PART)})
    for moment, hopeful in ((0.0, True), (9.0, True), (11.0, False)):
        now[0] = moment
        waiting.learn(denied)
        assert (waiting.open_topics == ["late"]) == hopeful
    waiting.learn(Cluster({}, {b"late": leaders(1)}, {}))
    assert waiting.open_topics == ["late"]
    waiting.drop("late")
    assert waiting.topics == ["not legal"]


def test_a_topic_without_any_leader_is_not_usable() -> None:
    """Messages that may go anywhere would have nowhere to go."""
    cluster = Cluster({}, {b"t": leaders(-1, -1), b"u": leaders(-1, 2)}, {})
    assert [usable(cluster, topic) for topic in "tuv"] == [False, True, False]


@pytest.fixture
def routing(spool: SpoolFixture) -> Iterator[Routing]:
    """The routing of a spool that held 100 messages when the run began; no Kafka is asked."""
    from pipeline.delivery.lease import delivery_lease
    from pipeline.delivery.run import Routing

    spool.append([encode(b"t", b"v")] * 100)
    spool.step()
    spool.crash()
    options = DispatchOptions(kafka={"bootstrap.servers": "127.0.0.1:1"})
    with delivery_lease(spool.layout) as lease:
        made = Routing(options, {}, [lease], shrink_s=0.2, pause_s=0.01)
        yield made
        made.close()


def told(routing: Routing) -> list[Any]:
    """The outcomes written down so far, in the order of their files' names."""
    lease = routing._leases[0]
    return [read_counts(path).histories for path in sorted(lease.outcomes.glob("*.counts"))]


def test_a_topic_that_grows_does_so_from_a_batch_on(routing: Routing, spool: SpoolFixture) -> None:
    """Never for messages from before the run; and it is written down before it is used."""
    uuid = spool.identity.spool.hex()
    for number, (count, first) in enumerate([(2, 0), (2, 50), (3, 60), (5, 300), (5, 400)]):
        cluster = Cluster({}, {b"t": leaders(*[1] * count)}, {})
        routes = routing.routes(cluster, [Span(uuid, "t", 1, first, first + 1)], f"job-{number}")
    grown = [(0, 2), (100, 3), (300, 5)]
    assert routes.histories[uuid]["t"] == grown
    assert told(routing) == [{b"t": grown[:1]}, {b"t": grown[:2]}, {b"t": grown}]


def test_a_topic_made_anew_is_believed_after_a_while(
    routing: Routing, spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker may lag behind one that grew: one answer is not enough. Then its count holds for all."""
    uuid = spool.identity.spool.hex()
    routing.routes(Cluster({}, {b"t": leaders(1, 1, 1)}, {}), [Span(uuid, "t", 1, 0, 1)], "job")
    answers = [leaders(1), leaders(1, 1, 1)]
    monkeypatch.setattr(routing, "look", lambda _: Cluster({}, {b"t": answers.pop(0)}, {}))
    assert len(routing.await_cluster(["t"]).topics[b"t"]) == 3
    monkeypatch.setattr(routing, "look", lambda _: Cluster({}, {b"t": leaders(1)}, {}))
    routes = routing.routes(routing.await_cluster(["t"]), [], "job")
    assert routes.histories[uuid]["t"] == [(0, 1)]


@pytest.mark.spark
@pytest.mark.parametrize("mode", ["at_least_once", "exactly_once"])
def test_partitions_that_senders_name(spark: SparkSession, spool: SpoolFixture, mode: str) -> None:
    """If the topic lacks it, the message is discarded for that, at once or when its topic is made.

    A topic that does not exist is a reason of its own.
    """
    from pipeline.delivery.run import run_stream

    for topic in (b"clicks", b"late", b"no such topic"):
        spool.append([encode_message(topic, b"%d" % n, partition=n) for n in (1, 5, 0, -1)])
    spool.step()
    spool.crash()
    seen: list[Sent] = []
    with EmbeddedKafka(brokers=1, topics=[("clicks", 2), ("bruce-progress", 1)]) as kafka:

        def note(sent: Sent) -> None:
            if not seen:
                kafka.topic("late", 2)
            seen.append(sent)

        options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers, **NO_AUTO}, mode=mode)
        run_stream(spark, [str(spool.options.directory)], options, {}, note, once=True)
        frame = spark.read.format("bruce-kafka").option("bootstrap.servers", kafka.bootstrap_servers)
        rows = frame.option("topics", "clicks,late").load().collect()
    assert [(sent.delivered, sent.refused, sent.left) for sent in seen] == [
        (2, {"partition": 2}, 8),
        (0, {"unknown_topic": 4}, 0),
        (2, {"partition": 2}, 0),
    ]
    assert sorted((row.topic, row.partition, row.bruce_sequence) for row in rows) == [
        ("clicks", 0, 2),
        ("clicks", 1, 0),
        ("late", 0, 6),
        ("late", 1, 4),
    ]
    account = take_totals(spool.layout, list)
    assert (account.backlog, account.delivered) == (0, 4)
    assert account.by_reason() == {Reason.PARTITION: 4, Reason.UNKNOWN_TOPIC: 4}


@pytest.mark.oldest_spark
@pytest.mark.spark
def test_messages_wait_for_their_topic(spark: SparkSession, spool: SpoolFixture) -> None:
    """Made meanwhile, it gets them all, in order; what can have no topic is discarded; others never wait."""
    from pipeline.delivery.run import run_stream

    topics = (b"clicks", b"late", b"no such topic")
    for first in range(0, 90, 10):
        spool.append(
            [encode(topics[i % 3], b"%d" % i, partition_key=i % 2) for i in range(first, first + 10)]
        )
    spool.step()
    spool.crash()
    seen: list[Sent] = []
    with EmbeddedKafka(brokers=2, topics=[("clicks", 3)]) as kafka:

        def note(sent: Sent) -> None:
            if not seen:
                kafka.topic("late", 3)
            seen.append(replace(sent, seconds=0))

        options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers, **NO_AUTO})
        run_stream(spark, [str(spool.options.directory)], options, {}, note, once=True)
        frame = spark.read.format("bruce-kafka").option("bootstrap.servers", kafka.bootstrap_servers)
        rows = frame.load().orderBy("partition", "offset").collect()
    assert [(sent.messages, sent.delivered, sent.refused, sent.left) for sent in seen] == [
        (90, 30, {}, 60),
        (30, 0, {"unknown_topic": 30}, 0),
        (30, 30, {}, 0),
    ]
    assert seen[0].unknown == ["late", "no such topic"]
    account = take_totals(spool.layout, list)
    assert (account.backlog, account.delivered, account.by_reason()) == (0, 60, {Reason.UNKNOWN_TOPIC: 30})
    for number, topic in enumerate(("clicks", "late")):
        ours = [row for row in rows if row.topic == topic]
        assert sorted(row.bruce_sequence for row in ours) == list(range(number, 90, 3))
        for partition in range(3):
            sent = [row.bruce_sequence for row in ours if row.partition == partition]
            assert sent == sorted(sent)
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout), readonly=True)
    assert marks.partitions() == {b"clicks": [(0, 3)], b"late": [(0, 3)]}
    marks.close()
