"""What compiled loops are made of: the `kernel` decorator, and memory by address.

The hot loops of bruce run over memory that is shared with the kernel (staging), with other processes
(mappings) and with C libraries (librdkafka, xxHash). Numba knows arrays, not addresses; the few
operations it lacks stand here, once, in ctypes. Their other face is in `spool.intrinsics`, for compiled
code. So every loop is one text that runs either way, with the same results.

Numba and its compiled loops take half a second of a processor to load. The daemon has them loaded before
it forks its workers. Who looks at a few messages has seen them sooner without: see `interpret_at_first`.
With `NUMBA_DISABLE_JIT=1` nothing is compiled, and every loop can be stepped through as plain Python.

C functions are called through an address passed in at run time. A kernel that named the function
itself could not be cached on disk, since the address changes with each start.

Addresses and integers are int64 throughout; unsigned 64-bit values travel as their two's complement.

Processors other than x86 may show one thread's stores to another in any order. So a word that one process
or thread writes and another reads is stored by `publish_i64` (a release) and read by `load_acquire` (an
acquire), or changed by `exchange`. On x86 both are plain moves, and only the compiler is bound. The words:

    word                                        written by               read in loops of
    turn: STATE                                 worker, guard            worker, guard
    turn: BEAT, DONE, LEAVE, HOLD, FAULTS       worker (LEAVE: at stop)  guard
    turn: CLOSED, FAULTS while it is GUARDED    guard                    worker
    staging: armed; first, opened               worker; guard            guard; worker
    line: KIND, SIDE, OFFERED                   stream worker            ingest worker
    line: TAKEN; lines: burst, runs             ingest worker            stream worker
    page: WRITTEN, WRITTEN_SEQUENCE, HELD       ingest worker            keeper and others, from Python
    page: KEEPER_WAITS, SUSPECT, QUOTAS,        keeper                   ingest worker
          QUOTA_TOPICS and its rows
    page: HOLD                                  `drain --stop-intake`    ingest worker

KEEPER_WAITS is read behind a `fence`: WRITTEN must be seen before it is looked at. Python's own stores into
the page are followed by system calls, or depend on no other word. The kernel stores msg_len for the thread
that reads it, or that publishes a word behind it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    import numpy.typing as npt

# Read once, when NumPy is imported: its idle threads would spin beside ours.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

F = TypeVar("F", bound=Callable[..., Any])

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")

PATIENCE_S = 0.1
"""Of interpreted loops, before the compiled ones are loaded, which takes longer than that."""

kernels: list[Kernel] = []
"""All that were imported."""
_making = threading.Lock()
_patience_ns = 0


class Kernel:
    """A hot loop. Compiled when it is called, unless that is put off."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__, self.__module__, self.__doc__ = (
            function.__name__,
            function.__module__,
            function.__doc__,
        )
        self._compiled: Any = None
        kernels.append(self)

    def __call__(self, *arguments: Any) -> Any:
        if self._compiled is None and interprets():
            return self._interpret(*arguments)
        return self.compiled(*arguments)

    @property
    def compiled(self) -> Any:
        """Numba's dispatcher."""
        if self._compiled is None:
            with _making:
                from spool.intrinsics import compile_loop  # noqa: PLC0415  (half a second)

                self._compiled = self._compiled or compile_loop(self.function)
        return self._compiled

    @property
    def _numba_type_(self) -> Any:
        """What Numba takes this for, in a loop that calls it."""
        return self.compiled._numba_type_

    def _interpret(self, *arguments: Any) -> Any:
        global _patience_ns  # noqa: PLW0603  (all loops of a process share it)
        left, begun = _patience_ns, time.thread_time_ns()
        try:
            return self.function(*arguments)
        finally:
            # Loops that it called have had their time in this.
            _patience_ns = left - (time.thread_time_ns() - begun)


def kernel(function: F) -> F:
    """Compile a hot loop: cached on disk, without the interpreter's lock, unchecked indices."""
    return function if INTERPRETED else cast(F, Kernel(function))


def interpret_at_first() -> None:
    """From now on loops are plain Python, until this process has spent PATIENCE_S in them.

    For commands that look at a few messages. Where Numba has been loaded already it changes nothing.
    """
    global _patience_ns  # noqa: PLW0603  (all loops of a process share it)
    _patience_ns = int(PATIENCE_S * 1e9)


def interprets() -> bool:
    """Whether loops run as plain Python at present: who can do without them is faster."""
    return _patience_ns > 0 and "numba" not in sys.modules


def compile_at_once() -> None:
    """Take `interpret_at_first` back: there is much to do."""
    global _patience_ns  # noqa: PLW0603  (all loops of a process share it)
    _patience_ns = 0


def address_of(array: npt.NDArray[Any]) -> int:
    """Where the first byte of `array` lies. The caller keeps the array alive."""
    return int(array.ctypes.data)


def function_address(function: Any) -> int:
    """Where a ctypes function leads, as `call` takes it."""
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _loader(ctype: Any) -> Any:
    """A function address -> value, widened to int64. Any alignment."""
    return lambda address: ctype.from_address(int(address)).value


def _storer(ctype: Any) -> Any:
    """A function (address, value): any alignment, or aligned and after all earlier stores."""

    def store(address: int, value: int) -> None:
        ctype.from_address(int(address)).value = int(value)

    return store


load_u8 = _loader(ctypes.c_uint8)
load_u16 = _loader(ctypes.c_uint16)
load_i32 = _loader(ctypes.c_int32)
load_u32 = _loader(ctypes.c_uint32)
load_i64 = _loader(ctypes.c_int64)
load_acquire = _loader(ctypes.c_int64)
"""Load 8 aligned bytes so that no later load or store can be seen before it: what `publish_i64` was behind is
there when its word is."""
store_u8 = _storer(ctypes.c_uint8)
store_u16 = _storer(ctypes.c_uint16)
store_u32 = _storer(ctypes.c_uint32)
store_i64 = _storer(ctypes.c_int64)
publish_i64 = _storer(ctypes.c_int64)
"""Store 8 aligned bytes so that no earlier store can be seen after them."""


def copy(target: int, source: int, length: int) -> None:
    """Copy bytes between addresses; the ranges must not overlap."""
    ctypes.memmove(int(target), int(source), int(length))


def fence() -> None:
    """Order the stores before it with the loads after it, on every processor."""


_exchanging = threading.Lock()


def exchange(address: int, expected: int, value: int) -> bool:
    """Let 8 aligned bytes become `value` if they are `expected`, at once: whether they were."""
    with _exchanging:
        word = ctypes.c_int64.from_address(int(address))
        if word.value != expected:
            return False
        word.value = int(value)
        return True


def call(address: int, *arguments: int) -> int:
    """Call a C function of integers at this address; a 32-bit result is in the low half of what it gives."""
    signature = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))
    return int(signature(int(address))(*(int(a) for a in arguments)))
