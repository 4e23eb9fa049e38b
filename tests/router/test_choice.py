"""The choice of a partition, made again and explained."""

from __future__ import annotations

import numpy as np
import pytest

from router.choice import Choice, explain
from tests.router.test_partition import build, choose

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
    """A partition key chooses; without one the message may go anywhere."""
    batch = build((b"", 9), (b"key", None))
    assert explain(batch, 0, {}, [(0, 4)]) == Choice(1, 4, "its partition key, unsigned, modulo 4")
    assert explain(batch, 1, {}, [(0, 4)]) == Choice(None, 4, "any of 4")
    assert explain(batch, 1, {"t0": "round_robin"}, [(0, 4)]) == Choice(None, 4, "any of 4, in turns")
    assert explain(batch, 0, {"t0": "crc32"}, [(0, 4)]) == Choice(None, 4, "any of 4"), "it has no key"


def test_a_function_of_the_users() -> None:
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
