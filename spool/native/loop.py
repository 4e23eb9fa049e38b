"""A compiled loop as Python calls it: its arguments as words, and its results.

The code checks each array before it does anything, so that one of another type is the caller's to deal with.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import Array, c_double, c_int64
from operator import itemgetter
from typing import Any

NUMBER, TRUTH, REAL, ARRAY = "number", "truth", "real", "array"
"""Kinds of one word. A tuple is the list of its kinds."""
DONE, UNFIT, FAILED = 0, 1, 2
"""Results of a symbol; UNFIT: an array is not of the type that the code is for, and nothing was done."""

Shape = str | list["Shape"]


class Unfit(TypeError):
    """A loop's code in the library is for arguments of other types."""


class Loop:
    """A loop's code for arguments of one shape."""

    def __init__(self, function: Callable[[Array[c_int64]], int], takes: list[Shape], gives: Shape) -> None:
        """`function` is the symbol."""
        self._function, self._takes = function, takes
        taken, given = len(list(_flatten(takes))), len(list(_flatten([gives])))
        self._words: Any = c_int64 * (taken + given)
        self._store = struct.Struct(f"{taken}q").pack_into
        import numpy as np  # noqa: PLC0415  (a command imports this module to print its help)

        types = {NUMBER: int, TRUTH: bool, ARRAY: np.ndarray}
        self._kinds = tuple(types.get(take) if isinstance(take, str) else None for take in takes)
        self._arrays = [place for place, take in enumerate(takes) if take == ARRAY]
        self._give = _giver(gives, taken)

    def words(self, arguments: tuple[Any, ...]) -> Array[c_int64]:
        """The argument of the symbol, good while the caller holds these arguments. Raises Unfit."""
        words: Array[c_int64] = self._words()
        plain: Iterable[Any] = arguments
        if tuple(map(type, arguments)) != self._kinds:
            plain = _plain(self._takes, arguments)
        elif self._arrays:
            plain = held = list(arguments)
            for place in self._arrays:
                held[place] = id(held[place])
        try:
            self._store(words, 0, *plain)
        except struct.error as error:  # a number beyond 64 bits
            raise Unfit from error
        return words

    def call(self, words: Array[c_int64]) -> Any:
        """Run it. Raises Unfit, with nothing done; RuntimeError when the loop itself fails."""
        if status := self._function(words):
            if status == UNFIT:
                raise Unfit
            raise RuntimeError("a compiled loop failed: it divided by zero, or raised an exception")
        return self._give(words)


def _giver(gives: Shape, at: int) -> Callable[[Array[c_int64]], Any]:
    """A function that reads a result from words, from number `at` on."""
    if gives == NUMBER:
        return itemgetter(at)
    if gives == TRUTH:
        return lambda words: words[at] != 0
    if gives:
        return lambda words: tuple(words[at:])
    return lambda _words: None


def _flatten(shape: Shape) -> Iterator[str]:
    if isinstance(shape, str):
        yield shape
    else:
        for one in shape:
            yield from _flatten(one)


def _plain(takes: Sequence[Shape], values: Sequence[Any]) -> Iterator[int]:
    """The words of values: of tuples, and of NumPy's numbers, too. Raises Unfit."""
    import numpy as np  # noqa: PLC0415  (as above)

    if len(takes) != len(values):
        raise Unfit
    for take, value in zip(takes, values, strict=True):
        if take == ARRAY and type(value) is np.ndarray:
            yield id(value)
        elif (take == NUMBER and isinstance(value, int | np.integer) and not isinstance(value, bool)) or (
            take == TRUTH and isinstance(value, bool | np.bool_)
        ):
            yield int(value)
        elif take == REAL and isinstance(value, float):
            yield c_int64.from_buffer(c_double(value)).value
        elif isinstance(take, list) and isinstance(value, tuple):
            yield from _plain(take, value)
        else:
            raise Unfit
