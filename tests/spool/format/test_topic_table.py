"""Topic names by number."""

from __future__ import annotations

import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from spool.format.topic_table import ILLEGAL, OTHERS, Topics, counted_name, is_legal, legal, topic_number
from spool.native.memory import address_of, call


def number(topics: Topics, name: bytes) -> int:
    """Number it like a reader of segments."""
    return topics.number(name)


@given(st.lists(st.binary(max_size=40), max_size=300))
def test_each_name_has_its_number(names: list[bytes]) -> None:
    """In the order in which they come, for names of any bytes; a growing table keeps them all."""
    topics = Topics(capacity=4)
    numbers = [number(topics, name) for name in names]
    distinct = list(dict.fromkeys(names))
    assert list(topics.names) == distinct
    assert topics.names[1:3] == distinct[1:3]
    assert numbers == [distinct.index(name) for name in names]
    assert [topics.find(name) for name in distinct] == list(range(len(distinct)))
    assert topics.find(b"no such name") == -1


def test_a_kernel_finds_what_was_added() -> None:
    """By the digest, as the function gives it to loops, and the addresses of the table."""
    topics = Topics()
    topics.add(b"one")
    assert topics.add(b"two") == 1
    slots, homes = topics.table.slots, topics.table.homes
    data = np.frombuffer(b"two", np.uint8)
    hashed = call(topics._digest, address_of(data), 3, topics.seed)
    assert topic_number(hashed, address_of(slots), len(slots), address_of(homes)) == 1


@given(st.one_of(st.binary(max_size=260), st.text("aZ09._-/ \x00é", max_size=255).map(str.encode)))
def test_what_kafka_can_have(name: bytes) -> None:
    """The same result as the regular expression."""
    assert is_legal(address_of(np.frombuffer(name + b"\0", np.uint8)), len(name)) == legal(name)


@pytest.mark.parametrize(
    "name", [b".", b"..", b"...", b"a" * 249, b"a" * 250, b"", b"@", b"[", b"`", b"{", b"/", b":"]
)
def test_what_kafka_can_have_at_the_edges(name: bytes) -> None:
    """Lengths, dots, and the characters next to letters and digits."""
    assert is_legal(address_of(np.frombuffer(name + b"\0", np.uint8)), len(name)) == legal(name)


@given(
    st.lists(
        st.one_of(st.binary(max_size=260), st.sampled_from([b"t", b"..", b"x" * 250])).filter(
            lambda n: n != OTHERS
        )
    )
)
def test_a_counter_gives_names_that_cannot_be_one_number(names: list[bytes]) -> None:
    """However many and long they are; counts by name agree with those by number."""
    topics = Topics.of_counter()
    numbers = [topics.number(name) for name in names]
    assert [topics.names[number] for number in numbers] == [counted_name(name) for name in names]


def test_a_bounded_table() -> None:
    """Strangers take half of it, names of Kafka or added names all of it; no name gets more."""
    topics = Topics(10)
    assert topics.names[:] == [OTHERS, ILLEGAL]
    strangers = [number(topics, b"stranger-%d" % n) for n in range(8)]
    assert strangers == [2, 3, 4, 5, 6, topics.others, topics.others, topics.others]
    assert topics.refused == 3
    assert [number(topics, name) for name in (b"no name", b"..", OTHERS, ILLEGAL)] == [topics.illegal] * 4
    topics.welcome([b"known-%d" % n for n in range(9)])
    known = [number(topics, b"known-%d" % n) for n in range(9)]
    assert known == [7, 8, 9, 10, 11] + [topics.others] * 4
    assert topics.admit(b"known-9") == -1
    assert topics.admit(b"known-1") == 8
    # Names from the configuration have no bound.
    assert topics.add(b"configured") == 12
    assert number(topics, b"stranger-3") == 5


def test_strangers_that_are_forgotten_make_room() -> None:
    """Their numbers go to others; all remaining names keep theirs, for ever."""
    topics = Topics(20)
    kept, room = {name: topics.add(name) for name in (b"kept", b"known")}, len(topics.table.arena)
    for turn in range(300):
        names = [b"turn-%d-%d" % (turn, n) + b"x" * 200 for n in range(10)]
        numbers = [number(topics, name) for name in names]
        assert len({*numbers, *kept.values(), topics.others, topics.illegal}) == 14
        assert max(numbers) < 14
        assert [topics.names[n] for n in numbers] == names
        assert number(topics, b"one-too-many") == topics.others
        assert topics.strangers() == set(numbers)
        assert topics.forget([*numbers, *kept.values()]) == names
        assert not topics.strangers()
        assert [topics.find(name) for name in names] == [-1] * 10
        assert {name: topics.find(name) for name in kept} == kept
    assert len(topics.table.arena) == room
    assert len(topics.names) == 14


def test_a_stranger_that_becomes_known_stays() -> None:
    """It leaves its place among the strangers to another."""
    topics = Topics(4)
    first = number(topics, b"first")
    number(topics, b"second")
    assert number(topics, b"third") == topics.others
    assert topics.admit(b"first") == first
    assert number(topics, b"third") != topics.others
    topics.forget([first])
    assert topics.names[first] == b"first"


def test_a_closed_table_takes_no_more() -> None:
    """All other names are one."""
    topics = Topics()
    topics.add(b"one")
    others = topics.close()
    assert [number(topics, name) for name in (b"one", b"two", b"no name")] == [0, others, others]


def test_memory_grows_with_distinct_names_only() -> None:
    """A million messages of ten names take the memory of ten; a bounded table stays within its bound."""
    topics = Topics(1000)
    number(topics, b"warm")
    tracemalloc.start()
    for n in range(20_000):
        number(topics, b"stranger-%d" % n)
        number(topics, b"no name %d" % n)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 100_000
    assert len(topics.names) == 502
