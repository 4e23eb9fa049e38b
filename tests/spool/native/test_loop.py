"""A compiled loop as Python calls it."""

from __future__ import annotations

from pathlib import Path

from tests.spool.native.tried import NUMBA, SAID, USE, run


def test_a_loop_gives_what_numba_gives(package: Path) -> None:
    """Of numbers, truth values, arrays, records and tuples; and Numba is not loaded."""
    assert run(package, USE + NUMBA) == f"{SAID}False\n"
