"""Loops of a test, in a folder with our packages, and programs that call them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LOOPS = """
from typing import NamedTuple
import numpy as np
from spool.native.kernel import kernel

ROW = np.dtype([("a", np.int64), ("b", np.int32)])


class Pair(NamedTuple):
    first: int
    many: np.ndarray


@kernel
def both(numbers, rows, wide, truth, share, pair, two):
    wide[1, 0] = 7
    rows[0]["b"] = 5
    numbers[:] = 3
    total = 0
    for one in numbers:
        total += one
    made = np.zeros(total, np.int64)
    made[-1] = pair.many[1] * two[1]
    return total, made[-1], pair.first + truth, int(share * 10)


@kernel
def is_odd(number: int) -> bool:
    return number % 2 == 1


@kernel
def first(rows):
    return rows[0]["a"]


class Sum(NamedTuple):
    total: int
    odd: bool


class Difference(NamedTuple):
    second: int
    first: int


class Reversed(NamedTuple):
    first: int
    second: int


@kernel
def differ(pair):
    return pair.first - pair.second


@kernel
def add(one: int, other: int) -> Sum:
    return Sum(one + other, (one + other) % 2 == 1)


@kernel
def mark(numbers):
    numbers[0] += 1


@kernel
def share(whole: int, part: int) -> int:
    return whole // part


def arguments():
    numbers, rows, wide = np.zeros(2, np.int64), np.zeros(1, ROW), np.zeros((2, 3), np.int32)
    return numbers, rows, wide, True, 0.45, Pair(30, np.arange(4)), (0, 9)
"""
USE = """
import sys
import numpy as np
from spool import tried
given = tried.arguments()
print(tried.both(*given), given[0].tolist(), given[1].tolist(), given[2].tolist())
print(tried.is_odd(np.int32(3)), tried.is_odd(-2), tried.share(7, 2))
one = np.zeros(3, np.int64)
bound = __import__("spool.native.kernel").native.kernel.bind(tried.mark, one)
print(tried.mark(one), bound(), bound(), one.tolist())
print(tried.add(1, 2), tried.differ(tried.Difference(2, 9)), tried.first(np.array([(4, 5)], tried.ROW)))
"""
SAID = (
    "(6, 9, 31, 4) [3, 3] [(0, 5)] [[0, 0, 0], [7, 0, 0]]\nTrue False 3\nNone None None [3, 0, 0]\n"
    "Sum(total=3, odd=True) 7 4\n"
)
NUMBA = "print('numba' in sys.modules)\n"
WRITE = """
from spool.native import kernel, linking
for one in kernel.kernels:
    one.compile_plain()
print(linking.write(one for one in kernel.kernels if one.__module__ == "spool.tried"))
"""
"""Behind USE, so that Numba has kept the loops."""


def file_of(package: Path) -> Path:
    """The place of the library, in the folder that NUMBA_CACHE_DIR names."""
    return package / "cache" / f"loops.{sys.implementation.cache_tag}.bin"


def run(package: Path, program: str) -> str:
    """The output of a program that imports from there."""
    environ = {**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    environ["NUMBA_CACHE_DIR"] = str(package / "cache")
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, cwd=package)
    assert done.returncode == 0, done.stderr
    return done.stdout
