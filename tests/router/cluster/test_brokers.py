"""The room at the brokers: the one look at all tables says the same as those at each partition."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from dispatch.tables import NONE, NOT_HELD, BrokerTable, PartitionTable, State
from router.cluster.brokers import Capacity

WINDOW = 10, 1000
STATES = st.sampled_from([State.HEALTHY] * 6 + [State.STALLED, State.BACKING_OFF])
BROKER = st.tuples(STATES, st.sampled_from([0, 0, 1, 5, 9, 12]), st.sampled_from([0, 400, 600, 1200]))
PARTITION = st.tuples(st.integers(NONE, 2), st.sampled_from([NOT_HELD] * 8 + [0, 7]), st.sampled_from([0, 1]))


class Tables:
    """The tables of a pool, and no more of it."""

    def __init__(
        self, brokers: list[tuple[int, int, int]], partitions: list[tuple[int, int, int]], *, closed: bool
    ) -> None:
        """`brokers`: state, messages and bytes in flight. `partitions`: leader, held from, topic."""
        self.brokers, self.partitions, self.closed = BrokerTable(), PartitionTable(), closed
        for number, (state, messages, size) in enumerate(brokers):
            self.brokers.index(number)
            row = self.brokers.rows[number]
            row.state, row.messages, row.bytes = state, messages, size
        for leader, held_from, topic in partitions:
            known = 0
            if topic < len(self.partitions.partitions_of):
                known = int(self.partitions.partitions_of[topic])
            (*_, flat) = self.partitions.extend(topic, known + 1, 0).tolist()
            row = self.partitions.rows[flat]
            row.leader, row.held_from = min(leader, len(brokers) - 1), held_from
        self.partitions.note_held()


@given(
    brokers=st.lists(BROKER, max_size=3),
    partitions=st.lists(PARTITION, max_size=6),
    closed=st.integers(0, 9).map(lambda n: n == 9),
)
def test_calm_is_what_the_other_looks_say(
    brokers: list[tuple[int, int, int]], partitions: list[tuple[int, int, int]], *, closed: bool
) -> None:
    """If nothing is held and every broker has room, reading goes on, and messages go to any leader."""
    tables = Tables(brokers, partitions, closed=closed)
    capacity = Capacity(tables, *WINDOW)  # type: ignore[arg-type]
    calm = capacity.calm()
    expected = (
        len(brokers) > 0
        and bool(capacity.roomy().all())
        and bool(tables.brokers.healthy().all())
        and bool(capacity.free().all())
    )
    assert (calm is not None) == expected
    if calm is not None:
        assert capacity.may_read(capacity.free())
        assert np.array_equal(calm, capacity.available(None))
