"""Under any fault of Kafka or of the deliverer nothing is lost, nothing stuck, and all is in order."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatch.errors import Code
from router.context import Bounds
from router.limits import Rate
from spool.format.wire import Reason
from tests.router.bench import Bench
from tests.router.fake import HUGE, NO_ONE, POISON

WINDOWS = [(1, 100), (2, 300), (7, 1000), (40, 4000), (1000, 1 << 20)]
KNOWN = {b"a": 3, b"b": 2}
LATER, NEVER, ILLEGAL = b"later", b"never", b"not/legal"
PARTITIONS = {**KNOWN, LATER: 2}
"""Their partitions before any topic has grown."""
PLAIN = st.sampled_from([b"a", b"a", b"a", b"b", b"b", LATER, NEVER])
BAD = st.sampled_from([b"", b"", b"", b"", b"", b"", b"", b"", POISON, HUGE])
MESSAGE = st.tuples(PLAIN, st.one_of(st.none(), st.integers(0, 5)), BAD)
RATES = st.sampled_from(
    [None, None, {"a": Rate(40), "b": Rate(200)}, {"a": Rate(60), "b": Rate(30, discard=True)}]
)
TRANSIENT = [Code.NOT_LEADER, Code.OUT_OF_ORDER_SEQUENCE, -185, Code.INVALID_MSG]


class Delivery(RuleBasedStateMachine):
    """Messages, outcomes, outages, leaders that move, topics that come and grow, crashes."""

    def __init__(self) -> None:
        super().__init__()
        self.bench: Bench | None = None

    @initialize(
        window=st.sampled_from(WINDOWS),
        partitioner=st.sampled_from(["any", "round_robin", "partition_key"]),
        rates=RATES,
        pace=st.sampled_from([0, 0, 3000]),
        behind=st.sampled_from([0, 0, 1 << 20]),
    )
    def begin(
        self,
        window: tuple[int, int],
        partitioner: str,
        rates: dict[str, Rate] | None,
        pace: int,
        behind: int,
    ) -> None:
        """`behind`: 0 has topics set aside whenever there is no room."""
        self.bench = Bench(
            window=window,
            partitioners={"b": partitioner},
            rates=rates,
            backlog_bytes_per_second=pace,
            chunk_bytes=600,
            bounds=Bounds(near=30, turn_batches=3, behind_bytes=behind),
        )
        self.kafka = self.bench.kafka
        self.kafka.leaders = {name: [1 + p % 3 for p in range(n)] for name, n in KNOWN.items()}
        self.kafka.denied = {LATER: 3, NEVER: 3, ILLEGAL: 17}

    @property
    def live(self) -> Bench:
        assert self.bench
        return self.bench

    @rule(messages=st.lists(MESSAGE, min_size=1, max_size=12), times=st.integers(1, 4))
    def send(self, messages: list[tuple[bytes, int | None, bytes]], times: int) -> None:
        for _ in range(times):
            self.live.send(messages)

    @rule(topic=st.sampled_from([b"a", b"b"]), keyed=st.booleans())
    def flood(self, topic: bytes, *, keyed: bool) -> None:
        """So much of one topic that nothing else has room, and segments with nothing else in them."""
        for _ in range(12):
            self.live.send([(topic, n if keyed else None, b"v" * 40) for n in range(10)])

    @rule()
    def send_an_illegal_topic(self) -> None:
        self.live.send([(ILLEGAL, 1, b"")])

    @rule(times=st.integers(1, 8))
    def step(self, times: int) -> None:
        self.live.step(times)

    @rule(seconds=st.sampled_from([0.05, 0.6, 40.0]))
    def wait(self, seconds: float) -> None:
        self.live.clock.now += seconds
        self.live.metadata.pending = True

    @rule(count=st.integers(1, 20))
    def answer(self, count: int) -> None:
        self.live.answer(count)

    @rule(flat=st.integers(0, 11), count=st.integers(1, 5))
    def answer_one(self, flat: int, count: int) -> None:
        if flat < self.live.pool.partitions.count:
            self.live.pool.answer(flat, count)

    @rule(
        flat=st.integers(0, 11),
        count=st.integers(1, 9),
        code=st.sampled_from(TRANSIENT),
        arrived=st.booleans(),
    )
    def fail(self, flat: int, count: int, code: int, *, arrived: bool) -> None:
        if flat < self.live.pool.partitions.count:
            self.live.pool.fail(flat, count, int(code), appended=arrived)

    @rule(broker=st.integers(1, 3))
    def take_down(self, broker: int) -> None:
        self.kafka.down.add(broker)

    @rule(broker=st.integers(1, 3))
    def bring_up(self, broker: int) -> None:
        self.kafka.down.discard(broker)

    @rule(full=st.booleans())
    def fill_the_queue(self, *, full: bool) -> None:
        self.kafka.full = full

    @rule(
        topic=st.sampled_from([b"a", b"b", LATER]),
        partition=st.integers(0, 3),
        broker=st.sampled_from([1, 2, 3, NO_ONE]),
    )
    def move(self, topic: bytes, partition: int, broker: int) -> None:
        leaders = self.kafka.leaders.get(topic, [])
        if leaders:
            leaders[partition % len(leaders)] = broker
        self.live.metadata.pending = True

    @rule(topic=st.sampled_from([b"a", b"b"]))
    def orphan(self, topic: bytes) -> None:
        self.kafka.leaders[topic][:] = [NO_ONE] * len(self.kafka.leaders[topic])
        self.live.metadata.pending = True

    @rule(topic=st.sampled_from([b"a", b"b", LATER]))
    def adopt(self, topic: bytes) -> None:
        if topic in self.kafka.leaders:
            self.kafka.leaders[topic][:] = [1 + p % 3 for p in range(len(self.kafka.leaders[topic]))]
        self.live.metadata.pending = True

    @rule()
    def create(self) -> None:
        self.kafka.leaders.setdefault(LATER, [1, 2])
        self.live.metadata.pending = True

    @rule(topic=st.sampled_from([b"a", b"b"]))
    def grow(self, topic: bytes) -> None:
        if len(self.kafka.leaders[topic]) < 5:
            self.kafka.leaders[topic].append(2)
        self.live.metadata.pending = True

    @rule()
    def commit(self) -> None:
        self.live.router.commit()

    @rule(seed=st.integers(0, 99))
    def finish_producer(self, seed: int) -> None:
        """A fatal error: some of the messages in flight have arrived, and no report will say which."""
        self.live.pool.chance = random.Random(seed)
        self.live.pool.client.finish()

    @rule(seed=st.integers(0, 1 << 16))
    def crash(self, seed: int) -> None:
        self.live.restart(random.Random(seed))

    @precondition(lambda self: self.bench is not None)
    @invariant()
    def in_order(self) -> None:
        self.live.check()
        self.live.check_order()

    def teardown(self) -> None:
        if self.bench is None:
            return
        try:
            self.finish(self.bench)
        finally:
            self.bench.close()

    def finish(self, bench: Bench) -> None:
        """Kafka gets well: everything is delivered, or discarded for the one right reason."""
        self.kafka.down.clear()
        self.kafka.full = False
        for leaders in self.kafka.leaders.values():
            leaders[:] = [broker if broker != NO_ONE else 1 for broker in leaders]
        bench.metadata.pending = True
        bench.settle()
        bench.check_order()
        bench.check_complete()
        for sequence, reason in bench.discarded().items():
            topic, _, value = bench.sent[sequence]
            expected = {Reason.INVALID_RECORD} if POISON in value else set()
            expected |= {Reason.TOO_LARGE} if HUGE in value else set()
            if (bench.rates or {}).get(topic.decode(), Rate(0)).discard:
                expected |= {Reason.RATE_LIMITED}
            expected |= {Reason.UNKNOWN_TOPIC} if topic in (LATER, NEVER, ILLEGAL) else set()
            assert Reason(reason) in expected
        for topic in (b"a", LATER):
            self.check_places(bench, topic)

    def check_places(self, bench: Bench, topic: bytes) -> None:
        """Each message of a key is in one partition, which is the key modulo a count that only ever grew."""
        places: dict[int, set[int]] = {}
        for (name, partition), log in self.kafka.logs.items():
            for sequence in log if name == topic else ():
                if bench.sent[sequence][1] is not None:
                    places.setdefault(sequence, set()).add(partition)
        count = PARTITIONS[topic]
        for sequence in sorted(places):
            (partition,) = places[sequence]
            key = bench.sent[sequence][1]
            assert key is not None
            while key % count != partition:
                count += 1
            assert count <= len(self.kafka.leaders[topic]), "a key in a partition that is not its own"


class TestDelivery(Delivery.TestCase):
    """As many examples as the command has time for."""

    settings = settings(
        max_examples=20, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )


@pytest.mark.long
class TestDeliveryAtLength(TestDelivery):
    """More of them."""

    settings = settings(TestDelivery.settings, max_examples=40)
