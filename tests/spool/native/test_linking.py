"""The symbols of the library: what they take, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spool.native.tried import run


@pytest.mark.parametrize(
    "call",
    [
        "tried.mark(np.zeros((4, 2), np.int64)[:, 0])",
        "tried.mark(np.zeros(4, np.int32))",
        "tried.mark(np.zeros(4, np.float64))",
        "tried.mark(np.zeros(4, '>i8'))",
        "tried.mark(np.zeros((2, 2), np.int64))",
        "tried.mark(np.zeros((1, 1), np.int64)[0])",
        "tried.is_odd(2**63)",
        "tried.is_odd(3.0)",
        "tried.is_odd(True)",
        "tried.both(*given[:-1], [0, 9])",
        "assert tried.first(np.array([(4, 5)], [('b', np.int64), ('a', np.int32)])) == 5",
        "assert tried.differ(tried.Reversed(9, 2)) == 7",
    ],
    ids=[
        "strides",
        "a shorter dtype",
        "another dtype",
        "another order",
        "another dimension",
        "a view",
        "too large",
        "a real",
        "a truth",
        "a list",
        "other records",
        "other names",
    ],
)
def test_what_does_not_fit_is_for_numba(package: Path, call: str) -> None:
    """An argument of another type than the code is for: nothing is done with it before Numba sees it."""
    program = f"""
import sys
import numpy as np
from spool import tried
given = tried.arguments()
try:
    {call}
except Exception as error:
    print(type(error).__module__)
print("numba" in sys.modules)
"""
    fits = "a view" if "(1, 1)" in call else ""
    assert run(package, program).splitlines()[-1] == str(not fits)


def test_a_read_only_array_is_not_written(package: Path) -> None:
    """The code for arrays that can be written does not take it."""
    program = """
import numpy as np
from spool import tried
one = np.zeros(3, np.int64)
one.flags.writeable = False
try:
    tried.mark(one)
except Exception as error:
    print("refused")
print(one.tolist())
"""
    assert run(package, program) == "refused\n[0, 0, 0]\n"


def test_a_loop_that_fails(package: Path) -> None:
    """A division by zero is an exception, as it is in Python."""
    program = """
from spool import tried
try:
    tried.share(1, 0)
except RuntimeError as error:
    print(error)
"""
    assert "divided by zero" in run(package, program)
