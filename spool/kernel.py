"""What compiled loops are made of: the `kernel` decorator, and memory by address.

The hot loops of bruce run over memory that is shared with the kernel (staging), with other processes
(mappings) and with C libraries (librdkafka, xxHash). Numba knows arrays, not addresses; the few
operations it lacks stand here, once. Each has two faces: an LLVM intrinsic for compiled code, and the
same in ctypes when `NUMBA_DISABLE_JIT=1`, so that every kernel can be stepped through as plain Python.

C functions are called through an address passed in at run time. A kernel that named the function
itself could not be cached on disk, since the address changes with each start.

Addresses and integers are int64 throughout; unsigned 64-bit values travel as their two's complement.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

# Read once, when NumPy is imported: its idle threads would spin beside ours.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numba
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

INTERPRETED = bool(numba.config.DISABLE_JIT)


unkept: list[str] = []
"""Files of hot loops that are compiled anew at each start."""


def kernel(function: F) -> F:
    """Compile a hot loop: cached on disk, without the interpreter's lock, unchecked indices.

    Who may write neither beside our files nor at home compiles it at each start, half a minute for all.
    """
    try:
        return cast(F, numba.njit(cache=True, nogil=True, boundscheck=False)(function))
    except RuntimeError:  # Numba's word for a cache that has no place
        unkept.append(function.__code__.co_filename)
        return cast(F, numba.njit(nogil=True, boundscheck=False)(function))


def address_of(array: npt.NDArray[Any]) -> int:
    """Where the first byte of `array` lies. The caller keeps the array alive."""
    return int(array.ctypes.data)


def function_address(function: Any) -> int:
    """Where a ctypes function leads, as `call` takes it."""
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _pointer(builder: Any, address: Any, bits: int) -> Any:
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


def _loader(ctype: Any, bits: int, *, signed: bool = False) -> Any:
    """A function address -> value, widened to int64. Any alignment."""
    if INTERPRETED:
        return lambda address: int(ctype.from_address(int(address)).value)

    @intrinsic
    def load(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(_pointer(builder, args[0], bits), align=1)
            if bits == 64:
                return value
            return (builder.sext if signed else builder.zext)(value, ir.IntType(64))

        return types.int64(types.int64), generate

    return load


def _storer(ctype: Any, bits: int, *, release: bool = False) -> Any:
    """A function (address, value): any alignment, or aligned and after all earlier stores."""
    if INTERPRETED:

        def write(address: int, value: int) -> None:
            ctype.from_address(int(address)).value = int(value)

        return write

    @intrinsic
    def store(typing: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = args[1] if bits == 64 else builder.trunc(args[1], ir.IntType(bits))
            target = _pointer(builder, args[0], bits)
            if release:
                builder.store_atomic(value, target, "release", bits // 8)
            else:
                builder.store(value, target, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return store


def _copier() -> Any:
    if INTERPRETED:
        return lambda target, source, length: ctypes.memmove(int(target), int(source), int(length))

    @intrinsic
    def copy(typing: Any, target: Any, source: Any, length: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            byte = ir.IntType(8).as_pointer()
            move = builder.module.declare_intrinsic("llvm.memcpy", [byte, byte, ir.IntType(64)])
            ends = [_pointer(builder, args[0], 8), _pointer(builder, args[1], 8)]
            builder.call(move, [*ends, args[2], ir.Constant(ir.IntType(1), 0)])
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), generate

    return copy


def _fence() -> Any:
    if INTERPRETED:
        return lambda: None

    @intrinsic
    def fence(typing: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.fence("seq_cst")
            return context.get_dummy_value()

        return types.void(), generate

    return fence


def _exchanger() -> Any:
    if INTERPRETED:
        lock = threading.Lock()

        def swap(address: int, expected: int, value: int) -> bool:
            with lock:
                word = ctypes.c_int64.from_address(int(address))
                if word.value != expected:
                    return False
                word.value = int(value)
                return True

        return swap

    @intrinsic
    def exchange(typing: Any, address: Any, expected: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            target = _pointer(builder, args[0], 64)
            pair = builder.cmpxchg(target, args[1], args[2], "seq_cst", "seq_cst")
            return builder.extract_value(pair, 1)

        return types.boolean(types.int64, types.int64, types.int64), generate

    return exchange


def _caller() -> Any:
    if INTERPRETED:

        def invoke(address: int, *arguments: int) -> int:
            signature = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))
            return int(signature(int(address))(*(int(a) for a in arguments)))

        return invoke

    @intrinsic
    def call(typing: Any, address: Any, *arguments: Any) -> Any:
        packed = len(arguments) == 1 and isinstance(arguments[0], types.BaseTuple)
        count = len(arguments[0]) if packed else len(arguments)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = ir.IntType(64)
            values = [builder.extract_value(args[1], i) for i in range(count)]
            function = ir.FunctionType(word, [word] * count).as_pointer()
            return builder.call(builder.inttoptr(args[0], function), values)

        return types.int64(types.int64, types.StarArgTuple([types.int64] * count)), generate

    return call


load_u8 = _loader(ctypes.c_uint8, 8)
load_u16 = _loader(ctypes.c_uint16, 16)
load_i32 = _loader(ctypes.c_int32, 32, signed=True)
load_u32 = _loader(ctypes.c_uint32, 32)
load_i64 = _loader(ctypes.c_int64, 64)
store_u8 = _storer(ctypes.c_uint8, 8)
store_u16 = _storer(ctypes.c_uint16, 16)
store_u32 = _storer(ctypes.c_uint32, 32)
store_i64 = _storer(ctypes.c_int64, 64)
publish_i64 = _storer(ctypes.c_int64, 64, release=True)
"""Store 8 aligned bytes so that no earlier store can be seen after them."""
copy = _copier()
"""copy(target, source, length): the ranges must not overlap."""
fence = _fence()
"""Order the stores before it with the loads after it, on every processor."""
exchange = _exchanger()
"""exchange(address, old, new) -> bool: 8 aligned bytes become `new` if they were `old`, at once."""
call = _caller()
"""call(address, *integers) -> int64: a C function, its 32-bit results in the low half."""
