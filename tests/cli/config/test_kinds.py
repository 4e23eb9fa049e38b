"""Sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.config.kinds import format_size, parse_size


@given(st.integers(min_value=0, max_value=1 << 62))
def test_round_trip(size: int) -> None:
    """A formatted size parses as itself."""
    assert parse_size(format_size(size)) == size


@given(st.integers(min_value=1, max_value=1 << 20), st.sampled_from(["B", "KiB", "MiB", "GiB", "TiB"]))
def test_blank_before_the_unit(number: int, unit: str) -> None:
    """One blank between number and unit changes nothing."""
    assert parse_size(f"{number} {unit}") == parse_size(f"{number}{unit}")


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("1B", 1), ("256KiB", 262144), ("64MiB", 67108864), ("4GiB", 4294967296)],
)
def test_known_sizes(text: str, size: int) -> None:
    """Units are powers of 1024."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1", "1.5GiB", "64MB", "64M", "64mib", "64  MiB", "1 2", "٣", "64MiB\n"]
)
def test_refused(text: str) -> None:
    """Text that is ambiguous or has no meaning is refused."""
    with pytest.raises(ValueError, match="is no size"):
        parse_size(text)


def test_shortest_text() -> None:
    """A size is shown in the largest unit that loses nothing."""
    assert [format_size(size) for size in (0, 1000, 1024, 3 << 20, 1 << 40)] == [
        "0",
        "1000",
        "1KiB",
        "3MiB",
        "1TiB",
    ]
