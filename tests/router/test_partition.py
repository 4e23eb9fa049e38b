"""Which partition a message goes to."""

from __future__ import annotations

import zlib
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given

from router import BadPartitioner, partition
from router.partition import ABSENT, CRC_TABLE, REFUSED, Choice, Partitioners, crc32, explain, murmur2
from spool.format.batch import KEYED, NULL_KEY, NUMBERED, Batch
from spool.native.memory import address_of
from tests.dispatch import batches

JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""The vectors of Kafka's UtilsTest.testMurmur2."""


def build(*rows: tuple[bytes, int | None], topic: int = 0, topics: int = 1) -> Batch:
    """Messages of one topic: (record key, partition key)."""
    messages = [batches.Message(i, topic, b"v", key=key) for i, (key, _) in enumerate(rows)]
    batch = batches.build_batch(batches.name_topics(*(b"t%d" % n for n in range(topics))), messages)
    for row, (_, partition_key) in enumerate(rows):
        batch.traits[row] |= KEYED * (partition_key is not None)
        batch.number[row] = partition_key or 0
    return batch


def choose(
    batch: Batch,
    partitioner: str | Partitioners,
    partitions: int,
    *,
    gone: set[int] = frozenset(),  # type: ignore[assignment]
) -> list[int]:
    """The partition of each message, flat numbers being partition numbers; `gone` are not available."""
    made = partitioner if isinstance(partitioner, Partitioners) else Partitioners({"t0": partitioner})
    available = np.array([p not in gone for p in range(partitions)], np.bool_)
    flats = np.arange(partitions, dtype=np.int32).reshape(1, -1)
    wanted = np.ones(len(batch), np.bool_)
    return made.assign(batch, wanted, np.array([partitions], np.int32), flats, available).tolist()


def on_bytes(data: bytes) -> npt.NDArray[np.uint8]:
    """An array, whose address a kernel can be given; never empty."""
    return np.frombuffer(data + b"\0", np.uint8).copy()


@pytest.mark.parametrize(("key", "expected"), JAVA.items())
def test_murmur2_is_that_of_the_java_client(key: bytes, expected: int) -> None:
    """The vectors of Kafka's own test, and the partition that follows from them."""
    array = on_bytes(key)
    assert np.int64(murmur2(address_of(array), len(key))).astype(np.int32) == expected
    assert choose(build((key, None)), "murmur2", 7) == [(expected & 0x7FFFFFFF) % 7]


def test_loops_in_plain_python_choose_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """While bruce compiles, or with the compiler off."""
    batch = build(*((key, None) for key in JAVA), (b"", None), (b"", -3))
    ways = [Partitioners({}), Partitioners({"t0": "crc32"}), Partitioners({"t0": "partition_key"})]
    compiled = [choose(batch, way, 7) for way in ways]
    for loop in ("murmur2", "crc32", "assign", "_next_available"):
        monkeypatch.setattr(f"router.partition.{loop}", getattr(partition, loop).function)
    again = [Partitioners({}), Partitioners({"t0": "crc32"}), Partitioners({"t0": "partition_key"})]
    assert [choose(batch, way, 7) for way in again] == compiled


@given(st.binary(max_size=70))
def test_crc32_is_that_of_zlib(key: bytes) -> None:
    """Any key; and the partition is its remainder, as with librdkafka's `consistent`."""
    array = on_bytes(key)
    assert crc32(address_of(array), len(key), CRC_TABLE) == zlib.crc32(key)
    if key:
        assert choose(build((key, None)), "crc32", 11) == [zlib.crc32(key) % 11]


@given(st.integers(-(2**31), 2**31 - 1), st.integers(1, 1000))
def test_a_partition_key_is_unsigned(key: int, partitions: int) -> None:
    """Bruce took the key as 32 bits without a sign, modulo the number of partitions."""
    assert choose(build((b"", key)), "partition_key", partitions) == [(key % 2**32) % partitions]


def test_a_negative_partition_key() -> None:
    """-1 is 4,294,967,295: partition 3 of 4, and 0 of 3."""
    assert choose(build((b"", -1)), "partition_key", 4) == [3]
    assert choose(build((b"", -1)), "partition_key", 3) == [0]


def test_by_default_the_kind_of_message_decides() -> None:
    """PartitionKey by its number; AnyPartition by its key, as Java's client, and without one to any."""
    made = Partitioners({})
    assert choose(build((b"", 5), (b"", 5), (b"key", 9)), made, 4) == [1, 1, 1]
    java = [(number & 0x7FFFFFFF) % 7 for number in JAVA.values()]
    assert choose(build(*((key, None) for key in JAVA)), made, 7) == java
    assert len(set(choose(build((b"", None), (b"", None)), made, 4))) == 1


@pytest.mark.parametrize("name", ["murmur2", "crc32", "any", "round_robin"])
def test_another_default(name: str) -> None:
    """It chooses for AnyPartition messages of topics that have no partitioner, as if it were theirs."""
    keys = [b"k%d" % n for n in range(20)] + [b""] * 4
    batch, keyed = build(*((key, None) for key in keys)), build(*((key, 6) for key in keys))
    assert choose(batch, Partitioners({}, name), 5) == choose(batch, name, 5)
    assert choose(keyed, Partitioners({}, name), 5) == [1] * len(keys), "they have a partition key"
    assert Partitioners({}, name).free(batch).tolist() == Partitioners({"t0": name}).free(batch).tolist()
    assert not Partitioners({}, name).free(keyed).any()
    assert choose(batch, Partitioners({"t0": "crc32"}, name), 5) == choose(batch, "crc32", 5)
    ones, flats = np.ones(len(batch), np.bool_), np.arange(5, dtype=np.int32).reshape(1, -1)
    settled = Partitioners({}, name).settle(batch, ones, np.array([5], np.int32), flats, np.ones(5, np.bool_))
    if name == "round_robin":
        assert settled.tolist() == [n % 5 for n in range(24)]


@pytest.mark.parametrize("name", ["murmur2", "crc32", "any", "round_robin", "partition_key"])
def test_a_message_that_names_its_partition_goes_there(name: str) -> None:
    """Partitioner and key do not matter, nor whether it is available. Without such a one it goes nowhere."""
    numbers = [3, 0, 4, 5, -1, 2**31 - 1]
    batch = build(*((b"key", None) for _ in numbers))
    batch.traits[:] |= NUMBERED
    batch.number[:] = numbers
    assert choose(batch, name, 5, gone={3}) == [3, 0, 4, ABSENT, ABSENT, ABSENT]
    assert not Partitioners({"t0": name}).free(batch).any()
    assert choose(batch, name, 1)[:2] == [ABSENT, 0]
    assert explain(batch, 0, {"t0": name}, [(0, 5)]) == Choice(3, 5, "its sender names it")
    assert explain(batch, 3, {}, [(0, 5)]).partition is None


def test_an_empty_key_that_is_not_null() -> None:
    """It is a key for murmur2, as for Java's client, and none for crc32, as for `consistent_random`."""
    batch = build((b"", None), (b"", None))
    batch.traits[:] &= ~NULL_KEY
    assert choose(batch, "murmur2", 7) == [(murmur2(address_of(on_bytes(b"")), 0) & 0x7FFFFFFF) % 7] * 2
    assert not Partitioners({"t0": "murmur2"}).free(batch).any()
    assert Partitioners({"t0": "crc32"}).free(batch).all()


def test_any_sticks_for_a_run_and_then_goes_on() -> None:
    """One partition for all of a batch, the next one for the next batch, all of them in turn."""
    made = Partitioners({"t0": "any"})
    runs = [choose(build(*[(b"", 1)] * 5), made, 3) for _ in range(6)]
    assert [set(run) for run in runs] == [{1}, {2}, {0}, {1}, {2}, {0}]


def test_round_robin_takes_turns() -> None:
    """Each partition gets its share, within a batch and over several."""
    made = Partitioners({"t0": "round_robin"})
    chosen = choose(build(*[(b"", None)] * 7), made, 3) + choose(build(*[(b"", None)] * 5), made, 3)
    assert Counter(chosen) == {0: 4, 1: 4, 2: 4}
    assert chosen[:3] == [1, 2, 0]


@pytest.mark.parametrize("name", ["any", "round_robin", "murmur2", "crc32", "partition_key"])
def test_what_may_go_anywhere_avoids_what_is_not_available(name: str) -> None:
    """Messages without a key that counts; with none available they go nowhere."""
    made = Partitioners({"t0": name})
    for _ in range(5):
        assert set(choose(build(*[(b"", None)] * 4), made, 3, gone={0, 2})) == {1}
    assert choose(build(*[(b"", None)] * 4), made, 3, gone={0, 1, 2}) == [-1] * 4


@pytest.mark.parametrize("name", ["murmur2", "crc32", "partition_key"])
def test_a_key_stays_where_it_is(name: str) -> None:
    """The same key, the same partition, though it is not available."""
    rows = [(b"key %d" % i, i) for i in range(20)]
    batch = build(*rows)
    everywhere = choose(batch, name, 5)
    assert len(set(everywhere)) == 5
    assert choose(batch, name, 5, gone={0, 1, 2, 3, 4}) == everywhere


@pytest.mark.parametrize(
    ("name", "free"),
    [
        ("any", [True, True, True, True]),
        ("round_robin", [True, True, True, True]),
        ("partition_key", [True, True, False, False]),
        ("murmur2", [True, False, True, False]),
        ("crc32", [True, False, True, False]),
        ("zlib:crc32", [False] * 4),
        ("", [True, False, False, False]),
    ],
)
def test_who_is_free(name: str, free: list[bool]) -> None:
    """`free` names the rows that `assign` lets go anywhere."""
    batch = build((b"", None), (b"k", None), (b"", 1), (b"k", 1))
    assert Partitioners({"t0": name} if name else {}).free(batch).tolist() == free


def by_last_byte(keys: list[bytes | None], numbers: npt.NDArray[np.int32], partitions: int) -> list[int]:
    """A partitioner of a user's."""
    assert len(keys) == len(numbers)
    return [
        key[-1] if key else int(number) + 100 * partitions for key, number in zip(keys, numbers, strict=True)
    ]


def test_a_function_of_the_users() -> None:
    """It gets keys, partition keys and the number of partitions; what it says is taken modulo that."""
    batch = build((b"a\x07", None), (b"", 9), (b"\x02", 1))
    assert choose(batch, f"{__name__}:by_last_byte", 4) == [3, 1, 2]


def test_each_topic_has_its_own() -> None:
    """A topic that is not named goes by default, one that Kafka does not know goes nowhere."""
    batch = build((b"", 6), topics=2)
    made = Partitioners({"t1": "any"})
    flats = np.arange(8, dtype=np.int32).reshape(2, 4)
    available, wanted = np.ones(8, np.bool_), np.ones(1, np.bool_)
    assert made.assign(batch, wanted, np.array([4, 4], np.int32), flats, available).tolist() == [2]
    assert made.assign(batch, wanted, np.array([0, 4], np.int32), flats, available).tolist() == [-1]
    assert made.assign(batch, ~wanted, np.array([4, 4], np.int32), flats, available).tolist() == [-1]


@pytest.mark.parametrize(
    "name",
    [
        "anyy",
        "",
        "ANY",
        "default",
        "custom",
        "no_such_module:f",
        "zlib:nothing",
        "zlib:",
        ":f",
        "zlib:DEFLATED",
    ],
)
def test_a_bad_name_is_one_sentence(name: str) -> None:
    """It says which topic and what is wrong."""
    with pytest.raises(BadPartitioner) as raised:
        Partitioners({"clicks": name})
    assert str(raised.value).startswith('[topics."clicks"] partitioner: ')
    assert "\n" not in str(raised.value)


def bitter(
    keys: list[bytes | None], numbers: npt.NDArray[np.int32], partitions: int
) -> npt.NDArray[np.int32]:
    """A partitioner of a user's own that some keys make raise, and others make answer nonsense."""
    if b"bad" in keys:
        raise ValueError("cannot read the key b'bad'")
    if b"exit" in keys:
        raise SystemExit(3)
    if b"short" in keys:
        return numbers[:-1]
    if b"word" in keys:
        return np.array(["one"] * len(keys))  # type: ignore[return-value]
    if b"half" in keys:
        return numbers / 2  # type: ignore[return-value]
    return numbers % partitions


@pytest.mark.parametrize("bad", [b"bad", b"exit", b"short", b"word", b"half"])
@pytest.mark.parametrize("at", [[0], [9], [3, 4, 8], list(range(10))])
def test_a_function_that_fails_refuses_only_what_it_fails_for(
    bad: bytes, at: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """The others of the batch have partitions; one line and one sentence say which function, and why."""
    batch = build(*((bad if n in at else b"fine", n) for n in range(10)))
    made = Partitioners({"t0": f"{__name__}:bitter"})
    for _ in range(3):
        assert choose(batch, made, 4) == [REFUSED if n in at else n % 4 for n in range(10)]
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    assert f"the partitioner {__name__}:bitter of topic t0 gives no partition" in made.sentence()
    assert made.sentence().split(": mend")[0] in caplog.text
    assert choose(build((b"fine", 1)), f"{__name__}:bitter", 4) == [1]


def test_a_job_says_which_function_fails() -> None:
    """For a caller that cannot give messages up, it is one sentence, and no partition."""
    made, flats = Partitioners({"t0": f"{__name__}:bitter"}), np.arange(4, dtype=np.int32).reshape(1, -1)
    batch = build((b"bad", 1))
    ones = np.ones(4, np.bool_)
    with pytest.raises(BadPartitioner, match=r"bitter of topic t0 gives no partition.*cannot read the key"):
        made.settle(batch, ones[:1], np.array([4], np.int32), flats, ones)


HISTORY = [(0, 4), (2, 6)]


@pytest.mark.parametrize("name", ["murmur2", "crc32", "partition_key"])
def test_it_is_the_choice_of_the_router(name: str) -> None:
    """For every message, by the number of partitions that its topic had then; in words which rule."""
    batch = build((b"a", 7), (b"b", -1), (b"c", 8), (b"dd", 9))
    for row in range(4):
        count = 4 if row < 2 else 6
        found = explain(batch, row, {"t0": name}, HISTORY)
        assert found[:2] == (choose(batch, name, count)[row], count)
        assert name.partition("_")[0] in found.reason
        assert str(count) in found.reason


def test_by_default() -> None:
    """A partition key chooses, else the key, as Java's client; without one the message may go anywhere."""
    batch = build((b"", 9), (b"", None), (b"foobar", None))
    assert explain(batch, 0, {}, [(0, 4)]) == Choice(1, 4, "its partition key, unsigned, modulo 4")
    assert explain(batch, 1, {}, [(0, 4)]) == Choice(None, 4, "any of 4")
    assert explain(batch, 1, {"t0": "round_robin"}, [(0, 4)]) == Choice(None, 4, "any of 4, in turns")
    assert explain(batch, 0, {"t0": "crc32"}, [(0, 4)]) == Choice(None, 4, "any of 4"), "it has no key"
    java = Choice((-790332482 & 0x7FFFFFFF) % 4, 4, "murmur2 of its key, modulo 4, as Java's client")
    assert explain(batch, 2, {}, [(0, 4)]) == java
    assert explain(batch, 2, {}, [(0, 4)], "any") == Choice(None, 4, "any of 4")


def test_the_function_of_the_users_is_named() -> None:
    """It is called again, and named."""
    batch = build((b"k", 5))
    found = explain(batch, 0, {"t0": f"{__name__}:by_partition_key"}, [(0, 4)])
    assert found == Choice(1, 4, f"{__name__}:by_partition_key chose it among 4")


def by_partition_key(keys: list[bytes | None], partition_keys: np.ndarray, partitions: int) -> np.ndarray:
    """A partitioner."""
    assert keys == [b"k"]
    return partition_keys % partitions


def test_nothing_is_known_of_the_topic() -> None:
    """Without a count there is no choice, and that is said."""
    found = explain(build((b"a", 7)), 0, {}, [(5, 4)])
    assert found[:2] == (None, None)
    assert "nothing says how many partitions" in found.reason
