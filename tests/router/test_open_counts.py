"""What is open of topics with a quota, below the live reader's place."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from router.open_counts import OpenCounts
from spool.record import Topics

NAMES = [b"a", b"b"]


class Desk:
    """OpenCounts, and what they last told."""

    def __init__(self) -> None:
        self.topics, self.told = Topics(), (0, [0, 0])
        self.topics.add(b"other")
        self.shares = OpenCounts(NAMES, self.topics, self._note)

    def _note(self, place: int, counts: npt.NDArray[np.int64]) -> None:
        self.told = place, counts.tolist()


class Read:
    """As much of a batch as shares look at."""

    def __init__(self, topic: list[int]) -> None:
        self.topic = np.array(topic, np.int32)


courses = st.lists(st.tuples(st.sampled_from(["read", "sent", "discarded"]), st.integers(0, 2)), max_size=60)


@given(courses)
def test_what_is_read_and_not_resolved_is_open(course: list[tuple[str, int]]) -> None:
    """Over any course of messages read, delivered and discarded; never below zero."""
    desk, model = Desk(), [0, 0, 0]
    for what, topic in course:
        if what == "read":
            rows = np.array([True, False])
            desk.shares.note_read(Read([topic, topic]), rows)  # type: ignore[arg-type]
            model[topic] += 1
        elif what == "sent":
            desk.shares.note_resolved(np.array([topic], np.int32))
            model[topic] = max(0, model[topic] - 1)
        else:
            desk.shares.note_discarded(desk.topics.names[topic], 1)
            model[topic] = max(0, model[topic] - 1)
    desk.shares.report(100, 50)
    assert desk.told == (100, model[1:])


def test_nothing_is_open_below_the_floor() -> None:
    """Once all that was read is resolved the count begins anew, whatever it had come to."""
    desk = Desk()
    desk.shares.note_read(Read([1, 1, 2]), np.ones(3, np.bool_))  # type: ignore[arg-type]
    desk.shares.report(10, 10)
    assert desk.told == (10, [0, 0])
