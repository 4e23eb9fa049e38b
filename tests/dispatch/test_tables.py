"""The tables behind the pool: partitions, brokers, and what is in flight."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dispatch.tables import (
    NO_SEQUENCE,
    NOT_HELD,
    STALL_NS,
    BrokerTable,
    Flight,
    PartitionTable,
    State,
    order_by_partition,
)


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
