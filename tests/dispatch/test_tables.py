"""The tables behind the pool: partitions, brokers, and what is in flight."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dispatch.tables import (
    NO_SEQUENCE,
    NONE,
    NOT_HELD,
    BrokerTable,
    Flight,
    PartitionTable,
    State,
    order_by_partition,
)
from dispatch.timing import STALL_NS


@given(st.lists(st.integers(-1, 9), max_size=200))
def test_rows_are_ordered_by_partition_then_log(flats: list[int]) -> None:
    """A stable sort that leaves out the rows without a partition."""
    flat = np.array(flats, np.int32)
    order = np.empty(len(flat), np.int32)
    count = order_by_partition(flat, np.empty(11, np.int64), order)
    expected = [row for row in np.argsort(flat, kind="stable").tolist() if flat[row] >= 0]
    assert order[:count].tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), max_size=30))
def test_flat_numbers_are_kept_whatever_grows(steps: list[tuple[int, int]]) -> None:
    """Topics and partitions in any order: each has one number, which never changes, and none is left out."""
    table = PartitionTable()
    numbers: dict[tuple[int, int], int] = {}
    for topic, partitions in steps:
        flats = table.extend(topic, partitions, handle=topic + 1000)
        for partition, flat in enumerate(flats.tolist()):
            assert numbers.setdefault((topic, partition), flat) == flat
        assert (table.rows["handle"][flats] == topic + 1000).all()
    assert sorted(numbers.values()) == list(range(table.count))
    for (topic, partition), flat in numbers.items():
        assert table.flats[topic, partition] == flat
        assert (table.rows[flat].topic, table.rows[flat].partition) == (topic, partition)


def test_a_partition_is_held_from_the_earliest_sequence() -> None:
    """Later holds change nothing, earlier ones do; release lets it go."""
    table = PartitionTable()
    flats = table.extend(0, 3, handle=1)
    table.hold(flats[:2], np.array([50, 60]))
    table.hold(flats[:2], np.array([70, 40]))
    assert table.rows["held_from"][flats].tolist() == [50, 40, NOT_HELD]
    assert table.held().tolist() == [0, 1]
    table.release(flats[0])
    assert table.held().tolist() == [1]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 2), st.integers(-1, 9)), min_size=1, max_size=30)
)
def test_questions_are_answered_from_the_rows(rows: list[tuple[int, int, int]]) -> None:
    """Each answer is what a look at every row gives: (topic, leader, held from), by flat number."""
    table, every = PartitionTable(), range(len(rows))
    for topic, leader, held in rows:
        flat = table.extend(topic, table.count_of(topic) + 1, handle=1)[-1]
        table.rows["leader"][flat], table.rows["held_from"][flat] = leader, held
        table.note_held()
    flats = np.arange(len(rows), dtype=np.int32)
    assert table.topics_of(flats).tolist() == [topic for topic, _, _ in rows]
    assert table.held_from_of(flats).tolist() == [held for _, _, held in rows]
    assert [table.leader_of(flat) for flat in every] == [leader for _, leader, _ in rows]
    assert table.first_waiting().tolist() == [NO_SEQUENCE if held == NOT_HELD else held for *_, held in rows]
    for topic in range(6):
        mine = [flat for flat in every if rows[flat][0] == topic]
        assert table.ever_of_topic(topic).tolist() == mine
        assert (table.count_of(topic), table.counts_of(np.array([topic, 99])).tolist()) == (
            len(mine),
            [len(mine), 0],
        )
        numbers = np.arange(len(mine))
        assert not mine or table.flats_of(np.full_like(numbers, topic), numbers).tolist() == mine
    # Masks may be shorter than the table: it grows while a pass is under way.
    for count in {1, len(rows)}:
        some = np.array([flat % 2 == 0 for flat in range(count)])
        assert table.topics_where(some) == {rows[flat][0] for flat in range(0, count, 2)}
        led = {rows[flat][1] for flat in range(0, count, 2)}
        assert table.leading(some, 3).tolist() == [broker in led for broker in range(3)]
        assert table.are_of([1, 3], count).tolist() == [rows[flat][0] in (1, 3) for flat in range(count)]
        chosen = np.array([False, True, False, True, False])
        assert table.where_topic(chosen, count).tolist() == table.are_of([1, 3], count).tolist()
    half = np.array([flat % 2 == 0 for flat in every])
    there = table.topics_where(half)
    assert table.where_topic_has(half).tolist() == [topic in there for topic, _, _ in rows]
    assert table.led_by(np.array([True, False, True])).tolist() == [leader in (0, 2) for _, leader, _ in rows]
    assert table.of_leader(NONE).tolist() == [leader == NONE for _, leader, _ in rows]
    places = {
        t: min(h for topic, _, h in rows if topic == t and h != NOT_HELD)
        for t, _, held in rows
        if held != NOT_HELD
    }
    assert table.held_by_topic(table.is_held()) == places


def test_a_table_without_brokers_is_led_by_none() -> None:
    """Before the first metadata there is no broker to ask about."""
    table = PartitionTable()
    table.extend(0, 2, handle=1)
    assert table.led_by(np.zeros(0, np.bool_)).tolist() == [False, False]


def test_a_quiet_broker_is_stalled_and_recovers() -> None:
    """Stalled after STALL_NS without a report while something is in flight, or when it is down."""
    table = BrokerTable()
    busy, idle = table.index(7), table.index(8)
    table.rows["messages"][busy] = 1
    table.observe(STALL_NS, set())
    assert table.rows["state"].tolist() == [State.HEALTHY, State.HEALTHY]
    table.observe(STALL_NS + 1, set())
    assert table.rows["state"].tolist() == [State.STALLED, State.HEALTHY]
    table.rows["progress_ns"][busy] = STALL_NS
    table.observe(STALL_NS + 1, {8})
    assert table.rows["state"].tolist() == [State.HEALTHY, State.STALLED]
    assert table.index(8) == idle


def test_a_back_off_ends() -> None:
    """At its time, whatever else happens; the last word about it counts."""
    table = BrokerTable()
    for broker in (1, 2):
        table.index(broker)
        table.back_off(broker, until_ns=100)
    table.back_off(2, until_ns=200)
    table.observe(99, {1})
    assert table.rows["state"].tolist() == [State.BACKING_OFF, State.BACKING_OFF]
    table.observe(100, {1, 2})
    assert table.rows["state"].tolist() == [State.STALLED, State.BACKING_OFF]


def test_lowest_in_flight_is_by_partition() -> None:
    """NO_SEQUENCE where nothing is in flight; cleared rows come back in log order and are free again."""
    flight = Flight()
    capacity = len(flight.rows)
    for row, (sequence, flat) in enumerate([(9, 0), (4, 2), (7, 2)]):
        flight.rows[row] = (sequence, flat, 1, 0)
        flight.free_count[0] -= 1
    assert flight.lowest(4).tolist() == [9, NO_SEQUENCE, 4, NO_SEQUENCE]
    assert flight.clear()["sequence"].tolist() == [4, 7, 9]
    assert flight.count == 0
    assert sorted(flight.free[: flight.free_count[0]].tolist()) == list(range(capacity))


def test_the_flight_table_keeps_its_rows_when_it_grows() -> None:
    """Rows in flight stay under their numbers; every other number is free once."""
    flight = Flight()
    capacity = len(flight.rows)
    taken = [int(flight.free[flight.free_count[0] - 1 - i]) for i in range(10)]
    flight.free_count[0] -= 10
    flight.rows["flat_number"][taken] = 1
    flight.make_room(capacity + 5)
    assert flight.free_count[0] >= capacity + 5
    assert flight.count == 10
    free = set(flight.free[: flight.free_count[0]].tolist())
    assert free == set(range(len(flight.rows))) - set(taken)
