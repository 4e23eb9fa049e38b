"""A refusal is believed of a message that was alone, and costs no other; errors that pass cost none."""

from __future__ import annotations

import pytest

from dispatch.embedded import EmbeddedKafka
from dispatch.errors import Code
from dispatch.pool import Pool
from router.outcomes.outcome_table import Eviction
from spool.format.wire import Reason, encode
from spool.read.reader import Reader
from spool.shared.state import Field
from tests.router.bench import Bench
from tests.router.conftest import PARTITIONS
from tests.router.fake import HUGE, POISON
from tests.router.outlet import anywhere, check_order, keyed, numbers, outlet
from tests.router.test_router import interleave
from tests.router.test_scheduler import keys
from tests.spool.stored import lost_of

PRODUCE, METADATA = 0, 3


@pytest.mark.sample(one_of=3)
@pytest.mark.parametrize("code", [Code.NOT_LEADER, Code.INVALID_MSG, 7, 19, Code.KAFKA_STORAGE_ERROR])
def test_errors_that_pass(kafka: EmbeddedKafka, code: int) -> None:
    """Everything is delivered, in order, and nothing discarded."""
    kafka.errors(PRODUCE, [int(code)] * 5)
    with outlet(kafka) as bruce:
        bruce.send(keyed(3000))
        assert bruce.finish(60).discarded == []
        records = bruce.consume("t", PARTITIONS, 3000)
        assert set(numbers(records)) == set(range(3000))
        check_order(records)


@pytest.mark.parametrize("code", [Code.MSG_SIZE_TOO_LARGE, Code.INVALID_RECORD])
def test_a_refusal_of_a_batch_is_not_believed(kafka: EmbeddedKafka, code: int) -> None:
    """Its messages are sent again in smaller groups; those that are taken then are delivered."""
    kafka.errors(PRODUCE, [int(code)] * 3)
    with outlet(kafka) as bruce:
        bruce.send(keyed(3000))
        assert bruce.finish(60).discarded == []
        assert set(numbers(bruce.consume("t", PARTITIONS, 3000))) == set(range(3000))


def test_a_refusal_of_one_message_is_believed(kafka: EmbeddedKafka) -> None:
    """Refused batch after batch until one message is out alone: that one is discarded, no other."""
    count = 200
    # Each group in one batch, which is one error.
    with outlet(kafka, kafka_properties={"linger.ms": "50"}) as bruce:
        bruce.send(keyed(1))
        bruce.finish()
        # 200 messages in one partition are tried as 200, 100, 50, 25, 12, 6, 3, 1.
        kafka.errors(PRODUCE, [int(Code.INVALID_RECORD)] * 8)
        bruce.send(keyed(count, keys=1, first=1))
        outcomes = bruce.finish(60)
        assert [(d.topic, d.reason, d.count) for d in outcomes.discarded] == [
            (b"t", Reason.INVALID_RECORD, 1)
        ]
        (lost,) = lost_of(bruce.marks)
        assert set(numbers(bruce.consume("t", PARTITIONS, count))) == set(range(count + 1)) - {lost}


def test_too_large_for_the_client(kafka: EmbeddedKafka) -> None:
    """A message above `message.max.bytes`: discarded alone, its neighbours delivered in order."""
    with outlet(kafka, kafka_properties={"message.max.bytes": "3000"}) as bruce:
        large = [encode(b"t", b"0:9999:" + b"x" * 4000, partition_key=0)]
        bruce.send(keyed(500) + large + keyed(500, first=500) + large + keyed(100, first=1000))
        outcomes = bruce.finish()
        assert [(d.topic, d.reason, d.count) for d in outcomes.discarded] == [(b"t", Reason.TOO_LARGE, 2)]
        assert set(lost_of(bruce.marks)) == {500, 1001}
        records = bruce.consume("t", PARTITIONS, 1100)
        assert sorted(numbers(records)) == list(range(1100))


def test_refusals_while_catching_up(kafka: EmbeddedKafka) -> None:
    """A broker comes back, and refuses some of what it is sent then; all is delivered."""
    with outlet(kafka, window_messages=200) as bruce:
        bruce.send(keyed(60))
        bruce.finish()
        kafka.down(2)
        bruce.send(interleave(keyed(6000, first=60), anywhere(6000)))
        bruce.run(lambda: bruce.resolved > 9000)
        codes = [Code.MSG_SIZE_TOO_LARGE, Code.NOT_LEADER, Code.INVALID_MSG, Code.INVALID_RECORD]
        kafka.errors(PRODUCE, [int(code) for code in codes] * 2)
        kafka.up(2)
        outcomes = bruce.finish(60)
        assert outcomes.discarded == []
        assert outcomes.resolved == 12_060
        assert {r.value() for r in bruce.consume("t", PARTITIONS, 12_060)} >= {
            b"%d:%d:" % (i % 12, i) + b"." * 40 for i in range(6060)
        }


def rounds_to(bench: Bench, end: int, *, most: int) -> int:
    """Work until all below `end` are resolved, for so many rounds at most; in how many something went out."""
    rounds = 0
    for _ in range(most):
        bench.step()
        rounds += any(bench.pool.queues.values())
        bench.answer()
        bench.clock.now += 0.6
        if bench.acks.low_watermark == end:
            break
    bench.router.commit()
    return rounds


@pytest.mark.parametrize("topic", [b"a", b"b"])
@pytest.mark.parametrize("key", [0, None])
def test_one_bad_record_among_many(bench: Bench, topic: bytes, key: int | None) -> None:
    """It alone is discarded, within a few rounds, at any position; no other partition suffers for it."""
    messages = [(topic, key, b"")] * 100
    messages[37] = (topic, key, POISON)
    for first in range(0, 100, 50):
        bench.send(messages[first : first + 50])
    refusals = rounds_to(bench, 100, most=60)
    assert bench.discarded() == {37: Reason.INVALID_RECORD}
    assert sorted(set(bench.appended())) == [*range(37), *range(38, 100)]
    assert refusals < 25
    # A message that may go anywhere stays, once refused, where it was refused.
    assert len(bench.kafka.logs) <= 2


def test_many_bad_records(bench: Bench) -> None:
    """Every third is refused, by the broker or by the client: each discarded for its own reason."""
    for _ in range(5):
        bench.send([(b"a", 1, b""), (b"a", 1, POISON), (b"a", 1, HUGE)] * 4)
    bench.settle()
    bench.check_complete()
    reasons = {POISON: Reason.INVALID_RECORD, HUGE: Reason.TOO_LARGE}
    expected = {s: reasons[value] for s, (_, _, value) in bench.sent.items() if value}
    assert bench.discarded() == expected


def test_bad_records_in_a_row(bench: Bench) -> None:
    """Each takes one round, once the first is known: more of them would fill the spool behind them."""
    bench.send([(b"a", 1, POISON)] * 60)
    refusals = rounds_to(bench, 60, most=200)
    assert len(bench.discarded()) == 60
    assert refusals < 60 + 10


def test_a_producer_that_is_finished_is_replaced(bench: Bench) -> None:
    """Its last reports are waited for; what has none is sent again by a new one, in order, and at once."""
    bench.send(keys(30))
    bench.step(3)
    bench.pool.answer(0, 4)
    bench.pool.client.finish()
    bench.step(3)
    assert bench.pool.client.fatal
    bench.pool.answer(0, 3)
    bench.clock.now += Pool.last_reports_s
    bench.step()
    assert bench.pool.client.fatal is None
    bench.settle()
    assert bench.acks.low_watermark == 30
    assert sorted(set(bench.kafka.logs[b"a", 0])) == list(range(30))
    bench.check_order()


def test_room_is_made_while_no_producer_may_send(bench: Bench) -> None:
    """A user without the right to send idempotently: each new producer is finished after a few steps."""
    for _ in range(20):
        bench.send([(b"a", 1, b"x" * 60)] * 20)
    reader, kept = bench.readers[0], [0]
    bench.router._eviction = Eviction(
        Reader(reader.segment_list, bench.topics),
        lambda: bench.spool.shared.place(Field.SYNCED),
        lambda: kept[0],
        clock=bench.clock,
    )
    bench.pool.client.finish()
    kept[0] = bench.end
    for _ in range(20):
        bench.pool.client.finish()
        bench.step()
    bench.router.commit()
    assert bench.acks.low_watermark == bench.end


def test_a_trouble_ends_with_its_messages(bench: Bench) -> None:
    """Messages that may go anywhere went elsewhere, or their topic is gone: nothing waits any more."""
    bench.send([(b"a", None, b"x")] * 3 + [(b"b", 1, b"x")] * 3)
    bench.step(3)
    for flat in range(bench.pool.partitions.count):
        if bench.pool.queues[flat]:
            bench.pool.fail(flat, 9, int(Code.TOPIC_AUTHORIZATION_FAILED))
    bench.step()
    assert bench.router._failures.stopped
    bench.settle()
    bench.check_complete()
    assert bench.router._failures.stopped == {}
    bench.send([(b"b", 1, b"x")] * 3)
    bench.step(3)
    (flat,) = (one for one in range(bench.pool.partitions.count) if bench.pool.queues[one])
    bench.pool.fail(flat, 9, int(Code.TOPIC_AUTHORIZATION_FAILED))
    bench.step()
    del bench.kafka.leaders[b"b"]
    bench.kafka.denied[b"b"] = int(Code.UNKNOWN_TOPIC_OR_PART)
    for _ in range(20):
        bench.metadata.pending = True
        bench.clock.now += 10
        bench.step(3)
    bench.router.commit()
    assert bench.acks.low_watermark == bench.end
    assert bench.router._failures.stopped == {}


def test_a_finished_producer_with_nothing_in_flight_is_replaced_at_once(bench: Bench) -> None:
    """There is nothing to wait for."""
    bench.pool.client.finish()
    bench.step()
    assert bench.pool.client.fatal is None
    bench.send(keys(10))
    bench.settle()
    assert bench.kafka.logs[b"a", 0] == list(range(10))
