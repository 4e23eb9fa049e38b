"""The partition that a job chooses is the router's, and runs hold a backlog."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from pipeline.delivery.choice import NOWHERE, Chooser, Routes, Runs, partition_by
from pipeline.source.columns import to_batch
from router import BadPartitioner
from router.partition import ABSENT, Partitioners
from spool.format.batch import Topics

SPOOL, OTHER = "a" * 32, "b" * 32
NAMES = [
    "",
    "any",
    "round_robin",
    "partition_key",
    "murmur2",
    "crc32",
    "tests.pipeline.delivery.test_choice:by_length",
]


def by_length(keys: list[bytes | None], partition_keys: Any, partitions: int) -> Any:
    """A user's partitioner."""
    return np.array([len(key or b"") for key in keys]) + partition_keys


class Message(NamedTuple):
    """The fields that the choice goes by."""

    topic: str
    partition_key: int | None
    key: bytes | None


MESSAGES = st.lists(
    st.builds(
        Message,
        st.sampled_from(["t0", "t1", "absent"]),
        st.none() | st.integers(-(2**31), 2**31 - 1),
        st.none() | st.binary(min_size=1, max_size=9),
    ),
    min_size=4,
    max_size=40,
)


def columns(messages: list[Message], first: int = 0, spool: str = SPOOL) -> dict[str, pa.Array]:
    """The columns of these messages, numbered from `first` on."""
    return {
        "spool": pa.array([spool] * len(messages)),
        "sequence": pa.array(range(first, first + len(messages)), pa.int64()),
        "topic": pa.array([message.topic for message in messages]),
        "partition_key": pa.array([message.partition_key for message in messages], pa.int32()),
        "key": pa.array([message.key for message in messages], pa.binary()),
    }


def routes(partitioner: str, partitions: int, **more: Any) -> Routes:
    """Two topics: one of this many partitions, with this partitioner if any; and one of a single one."""
    available = {"t0": np.ones(partitions, np.bool_), "t1": np.ones(1, np.bool_)}
    return Routes(available, {"t0": partitioner} if partitioner else {}, **more)


@settings(deadline=None)
@given(MESSAGES, st.sampled_from(NAMES), st.integers(1, 9))
def test_a_key_goes_where_the_daemon_sends_it(
    messages: list[Message], partitioner: str, partitions: int
) -> None:
    """Messages hashed by key go where `router.partition` sends them; free ones go to some partition."""
    chosen = Chooser(routes(partitioner, partitions)).choose(columns(messages)).tolist()
    batch = to_batch(columns(messages), Topics())
    daemon = Partitioners({"t0": partitioner} if partitioner else {})
    counts = {b"t0": partitions, b"t1": 1, b"absent": 0}
    partitions_of = np.array([counts[name] for name in batch.topics.names], np.int32)
    flats = np.arange(partitions, dtype=np.int32) + np.zeros((len(partitions_of), 1), np.int32)
    everywhere = np.ones(partitions, np.bool_)
    expected = daemon.assign(batch, np.ones(len(batch), np.bool_), partitions_of, flats, everywhere).tolist()
    for message, ours, theirs, free in zip(messages, chosen, expected, daemon.free(batch), strict=True):
        count = counts[message.topic.encode()]
        assert ours == theirs if count == 0 or not free else ours in range(count)


@pytest.mark.parametrize("partitioner", NAMES)
@settings(deadline=None)
@given(messages=MESSAGES, cut=st.integers(0, 40))
def test_a_message_goes_where_it_went_before(partitioner: str, messages: list[Message], cut: int) -> None:
    """The choice does not depend on what came before in the task, nor on where a batch ends."""
    cut %= len(messages) + 1
    whole = Chooser(routes(partitioner, 5)).choose(columns(messages)).tolist()
    apart = [
        choice
        for part, first in ((messages[:cut], 0), (messages[cut:], cut))
        if part
        for choice in Chooser(routes(partitioner, 5)).choose(columns(part, first)).tolist()
    ]
    assert whole == apart


def test_a_partition_that_the_sender_names() -> None:
    """It is that one, by today's count, whatever the topic had before; else ABSENT, if there is a topic."""
    chooser = Chooser(routes("crc32", 7, histories={SPOOL: {"t0": [(0, 2), (100, 7)]}}))
    named = [5, 0, 6, 7, -1, 2**31 - 1, None, 0, 3]
    messages = [Message("t0", None, b"k")] * 7 + [Message("absent", None, b"k")] * 2
    given = columns(messages) | {"to_partition": pa.array(named, pa.int32())}
    chosen = chooser.choose(given)
    by_key = zlib.crc32(b"k") % 2
    assert chosen.tolist() == [5, 0, 6, ABSENT, ABSENT, ABSENT, by_key, NOWHERE, NOWHERE]
    assert chosen.dtype == np.int32
    none = {name: column.slice(0, 0) for name, column in given.items()}
    assert Chooser(Routes({})).choose(none).tolist() == []


def test_all_partitions_get_their_share() -> None:
    """`any` changes every 1,024 messages, `round_robin` with each."""
    many = [Message("t0", None, None)] * 8192
    for name, runs in (("any", 8), ("round_robin", 8192)):
        chosen = Chooser(routes(name, 4)).choose(columns(many))
        assert np.bincount(chosen).tolist() == [2048] * 4
        assert 1 + int(np.count_nonzero(np.diff(chosen))) == runs


def test_what_may_go_anywhere_avoids_what_is_not_available() -> None:
    """Partitions without a leader get none of it; with none available it goes nowhere."""
    some = Routes({"t0": np.array([False, True, False])}, {"t0": "round_robin"})
    none = Routes({"t0": np.zeros(3, np.bool_)}, {"t0": "round_robin"})
    messages = [Message("t0", None, None)] * 5
    assert Chooser(some).choose(columns(messages)).tolist() == [1] * 5
    assert Chooser(none).choose(columns(messages)).tolist() == [NOWHERE] * 5


def test_a_topic_that_grew_keeps_its_count_below_the_message_from_which_the_new_one_holds() -> None:
    """By spool: in one the topic grew with message 3, in the other it always was as it is."""
    chooser = Chooser(routes("crc32", 7, histories={SPOOL: {"t0": [(0, 2), (3, 7)]}}))
    messages = [Message("t0", None, b"k%d" % i) for i in range(6)]
    codes = [zlib.crc32(b"k%d" % i) for i in range(6)]
    both = {
        name: pa.concat_arrays([columns(messages)[name], columns(messages, spool=OTHER)[name]])
        for name in columns(messages)
    }
    expected = [c % (2 if i < 3 else 7) for i, c in enumerate(codes)] + [c % 7 for c in codes]
    assert chooser.choose(both).tolist() == expected


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=6), st.integers(0, 50))
def test_runs_hold_what_lies_in_them(gaps: list[tuple[int, int]], end: int) -> None:
    """As a set of numbers would, below their end."""
    runs, at = [], 0
    for gap, length in gaps:
        runs.append((at + gap, at + gap + length))
        at += gap + length
    numbers = {n for first, last in runs for n in range(first, last) if n < end}
    made = Runs.of(runs, end)
    assert len(made) == len(numbers)
    assert set(np.flatnonzero(made.hold(np.arange(60))).tolist()) == numbers
    below = made.count_below(np.arange(60)).tolist()
    assert below == [sum(n < bound for n in numbers) for bound in range(60)]


def test_runs_without_some() -> None:
    """Sequences cut out of runs leave the numbers on both sides."""
    runs = Runs.of([(0, 5), (7, 8), (10, 20)], 18)
    left = runs.without(np.array([0, 2, 3, 6, 7, 12, 17, 19], np.int64))
    assert np.flatnonzero(left.hold(np.arange(30))).tolist() == [1, 4, 10, 11, 13, 14, 15, 16]
    assert len(left) == 8


def test_a_bad_partitioner_is_refused_before_anything_runs() -> None:
    """One sentence, where the job is made."""
    with pytest.raises(BadPartitioner, match="cannot load no_such:thing"):
        partition_by(Routes({}, {"t": "no_such:thing"}))
