"""One task's messages arrive once, in order, over brokers that refuse for a while; without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest

from dispatch.embedded import EmbeddedKafka
from dispatch.options import DispatchOptions
from dispatch.transactions import runner
from dispatch.transactions.exactly_once import ExactlyOnce, Phase
from pipeline.delivery.carrier import Carrier, TransactionalTask, nothing_earlier
from pipeline.delivery.task_book import TaskBook
from pipeline.delivery.task_log import Settled
from pipeline.errors import JobFailed
from pipeline.source.columns import NOWHERE, to_batch
from pipeline.source.segments import topic_name
from router.partition import ABSENT
from spool.format.wire import DEAD_LETTERED, Reason, encode, encode_message
from tests.daemon import consume

SPOOL = bytes(range(16))
PATIENCE_S = 60.0


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Two brokers, and a topic of three partitions."""
    with EmbeddedKafka(brokers=2, topics=[("t", 3)]) as running:
        yield running


def load(carrier: Carrier, first: int, end: int) -> None:
    """Have messages of these numbers carried, each to the partition that its number gives."""
    numbers = np.arange(first, end)
    columns = {
        "sequence": pa.array(numbers),
        "topic": pa.array(["t"] * len(numbers)),
        "value": pa.array([b"%d" % n for n in numbers.tolist()]),
    }
    carrier.load(to_batch(columns, carrier.topics), (numbers % 3).astype(np.int32))


def test_order_is_kept_through_refusals_and_small_windows(kafka: EmbeddedKafka) -> None:
    """Some batches come back, others wait for room: each partition has its messages once, in their order."""
    options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers}, window_messages=15)
    end = time.monotonic() + PATIENCE_S
    carrier = Carrier(options, SPOOL, over=lambda: time.monotonic() > end)
    # NOT_ENOUGH_REPLICAS, INVALID_RECORD of a whole batch: neither is believed before it was alone.
    kafka.errors(0, [19, 19, 87, 19])
    try:
        for first in range(0, 600, 100):
            load(carrier, first, first + 100)
        carrier.finish()
        settled = carrier.settled()
    finally:
        carrier.close()
    assert sorted(settled.sequences.tolist()) == list(range(600))
    assert not settled.reasons.any()
    records = consume(kafka.bootstrap_servers, "t", 3, 600)
    assert len(records) == 600
    for partition in range(3):
        sent = [int(record.value() or b"") for record in records if record.partition() == partition]
        assert sent == list(range(partition, 600, 3))


def test_what_does_not_come_in_order_is_refused(kafka: EmbeddedKafka) -> None:
    """Once in a number of the past, once twice the same."""
    carrier = Carrier(DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers}), SPOOL)
    kafka.down(-1)
    try:
        columns = {"sequence": pa.array([5, 4]), "topic": pa.array(["t", "t"])}
        with pytest.raises(JobFailed, match="must be sorted by spool and sequence"):
            carrier.load(to_batch(columns, carrier.topics), np.zeros(2, np.int32))
    finally:
        carrier.close()


def test_what_another_attempt_wrote_down_is_told_and_not_sent(kafka: EmbeddedKafka) -> None:
    """Delivered or refused; of each spool it is asked once, when its first messages come."""
    asked = []

    def earlier(spool: bytes) -> Settled:
        asked.append(spool)
        return Settled(np.array([1, 2, 4, 99]), np.array([0, 15, 0, 0], np.int32))

    options = DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers})
    carrier = Carrier(options, SPOOL, earlier=earlier)
    try:
        load(carrier, 0, 3)
        load(carrier, 3, 6)
        carrier.switch_to(SPOOL[::-1])
        load(carrier, 4, 8)
        carrier.finish()
        settled = carrier.settled()
    finally:
        carrier.close()
    assert asked == [SPOOL, SPOOL[::-1]]
    told = sorted(zip(settled.sequences.tolist(), settled.reasons.tolist(), strict=True))
    assert told == [(0, 0), (1, 0), (2, 15), (3, 0), (4, 0), (4, 0), (5, 0), (5, 0), (6, 0), (7, 0)]
    sent = sorted(int(record.value() or b"") for record in consume(kafka.bootstrap_servers, "t", 3, 6))
    assert sent == [0, 3, 5, 5, 6, 7]


@pytest.fixture
def transactions() -> Iterator[DispatchOptions]:
    """Delivery in transactions, to a topic of three partitions."""
    with EmbeddedKafka(brokers=1, topics=[("t", 3), ("bruce-progress", 1)]) as kafka:
        yield DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers}, mode="exactly_once")


def attempt(options: DispatchOptions, epoch: int, earlier: Settled | None = None) -> Carrier:
    """An attempt at the task of one transactional task, which knows what others have written down."""
    known = earlier or nothing_earlier(SPOOL)
    book = TaskBook([(0, 1, 77)], epoch)
    return Carrier(options, SPOOL, task=TransactionalTask("task", book), earlier=lambda _: known)


def test_an_attempt_that_comes_too_late_sends_nothing(transactions: DispatchOptions) -> None:
    """The task is closed: it ends well where all of it was done, and else fails; so do earlier ones."""
    first = attempt(transactions, 1)
    with closing(first):
        load(first, 0, 6)
        first.finish()
        first.close_task()
    known = Settled(np.array([6, 7]), np.array([0, 15], np.int32))
    for epoch in (0, 1):
        late = attempt(transactions, epoch, known)
        with closing(late):
            load(late, 0, 8)
            late.finish()
            late.close_task()
            settled = late.settled()
            assert dict(zip(settled.sequences.tolist(), settled.reasons.tolist(), strict=True)) == {
                **dict.fromkeys(range(7), 0),
                7: 15,
            }
            load(late, 8, 9)
            with pytest.raises(JobFailed, match="was taken back"):
                late.finish()
    following = attempt(transactions, 2)
    with closing(following):
        load(following, 8, 9)
        following.finish()
    sent = consume(transactions.kafka["bootstrap.servers"], "t", 3, 7)
    assert sorted(int(record.value() or b"") for record in sent) == [*range(6), 8]


def test_a_task_with_nothing_to_send_leaves_no_transaction_open(
    transactions: DispatchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hide other producers' commits from later consumers, until it times out."""
    carrier = attempt(transactions, 1, Settled(np.arange(6), np.zeros(6, np.int32)))
    waited_for = threading.Event()
    commit, flush = runner.TransactionRunner._commit, carrier._graph.kafka.client.flush

    def late(self: runner.TransactionRunner, *, bare: bool) -> runner.Result:
        assert waited_for.wait(PATIENCE_S)
        return commit(self, bare=bare)

    def noted(timeout_s: float) -> bool:
        waited_for.set()
        return flush(timeout_s)

    monkeypatch.setattr(runner.TransactionRunner, "_commit", late)
    monkeypatch.setattr(carrier._graph.kafka.client, "flush", noted)
    with closing(carrier):
        load(carrier, 0, 6)
        carrier.finish()
        waited_for.set()
        assert isinstance(carrier._pool, ExactlyOnce)
        assert carrier._pool.phase is Phase.READY


def test_what_kafka_never_takes_is_dead_lettered() -> None:
    """The datagram as it was received, under its key, with the daemon's headers; or it has its reason."""
    columns = {
        "sequence": pa.array(range(6)),
        "topic": pa.array(["t"] * 3 + [topic_name(b"no\\such \xff")] + ["t"] * 2),
        "partition_key": pa.array([None, 2, 3, -4, 5, 6], pa.int32()),
        "timestamp_ms": pa.array([0, 1, 2, -(2**63), 4, 5]),
        "key": pa.array([None, b"a", b"b", b"c", b"d", b"e"], pa.binary()),
        "value": pa.array([b"v%d" % n if n != 4 else bytes(5000) for n in range(6)], pa.binary()),
    }
    end = time.monotonic() + PATIENCE_S
    with EmbeddedKafka(brokers=1, topics=[("t", 1), ("dead", 2)]) as kafka:
        # A dead letter has more bytes than its message: the large one's is refused as well.
        properties = {"bootstrap.servers": kafka.bootstrap_servers, "message.max.bytes": "4000"}
        options = DispatchOptions(kafka=properties, dead_letter_topic="dead")
        carrier = Carrier(options, SPOOL, over=lambda: time.monotonic() > end)
        try:
            carrier.load(to_batch(columns, carrier.topics), np.array([0, 0, 0, NOWHERE, 0, 0], np.int32))
            carrier.finish()
            settled = carrier.settled()
        finally:
            carrier.close()
        letters = consume(kafka.bootstrap_servers, "dead", 2, 1)
        sent = consume(kafka.bootstrap_servers, "t", 1, 4)
    assert dict(zip(settled.sequences.tolist(), settled.reasons.tolist(), strict=True)) == {
        **dict.fromkeys((0, 1, 2, 5), 0),
        3: Reason.UNKNOWN_TOPIC | DEAD_LETTERED,
        4: Reason.TOO_LARGE,
    }
    assert [record.value() for record in sent] == [b"v0", b"v1", b"v2", b"v5"]
    letter = letters[0]
    assert (letter.key(), letter.value()) == (
        b"c",
        encode(b"no\\such \xff", b"v3", key=b"c", timestamp=-(2**63), partition_key=-4),
    )
    headers = dict(letter.headers() or [])
    assert headers["bruce-topic"] == b"no\\such \xff"
    assert headers["bruce-reason"] == b"unknown_topic"
    assert headers["bruce-id"] == SPOOL + (3).to_bytes(8, "big")


@pytest.mark.parametrize("letters", ["", "dead"])
def test_what_has_no_partition_has_the_reason_why(letters: str) -> None:
    """No such topic, or no such partition of it, in one batch; as dead letters, too, and the rest is sent."""
    columns = {
        "sequence": pa.array(range(5)),
        "topic": pa.array(["t", "gone", "t", "gone", "t"]),
        "kind": pa.array(["message"] * 5),
        "to_partition": pa.array([0, 0, 7, None, -1], pa.int32()),
        "value": pa.array([b"v%d" % n for n in range(5)]),
    }
    end = time.monotonic() + PATIENCE_S
    with EmbeddedKafka(brokers=1, topics=[("t", 1), ("dead", 1)]) as kafka:
        options = DispatchOptions(
            kafka={"bootstrap.servers": kafka.bootstrap_servers}, dead_letter_topic=letters
        )
        with closing(Carrier(options, SPOOL, over=lambda: time.monotonic() > end)) as carrier:
            placed = np.array([0, NOWHERE, ABSENT, NOWHERE, ABSENT], np.int32)
            carrier.load(to_batch(columns, carrier.topics), placed)
            carrier.finish()
            settled = carrier.settled()
        sent = consume(kafka.bootstrap_servers, "t", 1, 1)
        found = consume(kafka.bootstrap_servers, "dead", 1, 4) if letters else []
    dead = DEAD_LETTERED if letters else 0
    assert dict(zip(settled.sequences.tolist(), settled.reasons.tolist(), strict=True)) == {
        0: 0,
        **dict.fromkeys((1, 3), Reason.UNKNOWN_TOPIC | dead),
        **dict.fromkeys((2, 4), Reason.PARTITION | dead),
    }
    assert [record.value() for record in sent] == [b"v0"]
    told = {record.value(): dict(record.headers() or [])["bruce-reason"] for record in found}
    assert told == (
        {
            encode_message(b"gone", b"v1", partition=0): b"unknown_topic",
            encode_message(b"t", b"v2", partition=7): b"partition",
            encode_message(b"gone", b"v3"): b"unknown_topic",
            encode_message(b"t", b"v4", partition=-1): b"partition",
        }
        if letters
        else {}
    )


def test_a_dead_letter_topic_that_is_not_there() -> None:
    """Nothing is dropped for it: after a while the task ends, and says which topic to create."""
    columns = {"sequence": pa.array([1]), "topic": pa.array(["gone"])}
    with EmbeddedKafka(brokers=1) as kafka:
        properties = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "allow.auto.create.topics": "false",
        }
        end = time.monotonic() + PATIENCE_S
        options = DispatchOptions(kafka=properties, dead_letter_topic="dead")
        carrier = Carrier(options, SPOOL, over=lambda: time.monotonic() > end, letter_s=0.1)
        try:
            carrier.load(to_batch(columns, carrier.topics), np.array([NOWHERE], np.int32))
            with pytest.raises(JobFailed, match="does not know the dead-letter topic dead: create it"):
                carrier.finish()
            assert len(carrier.settled().sequences) == 0
        finally:
            carrier.close()
