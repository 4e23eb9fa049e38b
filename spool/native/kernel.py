"""Hot loops: the decorator `kernel` compiles a function when it is first called; `subkernel`, into others.

A loop is one text that runs compiled or interpreted, with the same results: operations that Numba lacks are
in `spool.native.memory` for Python, and in `spool.native.intrinsics` for compiled code.

Numba and its compiled loops take half a second of a processor to load. The daemon loads them before it forks
its workers. A command that looks at a few messages is faster without them: see `interpret_at_first`. With
`NUMBA_DISABLE_JIT=1` nothing is compiled, and a debugger can step through every loop.

C functions are called through an address passed in at run time. A kernel that named the function itself could
not be cached on disk, since the address changes with each start.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

# Read once, when NumPy is imported: its idle threads would spin beside ours.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

F = TypeVar("F", bound=Callable[..., Any])

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")

PATIENCE_S = 0.1
"""CPU time of interpreted loops before the compiled ones are loaded, which takes longer than that."""

kernels: list[Kernel] = []
"""All kernels that were imported."""
_making = threading.Lock()
_patience_ns = 0
_meanwhile = False


class Kernel:
    """A hot loop. Compiled when it is called, unless that is put off."""

    def __init__(self, function: Callable[..., Any], *, ahead: bool = True) -> None:
        """`ahead`: `load_kept` loads it."""
        self.function, self.ahead = function, ahead
        self.__name__, self.__module__, self.__doc__ = (
            function.__name__,
            function.__module__,
            function.__doc__,
        )
        self._compiled: Any = None
        self._is_loaded = False
        kernels.append(self)

    def __call__(self, *arguments: Any) -> Any:
        compiled = self._compiled
        if _meanwhile or compiled is None:
            if interprets():
                return self._interpret(*arguments)
            compiled = self.compiled
        return compiled(*arguments)

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
        """A call with these arguments, whose types are looked at now, and not again for each call."""
        if _meanwhile or interprets():
            return partial(self, *arguments)
        compiled = self.compiled
        types = tuple(map(compiled.typeof_pyval, arguments))
        if types not in compiled.overloads:
            compiled.compile(types)
        return partial(compiled.overloads[types].entry_point, *arguments)

    def load_kept(self) -> None:
        """Load the code that is on disk, once."""
        if not self._is_loaded:
            from spool.native.intrinsics import load_kept  # noqa: PLC0415  (half a second)

            load_kept(self.compiled)
            self._is_loaded = True

    def _interpret(self, *arguments: Any) -> Any:
        global _patience_ns  # noqa: PLW0603  (all loops of a process share it)
        left, begun = _patience_ns, time.thread_time_ns()
        try:
            return self.function(*arguments)
        finally:
            # This includes the time of loops that it called.
            _patience_ns = left - (time.thread_time_ns() - begun)


def kernel(function: F) -> F:
    """Compile a hot loop: cached on disk, without the interpreter's lock, unchecked indices."""
    return function if INTERPRETED else cast(F, Kernel(function))


def subkernel(function: F) -> F:
    """The same, of a loop that only loops call: it is compiled into each of them, and needs no loading."""
    return function if INTERPRETED else cast(F, Kernel(function, ahead=False))


def bind(loop: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """A call of a kernel with arguments that stay the same objects: Numba looks at their types once."""
    return loop.bind(*arguments) if isinstance(loop, Kernel) else partial(loop, *arguments)


def kept_nowhere() -> list[str]:
    """Files of the imported hot loops that are compiled again at each start, as their code has no place."""
    given, cache = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    shared = [os.path.expanduser(place) for place in (given, cache) if place]
    # A folder that is not there yet will be made in its parent.
    if any(os.access(place if os.path.isdir(place) else os.path.dirname(place), os.W_OK) for place in shared):
        return []
    files = {one.function.__code__.co_filename for one in kernels}
    return sorted(file for file in files if not os.access(os.path.dirname(file), os.W_OK))


def is_kept(loop: Callable[..., Any]) -> bool | None:
    """Whether a loop's code is on disk, of this release and for this processor; None: it cannot be."""
    if INTERPRETED:
        return True
    from spool.native.intrinsics import is_kept as is_kept_there  # noqa: PLC0415  (half a second)

    return is_kept_there(cast(Kernel, loop).compiled)


def load_kept() -> None:
    """Load the code on disk of all imported loops that Python calls, whose first use waits for it else.

    Does nothing while loops are plain Python.
    """
    if not (INTERPRETED or interprets()):
        for one in kernels:
            if one.ahead:
                one.load_kept()


def interpret_at_first() -> None:
    """From now on loops are plain Python, until this process has spent PATIENCE_S in them.

    For commands that look at a few messages. If Numba is already loaded, it changes nothing.
    """
    global _patience_ns  # noqa: PLW0603  (all loops of a process share it)
    _patience_ns = int(PATIENCE_S * 1e9)


def interpret_meanwhile() -> None:
    """From now on loops are plain Python, until `compile_at_once`: another process compiles them."""
    global _meanwhile  # noqa: PLW0603  (all loops of a process share it)
    _meanwhile = True


def interprets() -> bool:
    """Whether loops run as plain Python at present: code that can do without them is faster."""
    return _meanwhile or (_patience_ns > 0 and "numba" not in sys.modules)


def compile_at_once() -> None:
    """Undo `interpret_at_first`: there is much to do; and `interpret_meanwhile`: it is done."""
    global _patience_ns, _meanwhile
    _patience_ns, _meanwhile = 0, False
