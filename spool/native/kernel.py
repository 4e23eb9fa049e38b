"""Hot loops: the decorator `kernel` compiles a function when it is first called; `subkernel`, into others.

A loop is one text that runs compiled or interpreted, with the same results: operations that Numba lacks are
in `spool.native.memory` for Python, and in `spool.native.intrinsics` for compiled code.

Compiled code comes from the library (spool.native.library), which `bruce compile` writes; what the library
does not have, Numba compiles, and keeps. The daemon loads the library before it forks its workers. A command
that looks at a few messages is faster without it: see `interpret_at_first`. With `NUMBA_DISABLE_JIT=1`
nothing is compiled, and a debugger can step through every loop.

C functions are called through an address passed in at run time. A kernel that named the function itself could
not be cached on disk, since the address changes with each start.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

from spool.native.loop import Loop, Unfit

# Read once, when NumPy is imported: its idle threads would spin beside ours.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

F = TypeVar("F", bound=Callable[..., Any])

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")

PATIENCE_S = 0.1
"""CPU time of interpreted loops before the compiled ones are loaded, which takes as long."""

kernels: list[Kernel] = []
"""All kernels that were imported."""
_making = threading.Lock()
_patience_ns = 0
_meanwhile = _is_loaded = False


class Kernel:
    """A hot loop. Compiled when it is called, unless that is put off."""

    def __init__(self, function: Callable[..., Any], *, ahead: bool = True) -> None:
        """`ahead`: it has a place in the library."""
        self.function, self.ahead = function, ahead
        self.__name__, self.__module__, self.__doc__ = (
            function.__name__,
            function.__module__,
            function.__doc__,
        )
        self._compiled: Any = None
        self._loops: list[Loop] | None = None
        kernels.append(self)

    def __call__(self, *arguments: Any) -> Any:
        loops = self._loops
        if _meanwhile or loops is None:
            if interprets():
                return self._interpret(*arguments)
            loops = self._load()
        for loop in loops:
            try:
                return loop.call(loop.words(arguments))
            except Unfit:
                continue
        return self.compiled(*arguments)

    def _load(self) -> list[Loop]:
        """Its code in the library; empty: Numba has it, or compiles it."""
        from spool.native.library import load  # noqa: PLC0415  (NumPy)

        global _is_loaded  # noqa: PLW0603  (all loops of a process share it)
        self._loops = load().get(f"{self.__module__}.{self.__name__}", [])
        _is_loaded = True
        return self._loops

    def forget(self) -> None:
        """Look for its code in the library again: that was written meanwhile."""
        self._loops = None

    @property
    def compiled(self) -> Any:
        """Numba's dispatcher."""
        if self._compiled is None:
            with _making:
                from spool.native.intrinsics import compile_loop  # noqa: PLC0415  (half a second)

                self._compiled = self._compiled or compile_loop(self.function)
        return self._compiled

    @property
    def _numba_type_(self) -> Any:
        """The type that Numba gives this in a loop that calls it."""
        return self.compiled._numba_type_

    def bind(self, *arguments: Any) -> Callable[[], Any]:
        """A call with these arguments, of which words are made now, and not again for each call."""
        if not interprets():
            for loop in self._load():
                with suppress(Unfit):
                    return _Bound(self, loop, arguments)
        return partial(self, *arguments)

    def compile_plain(self) -> None:
        """Compile it if, by its annotations, it takes nothing but numbers."""
        kinds = [kind for name, kind in self.function.__annotations__.items() if name != "return"]
        plain = set(kinds) <= {"int", "Address", "bool"} and len(kinds) == self.function.__code__.co_argcount
        if self.ahead and plain:
            from spool.native.intrinsics import compile_for  # noqa: PLC0415  (half a second)

            compile_for(self.compiled, [kind == "bool" for kind in kinds])

    def _interpret(self, *arguments: Any) -> Any:
        global _patience_ns  # noqa: PLW0603  (all loops of a process share it)
        left, begun = _patience_ns, time.thread_time_ns()
        try:
            return self.function(*arguments)
        finally:
            # This includes the time of loops that it called.
            _patience_ns = left - (time.thread_time_ns() - begun)


class _Bound:
    """A call of a loop with the same objects each time, for one thread."""

    def __init__(self, kernel: Kernel, loop: Loop, arguments: tuple[Any, ...]) -> None:
        self._kernel, self._loop, self._arguments = kernel, loop, arguments
        self._words = loop.words(arguments)

    def __call__(self) -> Any:
        try:
            return self._loop.call(self._words)
        except Unfit:
            return self._kernel(*self._arguments)


def kernel(function: F) -> F:
    """Compile a hot loop: cached on disk, without the interpreter's lock, unchecked indices."""
    return function if INTERPRETED else cast(F, Kernel(function))


def subkernel(function: F) -> F:
    """The same, of a loop that only loops call: it is compiled into each of them."""
    return function if INTERPRETED else cast(F, Kernel(function, ahead=False))


def bind(loop: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """A call of a kernel with arguments that stay the same objects."""
    return loop.bind(*arguments) if isinstance(loop, Kernel) else partial(loop, *arguments)


def load_all() -> bool:
    """Load the code of all loops that Python calls. False if there is none, or loops are plain Python."""
    from spool.native.library import load  # noqa: PLC0415  (NumPy)

    return not (INTERPRETED or interprets()) and bool(load())


def look_again() -> None:
    """Take compiled code from the library, which was written since this process looked for it."""
    from spool.native.library import forget  # noqa: PLC0415  (NumPy)

    forget()
    for one in kernels:
        one.forget()


def interpret_at_first() -> None:
    """From now on loops are plain Python, until this process has spent PATIENCE_S in them.

    For commands that look at a few messages. If loops are already loaded, it changes nothing.
    """
    global _patience_ns  # noqa: PLW0603  (all loops of a process share it)
    _patience_ns = int(PATIENCE_S * 1e9)


def interpret_meanwhile() -> None:
    """From now on loops are plain Python, until `compile_at_once`: another process compiles them."""
    global _meanwhile  # noqa: PLW0603  (all loops of a process share it)
    _meanwhile = True


def interprets() -> bool:
    """Whether loops run as plain Python at present: code that can do without them is faster."""
    return _meanwhile or (_patience_ns > 0 and not _is_loaded)


def compile_at_once() -> None:
    """Undo `interpret_at_first`: there is much to do; and `interpret_meanwhile`: it is done."""
    global _patience_ns, _meanwhile
    _patience_ns, _meanwhile = 0, False
