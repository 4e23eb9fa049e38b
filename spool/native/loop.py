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
"""Kinds of one word."""
RECORDS, NAMES, HOLDS = "records", "names", "holds"
"""Keys of shapes: an array's type of records, as np.dtype takes it; a tuple's fields, and their shapes."""
DONE, UNFIT, FAILED = 0, 1, 2
"""Results of a symbol; UNFIT: an array is not of the type that the code is for, and nothing was done."""

Shape = str | list["Shape"] | dict[str, Any]
"""A kind; the shapes that a tuple holds; or an object with the keys above."""


class Unfit(TypeError):
    """A loop's code in the library is for arguments of other types."""


class Loop:
    """A loop's code for arguments of one shape."""

    def __init__(self, function: Callable[[Array[c_int64]], int], takes: list[Shape], gives: Shape) -> None:
        """`function` is the symbol."""
        import numpy as np  # noqa: PLC0415  (a command imports this module to print its help)

        self._function, self._takes = function, takes
        taken, given = _words_of(takes), _words_of(gives)
        self._words: Any = c_int64 * (taken + given)
        self._store = struct.Struct(f"{taken}q").pack_into
        types = {NUMBER: int, TRUTH: bool, ARRAY: np.ndarray}
        self._kinds = tuple(types.get(_kind_of(take)) for take in takes)
        self._arrays = [place for place, take in enumerate(takes) if _kind_of(take) == ARRAY]
        self._records = [
            (place, np.dtype(take[RECORDS]))
            for place, take in enumerate(takes)
            if isinstance(take, dict) and RECORDS in take
        ]
        self._give = _giver(gives, taken)

    def words(self, arguments: tuple[Any, ...]) -> Array[c_int64]:
        """The argument of the symbol, good while the caller holds these arguments. Raises Unfit."""
        words: Array[c_int64] = self._words()
        plain: Iterable[Any] = arguments
        if tuple(map(type, arguments)) != self._kinds:
            plain = _plain(self._takes, arguments)
        elif self._arrays:
            for place, dtype in self._records:
                if arguments[place].dtype != dtype:
                    raise Unfit
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


def _kind_of(shape: Shape) -> str:
    """The kind of a shape of one word; "" of a tuple."""
    if isinstance(shape, dict):
        return ARRAY if RECORDS in shape else ""
    return shape if isinstance(shape, str) else ""


def _words_of(shape: Shape) -> int:
    if isinstance(shape, dict):
        return 1 if RECORDS in shape else _words_of(shape[HOLDS])
    return 1 if isinstance(shape, str) else sum(map(_words_of, shape))


def _plain(takes: Sequence[Shape], values: Sequence[Any]) -> Iterator[int]:
    """The words of values: of tuples, and of NumPy's numbers, too. Raises Unfit."""
    if len(takes) != len(values):
        raise Unfit
    for take, value in zip(takes, values, strict=True):
        if isinstance(take, list) and type(value) is tuple:
            yield from _plain(take, value)
        elif isinstance(take, dict) and list(getattr(value, "_fields", ())) == take.get(NAMES):
            yield from _plain(take[HOLDS], value)
        else:
            yield _word(take, value)


def _word(take: Shape, value: Any) -> int:
    import numpy as np  # noqa: PLC0415  (as above)

    if _kind_of(take) == ARRAY and type(value) is np.ndarray:
        if not isinstance(take, dict) or value.dtype == np.dtype(take[RECORDS]):
            return id(value)
    elif take == REAL and isinstance(value, float):
        return c_int64.from_buffer(c_double(value)).value
    elif isinstance(value, bool | np.bool_) if take == TRUTH else _is_number(value) and take == NUMBER:
        return int(value)
    raise Unfit


def _is_number(value: Any) -> bool:
    import numpy as np  # noqa: PLC0415  (as above)

    return isinstance(value, int | np.integer) and not isinstance(value, bool)
