"""Compiled loops: Numba, and what `spool.kernel` has in ctypes, as LLVM has it.

Imported when the first loop is compiled, or loaded from the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core.typing.templates import infer_global, make_intrinsic_template

from spool import kernel
from spool.kernel_cache import our_places

_unkept: list[str] = []

_WORD, _BYTE = 64, 8


def compile_loop(function: Callable[..., Any]) -> Any:
    """Numba's dispatcher of a hot loop.

    Who may write neither beside our files nor at home compiles it at each start, half a minute for all.
    """
    try:
        with our_places():
            return numba.njit(cache=True, nogil=True, boundscheck=False)(function)
    except RuntimeError:  # Numba's word for a cache that has no place
        _unkept.append(function.__code__.co_filename)
        return numba.njit(nogil=True, boundscheck=False)(function)


def kept_nowhere() -> list[str]:
    """Files of the imported hot loops that are compiled anew at each start."""
    for one in kernel.kernels:
        _ = one.compiled
    return _unkept


def _intrinsic(function: Any, define: Callable[..., Any]) -> None:
    """In compiled code a call of `function` is what `define` says.

    As numba.extending.intrinsic, whose handle would be an object of its own.
    """
    infer_global(function, types.Function(make_intrinsic_template(function, define, define.__name__)))


def _pointer(builder: Any, address: Any, bits: int) -> Any:
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


def _define_load(bits: int, *, signed: bool = False) -> Callable[..., Any]:
    def load(_: Any, address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            value = builder.load(_pointer(builder, args[0], bits), align=1)
            if bits == _WORD:
                return value
            return (builder.sext if signed else builder.zext)(value, ir.IntType(_WORD))

        return types.int64(types.int64), generate

    return load


def _define_load_acquire(_: Any, address: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0], _WORD), "acquire", _WORD // _BYTE)

    return types.int64(types.int64), generate


def _define_store(bits: int, *, release: bool = False) -> Callable[..., Any]:
    def store(_: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            stored = args[1] if bits == _WORD else builder.trunc(args[1], ir.IntType(bits))
            target = _pointer(builder, args[0], bits)
            if release:
                builder.store_atomic(stored, target, "release", bits // _BYTE)
            else:
                builder.store(stored, target, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return store


def _copy(_: Any, target: Any, source: Any, length: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        byte = ir.IntType(_BYTE).as_pointer()
        move = builder.module.declare_intrinsic("llvm.memcpy", [byte, byte, ir.IntType(_WORD)])
        ends = [_pointer(builder, args[0], _BYTE), _pointer(builder, args[1], _BYTE)]
        builder.call(move, [*ends, args[2], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _fence(_: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def _exchange(_: Any, address: Any, expected: Any, value: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        target = _pointer(builder, args[0], _WORD)
        pair = builder.cmpxchg(target, args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


def _call(_: Any, address: Any, *arguments: Any) -> Any:
    packed = len(arguments) == 1 and isinstance(arguments[0], types.BaseTuple)
    count = len(arguments[0]) if packed else len(arguments)

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        word = ir.IntType(_WORD)
        values = [builder.extract_value(args[1], i) for i in range(count)]
        function = ir.FunctionType(word, [word] * count).as_pointer()
        return builder.call(builder.inttoptr(args[0], function), values)

    return types.int64(types.int64, types.StarArgTuple([types.int64] * count)), generate


_intrinsic(kernel.load_u8, _define_load(8))
_intrinsic(kernel.load_u16, _define_load(16))
_intrinsic(kernel.load_i32, _define_load(32, signed=True))
_intrinsic(kernel.load_u32, _define_load(32))
_intrinsic(kernel.load_i64, _define_load(64))
_intrinsic(kernel.load_acquire, _define_load_acquire)
_intrinsic(kernel.store_u8, _define_store(8))
_intrinsic(kernel.store_u16, _define_store(16))
_intrinsic(kernel.store_u32, _define_store(32))
_intrinsic(kernel.store_i64, _define_store(64))
_intrinsic(kernel.publish_i64, _define_store(64, release=True))
_intrinsic(kernel.copy, _copy)
_intrinsic(kernel.fence, _fence)
_intrinsic(kernel.exchange, _exchange)
_intrinsic(kernel.call, _call)
