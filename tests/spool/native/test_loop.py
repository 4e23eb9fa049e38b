"""A compiled loop as Python calls it."""

from __future__ import annotations

from pathlib import Path

from tests.spool.native.tried import NUMBA, SAID, USE, run


def test_a_loop_gives_what_numba_gives(package: Path) -> None:
    """Of numbers, truth values, arrays, records and tuples; Numba is loaded only for a result with names."""
    assert run(package, USE + NUMBA) == f"{SAID}True\n"
    use, said = USE.replace("tried.add(1, 2), ", ""), SAID.replace("Sum(total=3, odd=True) ", "")
    assert run(package, use + NUMBA) == f"{said}False\n"
