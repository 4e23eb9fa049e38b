"""Messages that had to wait are read once more, and sent in their order."""

from __future__ import annotations

from dispatch.errors import Code
from router.context import Bounds
from tests.router.bench import Bench
from tests.router.cluster.test_unknown_topics import send_to
from tests.router.fake import NO_ONE
from tests.router.test_scheduler import keys


def read_all(bench: Bench) -> None:
    """Let the live reader come to the end of the log."""
    for _ in range(1000):
        bench.step()
        if bench.router.read_position >= bench.end:
            return
        if bench.kafka.down:
            bench.answer()
    raise AssertionError("the reading does not come to an end")


def test_old_messages_of_a_new_topic_go_first(fine: Bench) -> None:
    """Messages that waited for it are sent before those that come once it is known."""
    fine.kafka.denied = {b"new": 3}
    for _ in range(20):
        fine.send([*keys(4, topic=b"new"), *keys(2)])
    read_all(fine)
    fine.kafka.leaders[b"new"] = [1, 2]
    for _ in range(20):
        fine.send(keys(4, topic=b"new"))
    fine.metadata.pending = True
    fine.step()
    fine.answer()
    fine.settle()
    fine.check_order()
    fine.check_complete()
    assert len(fine.kafka.logs[b"new", 0]) == 160


def test_a_failed_message_waits_for_those_behind_it(bench: Bench) -> None:
    """They may fail as well: sent again before they have, it would go with newer ones ahead of them."""
    bench.send(keys(10))
    bench.step(3)
    bench.pool.fail(0, 1, Code.NOT_LEADER)
    bench.step()
    bench.send(keys(5))
    bench.clock.now += 1
    bench.step(5)
    assert [m.sequence for m in bench.pool.queues[0]] == list(range(1, 10))
    bench.pool.answer(0, 4)
    bench.step()
    bench.clock.now += 1
    bench.step(5)
    bench.settle()
    assert bench.kafka.logs[b"a", 0] == list(range(15))


def test_what_may_go_anywhere_waits_for_any_place(bench: Bench) -> None:
    """No partition has a leader when it is read; later one has."""
    bench.kafka.leaders[b"b"] = [NO_ONE, NO_ONE]
    bench.send([(b"b", None, b""), (b"a", 1, b"")] * 5)
    read_all(bench)
    bench.step(3)
    bench.answer()
    bench.step()
    assert bench.appended() == [1, 3, 5, 7, 9]
    assert bench.marks
    bench.router.commit()
    assert min(bench.marks.offsets().values()) == 0
    bench.kafka.leaders[b"b"] = [NO_ONE, 3]
    bench.metadata.pending = True
    bench.settle()
    assert bench.kafka.logs[b"b", 1] == [0, 2, 4, 6, 8]


def test_what_is_held_back_by_a_broker_goes_elsewhere_if_it_may(bench: Bench) -> None:
    """The rest of a batch larger than a window does not wait for a broker that hangs."""
    bench.window = (10, 1 << 20)
    bench.restart()
    bench.kafka.leaders = {b"a": [1, 2, 3]}
    bench.kafka.down = {1, 2}
    for _ in range(4):
        bench.send([(b"a", None, b"")] * 12)
    for _ in range(200):
        bench.step()
        bench.answer(5)
    stuck = bench.router.in_flight()
    assert stuck <= 20
    assert len(bench.kafka.logs[b"a", 2]) == 48 - stuck


def test_a_failure_while_catching_up(fine: Bench) -> None:
    """The partition is caught up again, from the message that failed."""
    fine.window = (4, 1 << 20)
    fine.restart()
    for _ in range(15):
        fine.send(keys(6))
    fine.kafka.down = {1}
    read_all(fine)
    fine.kafka.down = set()
    for turn in range(8):
        fine.answer(2)
        fine.step()
        fine.pool.fail(0, 1, Code.NOT_LEADER if turn % 2 else Code.INVALID_MSG)
        fine.clock.now += 0.3
        fine.step(2)
    fine.settle()
    assert fine.kafka.logs[b"a", 0] == list(range(90))


def test_offsets_cover_what_has_no_leader(bench: Bench) -> None:
    """Marks lost, offsets kept: nothing that is held for a partition without a leader is passed over."""
    bench.send(keys(3))
    bench.settle()
    bench.kafka.leaders[b"a"][0] = NO_ONE
    bench.metadata.pending = True
    bench.step()
    bench.send([(b"a", 0, b""), (b"a", 1, b""), (b"a", 2, b"")] * 5)
    read_all(bench)
    bench.answer()
    bench.step()
    bench.router.commit()
    assert bench.marks
    assert min(bench.marks.offsets().values()) == 3


def test_an_answer_comes_while_a_pass_has_read_on() -> None:
    """A message names a partition that its topic lacks: the topic waits for Kafka's answer, in a pass too.

    The pass comes by before the answer does. The message is covered still, and goes once the answer is there.
    """
    bounds = Bounds(near=30, turn_batches=100, behind_bytes=1 << 20)
    bench = Bench(window=(7, 2000), chunk_bytes=600, bounds=bounds)
    try:
        bench.kafka.leaders = {b"o": [1]}
        bench.send(keys(1, topic=b"o"))
        bench.settle()
        for _ in range(10):
            bench.send(keys(5, topic=b"o"))
        bad = send_to(bench, b"o", 77)
        for _ in range(60):
            bench.send(keys(5, topic=b"o"))
        bench.kafka.leaders[b"o"] = [NO_ONE]
        bench.metadata.pending = True
        bench.step()
        bench.kafka.leaders[b"o"] = [1]
        answer, bench.metadata.take = bench.metadata.take, lambda: None
        bench.step(60)
        # Of before the message came: it says that there is a leader, and nothing of partition 77.
        bench.metadata.asked_at, bench.metadata.pending, bench.metadata.take = 0.0, True, answer
        bench.step()
        bench.metadata.take = lambda: None
        passes, reader = bench.router._catch_ups, bench.router._catch_up_reader
        for _ in range(1000):
            if passes.current and reader.sequence > bad[0] + 20:
                break
            bench.step()
            bench.answer(5)
        assert passes.current
        assert bench.router._unknown.waiting
        bench.metadata.asked_at, bench.metadata.pending = bench.clock.now, True
        bench.metadata.take = answer
        bench.settle()
        bench.check_complete()
    finally:
        bench.close()
