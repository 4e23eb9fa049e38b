"""The router over the batches of a task: each message is settled once, in the order of its partition."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from dispatch.errors import Code
from pipeline.delivery.task_log import SetPartitions, TaskLog, TaskOutcomes
from pipeline.source.columns import NOWHERE, to_batch
from router.cluster.brokers import Capacity, Kafka
from router.context import BOUNDS, Bounds, Rules
from router.limits import Limits
from router.outcomes.rejects import MOST, Rejection
from router.router import Router
from spool.format.batch import Batch, Topics
from spool.format.wire import DEAD_LETTERED, Reason, encode
from tests.router.fake import HUGE, POISON, Clock, FakeKafka, FakeMetadata, FakePool

TRANSIENT = [Code.NOT_LEADER, Code.OUT_OF_ORDER_SEQUENCE, -185, Code.INVALID_MSG]
NAMES = ["a", "a", "a", "b"]


def batch_of(topics: Topics, sequences: list[int], values: list[bytes]) -> Batch:
    """Messages as a task gets them; most of topic a."""
    columns = {
        "sequence": pa.array(sequences),
        "topic": pa.array([NAMES[n % 4] for n in sequences]),
        "value": pa.array(values, pa.binary()),
    }
    return to_batch(columns, topics)


class TaskHarness:
    """A router over a task's log, and a Kafka in memory that follows a script."""

    def __init__(
        self,
        window: tuple[int, int],
        *,
        letters: bytes = b"",
        most: int = MOST,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self.clock, self.kafka, self.topics = Clock(), FakeKafka(), Topics()
        self.kafka.leaders = {b"a": [1, 2, 3], b"b": [2], b"dead": [3]}
        self.log, self.values = TaskLog(self.topics), dict[int, bytes]()
        self.pool, self.metadata = FakePool(self.kafka, self.topics, window), FakeMetadata(self.kafka)
        self.outcomes = TaskOutcomes(self.log)
        self.router = Router(
            self.log,
            Kafka(self.pool.client, self.pool, Capacity(self.pool, *window), self.metadata),  # type: ignore[arg-type]
            self.outcomes,
            Rules(SetPartitions(self.log), Limits(self.topics), bounds),
            rejection=Rejection(letters, grace_s=float("inf"), most=most),
            clock=self.clock,
        )
        self.metadata.want([])
        self.router.step()

    def load(self, sequences: list[int], values: list[bytes]) -> None:
        """Another batch, by partition in turns."""
        self.values.update(zip(sequences, values, strict=True))
        batch, counts = batch_of(self.topics, sequences, values), self.pool.partitions.partitions_of
        partition = batch.sequence // 4 % counts[batch.topic]
        self.log.append(batch, self.pool.partitions.flats[batch.topic, partition])

    def step(self, answers: int) -> None:
        """A turn of the router, and what brokers answer of each partition."""
        self.clock.now += 0.05
        self.router.step()
        for flat in range(self.pool.partitions.count):
            self.pool.answer(flat, answers)

    def disturb(self, chance: random.Random) -> None:
        """Something goes wrong, or well again."""
        match chance.randrange(6):
            case 0:
                flat, code = chance.randrange(self.pool.partitions.count), int(chance.choice(TRANSIENT))
                self.pool.fail(flat, chance.randint(1, 9), code, appended=chance.random() < 0.5)
            case 1:
                self.kafka.leaders[b"a"][chance.randrange(3)] = chance.choice([1, 2, 3, -1])
                self.metadata.pending = True
            case 2:
                self.kafka.down ^= {chance.randint(1, 3)}
            case 3:
                self.pool.chance = chance
                self.pool.client.finish()
            case 4:
                self.kafka.full = not self.kafka.full

    def get_well(self) -> None:
        """Kafka takes everything again."""
        self.kafka.down.clear()
        self.kafka.full = False
        self.kafka.leaders[b"a"] = [1, 2, 3]
        self.metadata.pending = True

    def check_order(self) -> None:
        """In each partition messages appear first in the order of their sequences."""
        for appended in self.kafka.logs.values():
            first = list(dict.fromkeys(appended))
            assert first == sorted(first)

    def settled(self) -> dict[int, int]:
        """Reason by sequence, 0 for those in Kafka; each was settled once."""
        pairs = [
            pair
            for one in self.log.settled
            for pair in zip(one.sequences.tolist(), one.reasons.tolist(), strict=True)
        ]
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)


@pytest.mark.parametrize("seed", range(12))
def test_each_message_is_settled_once_and_in_order(seed: int) -> None:
    """Each message is settled once while brokers refuse, fail, move and go away, and the producer dies."""
    chance = random.Random(seed)
    bounds = Bounds(behind_bytes=chance.choice([0, 1 << 20]))
    harness = TaskHarness(
        chance.choice([(1, 100), (7, 1000), (40, 4000)]), letters=chance.choice([b"", b"dead"]), bounds=bounds
    )
    sequence = 0
    for _ in range(25):
        sequences = [sequence := sequence + chance.randint(1, 3) for _ in range(chance.randint(1, 12))]
        harness.load(sequences, [chance.choice([b"v"] * 18 + [POISON, HUGE]) for _ in sequences])
        for _ in range(chance.randint(0, 4)):
            harness.step(chance.randint(1, 5))
        harness.disturb(chance)
        harness.check_order()
    harness.get_well()
    for _ in range(3000):
        harness.step(50)
        harness.clock.now += 0.1
        if not harness.log.loads:
            break
    harness.check_order()
    bad = {POISON: Reason.INVALID_RECORD, HUGE: Reason.TOO_LARGE, b"v": 0}
    letters = DEAD_LETTERED if harness.router._rejects._topic else 0
    expected = {n: bad[value] | (letters if value != b"v" else 0) for n, value in harness.values.items()}
    assert harness.settled() == expected
    appended = {n for log in harness.kafka.logs.values() for n in log}
    assert appended >= {n for n, value in harness.values.items() if value == b"v"}
    harness.router.close()


def test_a_batch_stays_until_all_of_it_is_settled() -> None:
    """Messages that others settle in between are not read, nor open again when their sending fails."""
    topics = Topics()
    log = TaskLog(topics)
    outcomes, flat = TaskOutcomes(log), np.zeros(4, np.int32)
    for first in (0, 10, 20):
        log.append(batch_of(topics, [first, first + 2, first + 4, first + 6], [b"v"] * 4), flat)
    assert log.live.next() is not None
    log.settle(np.array([10, 12, 14, 16]), Reason.UNKNOWN_TOPIC)
    outcomes.take(np.array([0, 2, 4]))
    log.settle(np.array([0, 2]), 0)
    outcomes.give_back(np.array([0, 2, 4]))
    assert outcomes.open(np.array([0, 2, 4, 6, 12, 20])).tolist() == [False, False, True, True, False, True]
    assert (outcomes.low_watermark, len(log.loads)) == (0, 3)
    batch = log.live.next()
    assert batch is not None
    assert batch.sequence.tolist() == [20, 22, 24, 26]
    assert outcomes.discard(np.array([2, 4, 6]), Reason.TOO_LARGE, b"a") == 2
    assert (outcomes.low_watermark, len(log.loads), log.nbytes()) == (20, 1, 4)
    log.catch_up.seek(outcomes.low_watermark)
    again = log.catch_up.next()
    assert again is not None
    assert again.sequence.tolist() == [20, 22, 24, 26]
    assert Counter(n for one in log.settled for n in one.sequences.tolist()).most_common(1)[0][1] == 1


def test_contents_are_those_of_messages_under_way() -> None:
    """One that others settled meanwhile has none."""
    topics = Topics()
    log = TaskLog(topics)
    for first in (0, 10):
        log.append(batch_of(topics, [first, first + 3], [b"v%d" % first, b"w"]), np.zeros(2, np.int32))
    log.settle(np.array([0, 3]), 0)
    contents, wanted = log.contents(), np.array([3, 10, 13])
    gone = contents.read(wanted, 2)
    assert (gone.sequences.tolist(), gone.batch) == ([3], None)
    assert contents.read(wanted[1:], 1).sequences.tolist() == [10]
    found = contents.read(wanted[1:], 2)
    assert found.sequences.tolist() == [10, 13]
    assert found.batch
    for row, (sequence, value) in zip(found.rows.tolist(), ((10, b"v10"), (13, b"w")), strict=True):
        assert found.batch.datagram(row) == encode(NAMES[sequence % 4].encode(), value)
        assert found.batch.topic_name(row) == NAMES[sequence % 4].encode()
        assert (int(found.batch.sequence[row]), found.batch.value(row)) == (sequence, value)


def test_a_reader_passes_over_batches_of_topics_that_are_set_aside() -> None:
    """Of these alone, and to the next batch."""
    topics = Topics()
    log = TaskLog(topics)
    log.append(batch_of(topics, [0, 1], [b"v"] * 2), np.zeros(2, np.int32))
    log.append(batch_of(topics, [2, 3], [b"v"] * 2), np.zeros(2, np.int32))
    assert log.live.pass_over({b"a"})
    assert log.live.sequence == 2
    assert not log.live.pass_over({b"a"})
    assert log.live.pass_over({b"a", b"b"})
    assert not log.live.pass_over({b"a", b"b"})


def test_messages_without_a_partition_are_not_open() -> None:
    """No reader comes by them; they wait to be given up, and the batch for them."""
    topics = Topics()
    log = TaskLog(topics)
    log.append(batch_of(topics, [0, 1], [b"v"] * 2), np.full(2, NOWHERE, np.int32))
    log.append(batch_of(topics, [2, 3], [b"v"] * 2), np.array([NOWHERE, 0], np.int32))
    outcomes = TaskOutcomes(log)
    assert outcomes.open(np.arange(4)).tolist() == [False, False, False, True]
    assert outcomes.unresolved(np.arange(4)).all()
    batch = log.live.next()
    assert batch is not None
    assert batch.sequence.tolist() == [2, 3]


def test_messages_are_placed_at_once_if_each_has_a_partition() -> None:
    """Those that are open, which are taken then; if one has none to go to, nothing changes."""
    topics = Topics()
    log = TaskLog(topics)
    log.append(batch_of(topics, [4, 5, 6], [b"v"] * 3), np.array([2, 1, 0], np.int32))
    outcomes, chooser = TaskOutcomes(log), SetPartitions(log)
    outcomes.take(np.array([5]))
    batch, none = log.live.next(), np.zeros(0, np.int32)
    assert batch is not None
    placed = chooser.place(batch, None, none, none, none > 0)
    assert placed is not None
    assert placed.tolist() == [2, -1, 0]
    assert not outcomes.open(batch.sequence).any()
    outcomes.give_back(batch.sequence)
    log.loads[0].flat[1] = NOWHERE
    assert chooser.place(batch, None, none, none, none > 0) is None
    assert outcomes.open(batch.sequence).all()


def test_as_many_are_given_up_as_there_is_room_for() -> None:
    """The others later, when dead letters before them are out."""
    harness = TaskHarness((40, 4000), letters=b"dead", most=2)
    harness.log.append(batch_of(harness.topics, [1, 2, 3, 5, 7], [b"v"] * 5), np.full(5, NOWHERE, np.int32))
    left, rounds = np.array([1, 2, 3, 5, 7]), 0
    while len(left):
        given = harness.router.give_up(left, Reason.UNKNOWN_TOPIC, [b"gone"] * len(left))
        left, rounds = left[given:], rounds + (given > 0)
        assert harness.router.give_up(left, Reason.UNKNOWN_TOPIC, [b"gone"] * len(left)) == 0
        harness.step(10)
    while harness.log.loads:
        harness.step(10)
    assert rounds == 3
    assert [letter.sequence for letter in harness.kafka.letters] == [1, 2, 3, 5, 7]
    assert set(harness.settled().values()) == {Reason.UNKNOWN_TOPIC | DEAD_LETTERED}
    harness.router.close()


def test_executors_deliver_without_lmdb() -> None:
    """It is no part of what a job ships to them."""
    code = "import sys, pipeline.delivery.sink; sys.exit('lmdb' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
