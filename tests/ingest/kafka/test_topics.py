"""Topics that clients see are those that were noted; others are wanted, said in one file, and bounded."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.kafka.errors import Code
from ingest.kafka.topics import AGAIN_S, LOOK_S, Topics
from spool.layout import Layout
from spool.shared.state import Field, SharedState
from spool.shared.topics import MOST_WANTED, read_wanted, wanted_path, write_partitions

LATER, UNKNOWN, INVALID = -5, -3, -17


class Clock:
    """A clock in the place of the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """Its time."""
        return self.now


class Set:
    """Topics, and the deliverer's side of them."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.layout, self.path, self.clock = Layout(directory), directory / "shared", clock
        self.layout.delivery.mkdir()
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        self.shared = SharedState(self.path)
        self._stamp = 0
        self.topics = self.made()

    def made(self) -> Topics:
        """Those of a new process."""
        return Topics(self.layout, self.shared, self.path, bell=self.bell)

    def note(self, found: dict[bytes, int]) -> None:
        """The deliverer notes, and time goes on until the next look."""
        write_partitions(self.layout, found)
        # The filesystem may count time in steps.
        self._stamp += 1_000_000_000
        os.utime(self.layout.topics, ns=(self._stamp, self._stamp))
        self.clock.now += LOOK_S

    def rung(self) -> int:
        """How often the bell rang since it was asked for last."""
        try:
            return os.eventfd_read(self.bell)
        except BlockingIOError:
            return 0

    @property
    def wanted(self) -> list[bytes]:
        """The file."""
        return read_wanted(self.path)

    @property
    def counted(self) -> int:
        """How often the file was written, as the deliverer sees it."""
        return int(self.shared.words[Field.TOPICS_WANTED])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of Topics."""
    made = Clock()
    monkeypatch.setattr("ingest.kafka.topics.time", made)
    return made


@pytest.fixture
def found(memory: Path, clock: Clock) -> Iterator[Set]:
    """Topics of an empty spool."""
    made = Set(memory, clock)
    yield made
    os.close(made.bell)


def test_known(found: Set) -> None:
    """A topic that was noted has its partitions, and is in the list."""
    found.note({b"orders": 3, b"payments": 1, b"none": -3, b"empty": 0})
    assert found.topics.partitions("orders") == 3
    assert found.topics.partitions("payments") == 1
    assert list(found.topics.names()) == ["orders", "payments"]
    assert [found.topics.is_known(name) for name in ("orders", "none", "empty", "other")] == [
        True,
        False,
        False,
        False,
    ]


def test_not_known_yet(found: Set) -> None:
    """A topic that was not asked for is so for a while, then it is what Kafka says of it."""
    assert found.topics.partitions("orders") == LATER == -Code.LEADER_NOT_AVAILABLE
    found.note({b"orders": -3})
    assert found.topics.partitions("orders") == UNKNOWN == -Code.UNKNOWN_TOPIC_OR_PARTITION
    found.note({b"orders": 4})
    assert found.topics.partitions("orders") == 4
    found.note({b"orders": 0})
    assert found.topics.partitions("orders") == LATER


def test_known_from_the_start(found: Set) -> None:
    """A new process knows at once what was noted before."""
    found.note({b"orders": 3})
    assert list(found.made().names()) == ["orders"]


def test_allow_unknown(found: Set) -> None:
    """An input that takes messages for unknown topics shows one partition of each, and those of others."""
    found.note({b"orders": 3, b"none": -3, b"closed": -29})
    seen = {
        name: found.topics.partitions(name, allow_unknown=True)
        for name in ("orders", "none", "closed", "new", "no name")
    }
    assert seen == {"orders": 3, "none": 1, "closed": 1, "new": 1, "no name": INVALID}
    assert not found.topics.is_known("none")
    found.topics.say()
    assert sorted(found.wanted) == [b"closed", b"new", b"none", b"orders"]


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a/b", "é", "a\n", "\0", "a:b", "x" * 250, "\ud800", "a" * 100_000],
    ids=lambda name: ascii(name[:5]),
)
@pytest.mark.parametrize("allow_unknown", [False, True])
def test_invalid_name(found: Set, name: str, *, allow_unknown: bool) -> None:
    """A name that Kafka cannot have is refused, and not asked for."""
    assert found.topics.partitions(name, allow_unknown=allow_unknown) == INVALID == -Code.INVALID_TOPIC
    found.clock.now += LOOK_S
    assert found.topics.say() is None
    assert (found.wanted, found.counted) == ([], 0)


@pytest.mark.parametrize("name", [".", ".."])
def test_dots(found: Set, name: str) -> None:
    """One dot and two are no names for Kafka."""
    assert found.topics.partitions(name, allow_unknown=True) == INVALID


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_valid_name(found: Set, name: str) -> None:
    """A name that Kafka can have is asked for."""
    assert found.topics.partitions(name) == LATER
    found.topics.say()
    assert found.wanted == [name.encode()]


def test_say(found: Set) -> None:
    """Names that are wanted together are said once: by the file, the count and the bell."""
    assert found.topics.say() is None
    assert (found.counted, found.rung(), wanted_path(found.path).exists()) == (0, 0, False)
    for number in range(1000):
        found.topics.partitions(f"t{number}")
    assert found.topics.say() is None
    assert found.wanted == [b"t%d" % number for number in range(1000)]
    assert (found.counted, found.rung()) == (1, 1)
    assert found.topics.say() is None
    assert (found.counted, found.rung()) == (1, 0)


def test_say_again(found: Set) -> None:
    """Names that come soon after are said a little later, all together, with those before."""
    found.topics.partitions("a")
    found.topics.say()
    for name in ("b", "c"):
        found.topics.partitions(name)
        assert found.topics.say() == LOOK_S
    assert (found.wanted, found.counted) == ([b"a"], 1)
    found.clock.now += LOOK_S
    assert found.topics.say() is None
    assert (found.wanted, found.counted, found.rung()) == ([b"a", b"b", b"c"], 2, 2)


def test_asked_again(found: Set) -> None:
    """A topic that is not there is asked for again when a client does, and not all the time."""
    found.topics.partitions("a")
    found.topics.say()
    found.note({b"a": -3})
    for _ in range(5):
        assert found.topics.partitions("a") == UNKNOWN
        assert found.topics.say() is None
    assert found.counted == 1
    found.clock.now += AGAIN_S
    assert found.topics.partitions("a") == UNKNOWN
    found.topics.say()
    assert found.counted == 2
    found.clock.now += 10 * AGAIN_S
    assert found.topics.say() is None
    assert found.counted == 2


def test_known_is_said_once(found: Set) -> None:
    """A topic that is there is wanted from its first use on, and not asked for again."""
    found.note({b"orders": 3})
    for _ in range(3):
        assert found.topics.partitions("orders") == 3
        found.clock.now += AGAIN_S
        found.topics.say()
    assert (found.wanted, found.counted) == ([b"orders"], 1)


def test_most_wanted(found: Set) -> None:
    """Of too many names those that were asked for longest ago are forgotten."""
    names = [f"t{number}" for number in range(MOST_WANTED + 1)]
    found.topics.partitions(names[0])
    found.topics.partitions(names[1])
    found.clock.now += AGAIN_S
    found.topics.partitions(names[0])
    for name in names[2:]:
        found.topics.partitions(name)
    found.topics.say()
    assert len(found.wanted) == MOST_WANTED
    assert set(names) - {name.decode() for name in found.wanted} == {"t1"}


def test_known_is_wanted_again(found: Set) -> None:
    """A topic in use that was forgotten among too many is wanted again with its next use."""
    found.note({b"orders": 3})
    found.topics.partitions("orders")
    for number in range(MOST_WANTED):
        found.topics.partitions(f"t{number}")
    assert found.topics.partitions("orders") == 3
    found.topics.say()
    assert found.wanted[-1] == b"orders"


def test_look(found: Set) -> None:
    """The note is looked at again after a while, not with each question, and only if it is new."""
    assert found.topics.partitions("orders") == LATER
    write_partitions(found.layout, {b"orders": 3})
    assert found.topics.partitions("orders") == LATER
    found.clock.now += LOOK_S
    assert found.topics.partitions("orders") == 3
    stamp = found.layout.topics.stat().st_mtime_ns
    found.layout.topics.write_bytes(b'{"orders": 4}')
    os.utime(found.layout.topics, ns=(stamp, stamp))
    found.clock.now += LOOK_S
    assert found.topics.partitions("orders") == 3


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"orders": "3"}', b'{"orders": 1e9}', b"null"])
def test_damaged_note(found: Set, data: bytes) -> None:
    """A damaged note is none, and so is one that is removed."""
    found.note({b"orders": 3})
    assert found.topics.partitions("orders") == 3
    found.layout.topics.write_bytes(data)
    found.clock.now += LOOK_S
    assert found.topics.partitions("orders") == LATER
    found.note({b"orders": 3})
    assert found.topics.partitions("orders") == 3
    found.layout.topics.unlink()
    found.clock.now += LOOK_S
    assert found.topics.partitions("orders") == LATER


def test_cannot_say(found: Set, caplog: pytest.LogCaptureFixture) -> None:
    """A file that cannot be written is logged, and tried again with the next wish."""
    found.topics.partitions("a")
    wanted_path(found.path).mkdir()
    with caplog.at_level(logging.WARNING, "bruce.kafka"):
        assert found.topics.say() is None
    assert "cannot say which topics clients want" in caplog.text
    assert (found.counted, found.rung()) == (0, 0)
    wanted_path(found.path).rmdir()
    found.topics.partitions("b")
    found.clock.now += LOOK_S
    assert found.topics.say() is None
    assert (found.wanted, found.counted, found.rung()) == ([b"a", b"b"], 1, 1)
