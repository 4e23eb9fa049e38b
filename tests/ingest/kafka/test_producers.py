"""The last batches of producers: kept over processes, given up in turn, and never half of one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.errors import BadStaging
from ingest.kafka.producers import BATCHES, Batch, Key, Producer, Producers, producers_path
from spool.errors import NotOurs
from spool.native.digest import digest

SPOOL = bytes(range(16))
TOPIC = b"orders"
UID, OTHER = 1000, 1001
Fields = tuple[int, ...]


@pytest.fixture
def path(memory: Path) -> Path:
    """The file of a spool's producers."""
    return producers_path(memory / "staging")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock of which `now` is set."""
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr("ingest.kafka.producers.time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def fields(batch: Batch) -> Fields:
    """A batch without its place."""
    return batch.sequence, batch.count, batch.begun, batch.stored, batch.first, batch.end, batch.run


def state(producers: Producers) -> dict[Key, tuple[int, int, list[Fields]]]:
    """All that is known: by key the user, the epoch and the batches."""
    return {one.key: (one.uid, one.epoch, [fields(batch) for batch in one.batches]) for one in producers}


def read(path: Path) -> dict[Key, tuple[int, int, list[Fields]]]:
    """All that a successor knows."""
    successor = Producers(path, SPOOL)
    try:
        return state(successor)
    finally:
        successor.close()


def store(producer: Producer, sequence: int, count: int, first: int) -> Batch:
    """A batch that is in the log."""
    batch = producer.begin(sequence, count)
    batch.stored, batch.first, batch.end = count, first, first + count
    producer.note(batch)
    return batch


def test_path() -> None:
    """The file is beside the staging of its spool."""
    assert producers_path(Path("/run/bruce/abc.staging")) == Path("/run/bruce/abc.producers")


def test_find(path: Path) -> None:
    """A producer's batches of a partition are found by producer, topic and partition together."""
    producers = Producers(path, SPOOL)
    one = producers.find(7, TOPIC, 0, UID)
    assert one.key == Key(7, digest(TOPIC), 0)
    assert (one.epoch, one.uid, one.batches) == (-1, UID, [])
    assert producers.find(7, TOPIC, 0, UID) is one
    # Of the first one that used it.
    assert producers.find(7, TOPIC, 0, OTHER) is one
    others = [producers.find(8, TOPIC, 0, UID), producers.find(7, b"o", 0, UID)]
    others.append(producers.find(7, TOPIC, 1, UID))
    assert len({one, *others}) == 4
    assert list(producers) == [one, *others]
    batch = one.begin(0, 3)
    assert one.find(0, 3) is batch
    assert (one.find(0, 2), one.find(1, 3), others[0].find(0, 3)) == (None, None, None)


def test_begin(path: Path) -> None:
    """A batch begins with nothing stored; whole it is when all is stored, and no run is on its way."""
    batch = Producers(path, SPOOL).find(7, TOPIC, 0, UID).begin(5, 3)
    assert fields(batch) == (5, 3, 0, 0, -1, 0, 0)
    assert not batch.is_whole
    batch.stored = 3
    assert batch.is_whole
    batch.run = 1
    assert not batch.is_whole


def test_expects(path: Path) -> None:
    """Any sequence may come first; the next one is that behind the last batch, when that is whole."""
    producer = Producers(path, SPOOL).find(7, TOPIC, 0, UID)
    assert all(producer.expects(sequence) for sequence in (0, 5, (1 << 31) - 1))
    store(producer, 5, 3, 0)
    assert [sequence for sequence in range(20) if producer.expects(sequence)] == [8]
    batch = producer.begin(8, 2)
    assert not any(producer.expects(sequence) for sequence in range(20))
    batch.stored, batch.run = 2, 9
    assert not producer.expects(10)
    batch.run = 0
    assert producer.expects(10)
    producer.drop(batch)
    assert [sequence for sequence in range(20) if producer.expects(sequence)] == [8]


def test_sequences_begin_again(path: Path) -> None:
    """Behind the highest sequence of 31 bits comes 0."""
    producer = Producers(path, SPOOL).find(7, TOPIC, 0, UID)
    store(producer, (1 << 31) - 3, 3, 0)
    assert producer.expects(0)
    assert store(producer, (1 << 31) - 1, 5, 0).next == 4


def test_last_five(path: Path) -> None:
    """Of more than five batches the oldest gives way, here and in the file."""
    producer = Producers(path, SPOOL).find(7, TOPIC, 0, UID)
    for number in range(12):
        store(producer, 10 * number, 10, 100 + number)
        expected = list(range(max(0, number - BATCHES + 1), number + 1))
        assert [batch.first - 100 for batch in producer.batches] == expected
        assert [one[4] - 100 for one in read(path)[producer.key][2]] == expected
    assert producer.find(60, 10) is None
    assert producer.find(70, 10) is producer.batches[0]


def test_drop(path: Path) -> None:
    """A batch of which nothing is stored is forgotten, and its place is used again."""
    producers = Producers(path, SPOOL)
    producer = producers.find(7, TOPIC, 0, UID)
    kept = [store(producer, number, 1, number) for number in range(3)]
    producer.drop(producer.begin(3, 1))
    assert producer.batches == kept
    assert read(path) == state(producers)
    producer.drop(kept[1])
    store(producer, 3, 1, 3)
    assert [batch.sequence for batch in producer.batches] == [0, 2, 3]
    assert read(path) == state(producers)


def test_restart(path: Path) -> None:
    """In a later epoch a producer begins again with any sequence; its earlier batches are forgotten."""
    producers = Producers(path, SPOOL)
    producer = producers.find(7, TOPIC, 0, UID)
    for number in range(5):
        store(producer, number, 1, number)
    producer.restart(4)
    assert (producer.epoch, producer.batches) == (4, [])
    assert producer.expects(1234)
    assert read(path) == {producer.key: (UID, 4, [])}
    store(producer, 1234, 1, 9)
    assert read(path) == {producer.key: (UID, 4, [(1234, 1, 0, 1, 9, 10, 0)])}


def test_successor(path: Path) -> None:
    """A successor knows all batches in their order, and goes on in it."""
    producers = Producers(path, SPOOL)
    for number in range(7):
        store(producers.find(7, TOPIC, 0, UID), number, 1, number)
        store(producers.find(8, b"other", 3, OTHER), 2 * number, 2, number)
    running = producers.find(8, b"other", 3, OTHER).begin(14, 2)
    running.begun, running.run = 1, 77
    producers.find(8, b"other", 3, OTHER).note(running)
    known = state(producers)
    producers.close()
    successor = Producers(path, SPOOL)
    assert state(successor) == known
    for number in range(7, 10):
        store(successor.find(7, TOPIC, 0, UID), number, 1, number)
    assert [batch.sequence for batch in successor.find(7, TOPIC, 0, UID).batches] == [5, 6, 7, 8, 9]
    assert read(path) == state(successor)
    assert len(list(successor)) == 2


def test_largest_values(path: Path) -> None:
    """The largest and smallest values that a batch may have are kept."""
    producers = Producers(path, SPOOL)
    producer = producers.find((1 << 63) - 1, TOPIC, (1 << 31) - 1, (1 << 32) - 1)
    producer.restart((1 << 15) - 1)
    batch = producer.begin((1 << 31) - 1, (1 << 31) - 1)
    batch.begun = batch.stored = (1 << 31) - 1
    batch.first = batch.end = batch.run = (1 << 63) - 1
    producer.note(batch)
    assert read(path) == state(producers)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda path: path.write_bytes(b"brucepiD" + path.read_bytes()[8:]), id="magic"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:8] + b"\2" * 4), id="layout"),
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:31]), id="short"),
    ],
)
def test_not_this_file(path: Path, change: Callable[[Path], object]) -> None:
    """A file of another format is refused, and left as it is."""
    Producers(path, SPOOL, most=2).close()
    change(path)
    path.chmod(0o600)
    before = path.read_bytes()
    with pytest.raises(BadStaging, match="no producers of this spool"):
        Producers(path, SPOOL)
    assert path.read_bytes() == before


def test_other_spool(path: Path) -> None:
    """The file of another spool is refused."""
    Producers(path, SPOOL, most=2).close()
    with pytest.raises(BadStaging):
        Producers(path, bytes(16))


def test_not_ours(path: Path) -> None:
    """A file that others may read or write is refused."""
    Producers(path, SPOOL, most=2).close()
    for mode in (0o640, 0o602):
        path.chmod(mode)
        with pytest.raises(NotOurs):
            Producers(path, SPOOL)


def test_longest_unused_gives_way(path: Path) -> None:
    """Without a free row the user with most loses the row that was used longest ago; others keep theirs."""
    producers = Producers(path, SPOOL, most=4)
    mine = [producers.find(number, TOPIC, 0, UID) for number in (1, 2, 3)]
    his = producers.find(9, TOPIC, 0, OTHER)
    store(his, 0, 1, 0)
    # It is used again: the second is the one that was used longest ago.
    producers.find(1, TOPIC, 0, UID)
    made = producers.find(4, TOPIC, 0, UID)
    assert set(producers) == {mine[0], mine[2], made, his}
    made = producers.find(10, TOPIC, 0, OTHER)
    assert set(state(producers)) == {
        one.key for one in (mine[0], producers.find(4, TOPIC, 0, UID), his, made)
    }
    assert state(producers)[his.key] == (OTHER, -1, [(0, 1, 0, 1, 0, 1, 0)])
    assert read(path) == state(producers)


@pytest.mark.parametrize("mine", [1, 3])
def test_user_with_most(path: Path, mine: int) -> None:
    """The user with most rows loses one, whoever came first, and whoever needs it."""
    producers = Producers(path, SPOOL, most=4)
    for number in range(mine):
        producers.find(number + 1, TOPIC, 0, UID)
    for number in range(mine, 4):
        producers.find(number + 1, TOPIC, 0, OTHER)
    producers.find(9, TOPIC, 0, 1002)
    expected = {UID: 1, OTHER: 2, 1002: 1} if mine == 1 else {UID: 2, OTHER: 1, 1002: 1}
    users = [one.uid for one in producers]
    assert {uid: users.count(uid) for uid in users} == expected


def test_given_up(path: Path) -> None:
    """A producer that was given up is one without batches when it comes again, here and in the file."""
    producers = Producers(path, SPOOL, most=1)
    first = producers.find(1, TOPIC, 0, UID)
    first.restart(3)
    for number in range(5):
        store(first, number, 1, number)
    producers.find(2, TOPIC, 0, UID)
    assert first.batches == []
    assert read(path) == {Key(2, digest(TOPIC), 0): (UID, -1, [])}
    again = producers.find(1, TOPIC, 0, UID)
    assert again is not first
    assert read(path) == {again.key: (UID, -1, [])}


def test_unused_over_processes(path: Path, clock: SimpleNamespace) -> None:
    """A successor gives up the row whose last batch began longest ago."""
    producers = Producers(path, SPOOL, most=3)
    for number in (1, 2, 3):
        clock.now += 10
        producers.find(number, TOPIC, 0, UID)
    clock.now += 10
    store(producers.find(1, TOPIC, 0, UID), 0, 1, 0)
    producers.close()
    successor = Producers(path, SPOOL)
    for number in (4, 5):
        successor.find(number, TOPIC, 0, UID)
    assert [one.key.producer for one in successor] == [1, 4, 5]


def test_on_its_way(path: Path) -> None:
    """A producer with a batch on its way to the log is not given up while another one can be."""
    producers = Producers(path, SPOOL, most=3)
    for number in (1, 2, 3):
        producer = producers.find(number, TOPIC, 0, UID)
        batch = producer.begin(0, 1)
        batch.run = number if number < 3 else 0
        producer.note(batch)
    producers.find(4, TOPIC, 0, UID)
    assert [one.key.producer for one in producers] == [1, 2, 4]
    producers.find(5, TOPIC, 0, UID)
    assert [one.key.producer for one in producers] == [1, 2, 5]


def test_all_on_their_way(path: Path) -> None:
    """If all have a batch on its way, one gives way all the same."""
    producers = Producers(path, SPOOL, most=2)
    for number in (1, 2):
        producer = producers.find(number, TOPIC, 0, UID)
        batch = producer.begin(0, 1)
        batch.run = number
        producer.note(batch)
    producers.find(3, TOPIC, 0, UID)
    assert [one.key.producer for one in producers] == [2, 3]


def test_noted_after_it_was_given_up(path: Path) -> None:
    """A batch that is noted after its producer was given up changes no other producer."""
    producers = Producers(path, SPOOL, most=1)
    first = producers.find(1, TOPIC, 0, UID)
    batch = first.begin(0, 1)
    store(producers.find(2, TOPIC, 0, OTHER), 0, 1, 50)
    batch.begun, batch.run = 0, 99
    first.note(batch)
    assert read(path) == state(producers)


def test_dropped_after_it_was_given_up(path: Path) -> None:
    """A batch may be dropped after its producer was given up."""
    producers = Producers(path, SPOOL, most=1)
    first = producers.find(1, TOPIC, 0, UID)
    batch = first.begin(0, 1)
    producers.find(2, TOPIC, 0, OTHER)
    first.drop(batch)


# -- against a plain model ------------------------------------------------------------------------------

MOST = 4
_KEYS = st.tuples(st.integers(1, 4), st.sampled_from([b"a", b"b"]), st.integers(0, 1))
_NUMBERS = st.integers(0, 1 << 30)
_OPS = st.one_of(
    st.tuples(st.just("begin"), _KEYS, st.sampled_from([UID, OTHER]), st.tuples(_NUMBERS, st.integers(1, 9))),
    st.tuples(st.just("note"), _KEYS, st.integers(0, 4), st.tuples(*[_NUMBERS] * 4, st.integers(0, 1))),
    st.tuples(st.just("drop"), _KEYS, st.integers(0, 4), st.none()),
    st.tuples(st.just("restart"), _KEYS, st.sampled_from([UID, OTHER]), st.integers(0, 9)),
    st.tuples(st.just("reopen"), st.none(), st.none(), st.none()),
)


class Model:
    """Producers as a dictionary: by key the user, the epoch and the batches."""

    def __init__(self) -> None:
        self.rows: dict[Key, tuple[int, int, list[Fields]]] = {}

    def find(self, key: Key, uid: int, after: set[Key]) -> None:
        """`after`: the keys that Producers has afterwards: which one gave way may be one of several."""
        if key in self.rows:
            return
        if len(self.rows) == MOST:
            counts = [row[0] for row in self.rows.values()]
            (victim,) = self.rows.keys() - after
            user, _epoch, batches = self.rows.pop(victim)
            assert counts.count(user) == max(map(counts.count, counts)), "another user has more"
            idle = [row for row in self.rows.values() if row[0] == user and not any(one[6] for one in row[2])]
            assert not idle or not any(one[6] for one in batches), "another one could be given up"
        self.rows[key] = uid, -1, []


def step(producers: Producers, model: Model, op: tuple[str, Any, Any, Any]) -> None:
    """The same to both."""
    what, (number, topic, partition), which, values = op
    key = Key(number, digest(topic), partition)
    if what in {"begin", "restart"}:
        producer = producers.find(number, topic, partition, which)
        model.find(key, which, {one.key for one in producers})
        uid, _epoch, batches = model.rows[key]
        if what == "restart":
            producer.restart(values)
            model.rows[key] = uid, values, []
        else:
            producer.begin(*values)
            batches.append((*values, 0, 0, -1, 0, 0))
            del batches[:-BATCHES]
        return
    batches = model.rows[key][2] if key in model.rows else []
    if which >= len(batches):
        return
    producer = producers.find(number, topic, partition, UID)
    batch = producer.batches[which]
    if what == "drop":
        producer.drop(batch)
        del batches[which]
    else:
        batch.begun, batch.stored, batch.first, batch.end, batch.run = values
        producer.note(batch)
        batches[which] = (*batches[which][:2], *values)


@given(st.lists(_OPS, max_size=60))
@settings(deadline=None, max_examples=150)
def test_model(ops: list[tuple[str, Any, Any, Any]]) -> None:
    """After any changes, and over any number of processes, all is known as in a plain model."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-test-") as name:
        path = Path(name) / "producers"
        producers, model = Producers(path, SPOOL, most=MOST), Model()
        for op in ops:
            if op[0] == "reopen":
                producers.close()
                producers = Producers(path, SPOOL)
            else:
                step(producers, model, op)
            assert state(producers) == model.rows
        assert read(path) == model.rows
        producers.close()


# -- killed between two stores --------------------------------------------------------------------------


def killed(path: Path, act: Callable[[], object]) -> list[dict[Key, tuple[int, int, list[Fields]]]]:
    """All that a successor knows, if the process ends behind one of the stores of `act`: for each in turn."""
    copies = [path.read_bytes()]

    put = Producer._put

    def look(producer: Producer, at: int, data: bytes) -> None:
        put(producer, at, data)
        copies.append(path.read_bytes())

    with mock.patch.object(Producer, "_put", look):
        act()
    found = []
    for number, copy in enumerate(copies):
        place = path.with_name(f"copy{number}")
        place.write_bytes(copy)
        place.chmod(0o600)
        found.append(read(place))
        place.unlink()
    assert len(found) > 2, "no store was seen"
    assert found[-1] == read(path)
    return found


def meaning(batch: Fields) -> Fields:
    """The fields that are believed: while a run is on its way, its outcomes say how much of it is stored."""
    sequence, count, begun, stored, first, end, run = batch
    return (sequence, count, begun, run) if run else (sequence, count, stored, first, end)


def in_turn(states: list[list[Fields]]) -> list[list[Fields]]:
    """States of the batches of a producer without those that are like the one before."""
    found = [list(map(meaning, one)) for one in states]
    return [found[0], *(after for before, after in pairwise(found) if before != after)]


@pytest.mark.parametrize("before", range(8))
def test_killed_in_begin(path: Path, before: int) -> None:
    """A kill while a batch begins leaves it whole or not at all; the oldest gives way first."""
    producer = Producers(path, SPOOL, most=2).find(7, TOPIC, 0, UID)
    producer.restart(2)
    for number in range(before):
        store(producer, 10 * number, 10, 10 * number)
    found = killed(path, lambda: producer.begin(10 * before, 10))
    assert {(uid, epoch) for one in found for uid, epoch, _ in one.values()} == {(UID, 2)}
    kept = [(10 * number, 10, 10, 10 * number, 10 * number + 10) for number in range(before)][-BATCHES:]
    new = (10 * before, 10, 0, -1, 0)
    less = [kept[1:]] if len(kept) == BATCHES else []
    assert in_turn([one[producer.key][2] for one in found]) == [kept, *less, [*kept[1 - BATCHES :], new]]


NOTES: list[tuple[str, Fields, Fields]] = [
    ("a run is offered", (0, 0, -1, 0, 0), (0, 0, -1, 0, 5)),
    ("all of it is stored", (0, 0, -1, 0, 5), (0, 9, 40, 49, 0)),
    ("some of it is stored", (0, 0, -1, 0, 5), (0, 4, 40, 44, 0)),
    ("another run is offered", (0, 4, 40, 44, 0), (4, 4, 40, 44, 6)),
    ("the rest is stored", (4, 4, 40, 44, 6), (4, 9, 40, 49, 0)),
    ("nothing more is stored", (4, 4, 40, 44, 6), (4, 4, 40, 44, 0)),
]
"""The changes of a batch of nine records: (begun, stored, first, end, run) before and after."""


@pytest.mark.parametrize(
    ("old", "new"), [(old, new) for _, old, new in NOTES], ids=[note[0] for note in NOTES]
)
def test_killed_in_note(path: Path, old: Fields, new: Fields) -> None:
    """A kill while a batch is noted leaves what was believed before, or what is noted, and no mixture."""
    producer = Producers(path, SPOOL, most=2).find(7, TOPIC, 0, UID)
    store(producer, 0, 3, 0)
    batch = producer.begin(3, 9)

    def note(values: Fields) -> None:
        batch.begun, batch.stored, batch.first, batch.end, batch.run = values
        producer.note(batch)

    note(old)
    found = in_turn([one[producer.key][2] for one in killed(path, lambda: note(new))])
    first = (0, 3, 3, 0, 3)
    assert found == [[first, meaning((3, 9, *old))], [first, meaning((3, 9, *new))]]


def test_killed_in_restart(path: Path) -> None:
    """A kill while a producer begins a later epoch leaves no batch of the earlier one in it."""
    producer = Producers(path, SPOOL, most=2).find(7, TOPIC, 0, UID)
    producer.restart(1)
    for number in range(5):
        store(producer, number, 1, number)
    for one in killed(path, lambda: producer.restart(2)):
        _, epoch, batches = one[producer.key]
        assert not (epoch == 2 and batches)


def test_killed_in_find(path: Path) -> None:
    """A kill while a new producer takes the row of another one leaves one of them, or neither."""
    producers = Producers(path, SPOOL, most=1)
    store(producers.find(7, TOPIC, 0, UID), 0, 3, 0)
    before = read(path)
    for one in killed(path, lambda: store(producers.find(8, TOPIC, 0, OTHER), 5, 1, 9)):
        for key, row in one.items():
            assert row == before.get(key, row)
            assert key.producer == 7 or row[:2] == (OTHER, -1)
            assert key.producer == 7 or all(batch[0] == 5 for batch in row[2])


def test_row_that_was_left(path: Path) -> None:
    """A free row with the batches of a producer that is gone is one without batches for the next."""
    producers = Producers(path, SPOOL, most=1)
    store(producers.find(7, TOPIC, 0, UID), 0, 3, 0)
    producers.close()
    with path.open("r+b") as file:
        # As after a kill while it was given up.
        file.seek(64)
        file.write(bytes(8))
    successor = Producers(path, SPOOL)
    producer = successor.find(8, TOPIC, 0, OTHER)
    assert (producer.batches, read(path)) == ([], {producer.key: (OTHER, -1, [])})
