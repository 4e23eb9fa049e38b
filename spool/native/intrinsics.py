"""Compiled loops: Numba, and in LLVM the operations that `spool.native.memory` has in ctypes.

Imported when the first loop is compiled, or loaded from the cache.

Numba caches machine code with a hash of the loop's source file. But its constants, and the loops that it
calls, come from other files, too: after an upgrade that changes one of those, cached code would work on a
shared state or a frame with a new layout. So the hash here is of all our files that a loop can be made of:
its own, those that this one imports, and so on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import caching
from numba.core.typing.templates import infer_global, make_intrinsic_template

from spool.native import memory

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("bruce_client", "dispatch", "ingest", "pipeline", "router", "spool", "tools")
"""Packages of loops and of the code that they are made of: others beside them are not ours."""
_IMPORT = re.compile(r"^[ \t]*from (\S+) import (\([^)]*\)|.*)|^[ \t]*import (.*)", re.MULTILINE)
_WORD, _BYTE = 64, 8


@cache
def stamp(path: Path, root: Path = _ROOT) -> bytes:
    """The sha256 of a source file, and of all that it is made of below `root`."""
    return hashlib.sha256(b"".join(map(_digest, sorted(made_of(path, root))))).digest()


@cache
def made_of(path: Path, root: Path = _ROOT) -> frozenset[Path]:
    """A source file, and all of our files below `root` that it is made of."""
    found, left = set[Path](), {path}
    while left:
        one = left.pop()
        found.add(one)
        left |= _imported(one, root) - found
    return frozenset(found)


@cache
def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


@cache
def _imported(path: Path, root: Path) -> frozenset[Path]:
    """Our files among those that a source file imports, at its top or later."""
    names = set[str]()
    for module, members, modules in _IMPORT.findall(path.read_text(encoding="utf-8")):
        # A member may be a module, too.
        names |= {module, *(f"{module}.{member}" for member in re.findall(r"\w+", members))}
        names |= set(re.findall(r"[\w.]+", modules))
    return frozenset().union(*(_files(name, root) for name in names))


@cache
def _files(module: str, root: Path) -> frozenset[Path]:
    """The file of a module of ours; none when the module is not ours, or does not exist."""
    if module.partition(".")[0] not in _PACKAGES:
        return frozenset()
    base = root.joinpath(*module.split("."))
    return frozenset(file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file())


class _Stamped:
    """Mixed into a Numba class that finds a place on disk."""

    _py_file: str

    def get_source_stamp(self) -> bytes:
        return stamp(Path(self._py_file))


class Given(_Stamped, caching.UserProvidedCacheLocator):  # type: ignore[misc]
    """Below NUMBA_CACHE_DIR."""


class Beside(_Stamped, caching.InTreeCacheLocator):  # type: ignore[misc]
    """Beside the source."""


class AtHome(_Stamped, caching.UserWideCacheLocator):  # type: ignore[misc]
    """Below the cache of the user that runs us."""


@contextmanager
def our_places() -> Iterator[None]:
    """Cache loops that are declared meanwhile in these places; those of other packages stay with Numba's."""
    before = numba.config.CACHE_LOCATOR_CLASSES
    numba.config.CACHE_LOCATOR_CLASSES = ",".join(
        f"{__name__}.{one.__name__}" for one in (Given, Beside, AtHome)
    )
    try:
        yield
    finally:
        numba.config.CACHE_LOCATOR_CLASSES = before


def _or(read: Callable[..., Any], instead: Callable[[], Any]) -> Callable[..., Any]:
    """`read`, for a file that a power cut may have torn: it counts as none, and is written again."""

    def read_whole(*arguments: Any) -> Any:
        try:
            return read(*arguments)
        except Exception:  # noqa: BLE001  (a torn pickle raises anything)
            return instead()

    return read_whole


def compile_loop(function: Callable[..., Any]) -> Any:
    """Numba's dispatcher of a hot loop.

    If neither the package folder nor $HOME is writable, all loops are compiled at each start: half a minute.
    """
    try:
        with our_places():
            made = numba.njit(cache=True, nogil=True, boundscheck=False)(function)
    except RuntimeError:  # Numba raises it when no place for a cache is writable
        return numba.njit(nogil=True, boundscheck=False)(function)
    files = made._cache._cache_file
    files._load_index, files._load_data = _or(files._load_index, dict), _or(files._load_data, lambda: None)
    return made


def compile_for(dispatcher: Any, truths: list[bool]) -> None:
    """Compile a loop, or load it, for numbers and truth values."""
    dispatcher.compile(tuple(types.boolean if one else types.int64 for one in truths))


def kept(dispatcher: Any) -> list[Any]:
    """The signatures for which a loop's code is on disk: Numba's index has them by processor and source."""
    cache, codegen = dispatcher._cache, dispatcher.targetctx.codegen()
    known = cache._cache_file._load_index()
    return [
        signature for signature, *rest in known if cache._index_key(signature, codegen) == (signature, *rest)
    ]


def _intrinsic(function: Any, define: Callable[..., Any]) -> None:
    """Define a call of `function` in compiled code by `define`.

    Like numba.extending.intrinsic, whose handle would be an object of its own.
    """
    infer_global(function, types.Function(make_intrinsic_template(function, define, define.__name__)))


def _pointer(builder: Any, address: Any, bits: int) -> Any:
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


def _define_address(_: Any, value: Any) -> Any:
    def generate(_context: Any, _builder: Any, _signature: Any, args: Any) -> Any:
        return args[0]

    return types.int64(types.int64), generate


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


def _places_of(_: Any, address: Any, byte: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.IntType(_BYTE), _WORD)
        bytes_of = builder.load(builder.inttoptr(args[0], vector.as_pointer()), align=1)
        one = builder.trunc(args[1], ir.IntType(_BYTE))
        first = builder.insert_element(ir.Constant(vector, ir.Undefined), one, ir.IntType(32)(0))
        every = builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), _WORD), None))
        return builder.bitcast(builder.icmp_unsigned("==", bytes_of, every), ir.IntType(_WORD))

    return types.int64(types.int64, types.int64), generate


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


_intrinsic(memory.Address, _define_address)
_intrinsic(memory.load_u8, _define_load(8))
_intrinsic(memory.load_u16, _define_load(16))
_intrinsic(memory.load_i32, _define_load(32, signed=True))
_intrinsic(memory.load_u32, _define_load(32))
_intrinsic(memory.load_i64, _define_load(64))
_intrinsic(memory.load_acquire, _define_load_acquire)
_intrinsic(memory.store_u8, _define_store(8))
_intrinsic(memory.store_u16, _define_store(16))
_intrinsic(memory.store_u32, _define_store(32))
_intrinsic(memory.store_i64, _define_store(64))
_intrinsic(memory.publish_i64, _define_store(64, release=True))
_intrinsic(memory.places_of, _places_of)
_intrinsic(memory.copy, _copy)
_intrinsic(memory.fence, _fence)
_intrinsic(memory.exchange, _exchange)
_intrinsic(memory.call, _call)
