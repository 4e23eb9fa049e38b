"""Write the library (spool.native.library) of the loops that Numba has compiled and kept.

Each gets a symbol that takes words, and calls Numba's own function. Nothing else stays visible, so LLVM drops
what only Numba calls: what is left needs the C library alone, and Python's where a loop raises an exception.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.np import numpy_support
from numba.np.arrayobj import make_array, populate_array

from spool.native import intrinsics, kernel, library, loop
from spool.native.kernel import Kernel
from spool.native.loop import (
    ARRAY,
    DONE,
    FAILED,
    HOLDS,
    NAMES,
    NUMBER,
    REAL,
    RECORDS,
    TRUTH,
    UNFIT,
    Shape,
)

_WORD, _INT, _BYTE = ir.IntType(64), ir.IntType(32), ir.IntType(8)
_WORD_BYTES = 8
_HEAD = object.__basicsize__
_DATA, _DIMENSIONS, _SHAPE, _STRIDES, _TYPE, _FLAGS = (_HEAD + at for at in (0, 8, 16, 24, 40, 48))
"""Fields of an array's object: PyArrayObject_fields of numpy/ndarraytypes.h."""
_ORDER, _NUMBER, _ITEM_BYTES = (_HEAD + at for at in (10, 12, 24))
"""Fields of its type's object: PyArray_Descr of NumPy 2."""
_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400
_SWAPPED = ord(">")
_RUNTIME = """
declare ptr @malloc(i64)
declare void @free(ptr)

define ptr @NRT_MemInfo_alloc_aligned(i64 %bytes, i32 %align) {
    %to = zext i32 %align to i64
    %rest = add i64 %bytes, %to
    %all = add i64 %rest, 48
    %info = call ptr @malloc(i64 %all)
    %none = icmp eq ptr %info, null
    br i1 %none, label %end, label %made
made:
    %at = ptrtoint ptr %info to i64
    %beyond = add i64 %at, 47
    %next = add i64 %beyond, %to
    %mask = sub i64 0, %to
    %data = and i64 %next, %mask
    %fields = insertelement <6 x i64> <i64 1, i64 0, i64 0, i64 0, i64 0, i64 0>, i64 %data, i32 3
    %filled = insertelement <6 x i64> %fields, i64 %bytes, i32 4
    store <6 x i64> %filled, ptr %info, align 8
    br label %end
end:
    ret ptr %info
}

define ptr @NRT_MemInfo_alloc(i64 %bytes) {
    %info = call ptr @NRT_MemInfo_alloc_aligned(i64 %bytes, i32 16)
    ret ptr %info
}

define void @NRT_MemInfo_call_dtor(ptr %info) {
    call void @free(ptr %info)
    ret void
}

define ptr @NRT_Allocate(i64 %bytes) {
    %room = call ptr @malloc(i64 %bytes)
    ret ptr %room
}

define void @NRT_Free(ptr %room) {
    call void @free(ptr %room)
    ret void
}
"""
"""The functions that Numba's code calls for an array which a loop makes: numba/core/runtime/nrt.cpp.

Its struct MemInfo is six words: references, destructor, its argument, data, bytes, allocator.
"""


def write(loops: Iterable[Kernel]) -> Path:
    """Write the library of those loops that Numba has on disk; returns its place.

    Raises OSError; ValueError when Numba has none.
    """
    made = _Linked(loops)
    places = library.places()
    place = next(filter(library.can_be_written, places), places[-1])
    place.parent.mkdir(parents=True, exist_ok=True)
    _replace(place, library.pack(made.header, made.code))
    return place


def _replace(place: Path, data: bytes) -> None:
    beside = place.with_name(f"{place.name}.{uuid.uuid4().hex}")
    try:
        beside.write_bytes(data)
        beside.replace(place)
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()


class _Linked:
    """Loops in one module of LLVM."""

    def __init__(self, loops: Iterable[Kernel]) -> None:
        sources = {Path(str(one.__file__)) for one in (intrinsics, kernel, library, loop)} | {Path(__file__)}
        symbols: dict[str, list[tuple[str, list[Shape], Shape]]] = {}
        linked: list[Any] = []
        codegen: Any = None
        for one in loops:
            named = f"{one.__module__}.{one.__name__}"
            for takes, gives, compiled, context in _kept(one):
                codegen = context.codegen()
                symbol = f"bruce_{len(linked)}"
                linked.append(_define(symbol, compiled, context))
                linked.append(compiled.library._get_module_for_linking().clone())
                symbols.setdefault(named, []).append((symbol, takes, gives))
                sources |= intrinsics.made_of(Path(one.function.__code__.co_filename))
        if codegen is None:
            raise ValueError("Numba has kept no loops")
        self.code = _emit(linked, codegen, {one[0] for many in symbols.values() for one in many})
        self.header = {
            "for": library.made_for(),
            "sources": library.digests(sorted(str(one.relative_to(library.ROOT)) for one in sources)),
            "loops": symbols,
        }


def _kept(of: Kernel) -> Iterator[tuple[list[Shape], Shape, Any, Any]]:
    """(takes, gives, Numba's compiled function, its context) of what is kept and can be called in words."""
    dispatcher = of.compiled
    for signature in intrinsics.kept(dispatcher):
        with suppress(_NoWordsError):
            takes: list[Shape] = [_shape(one) for one in signature]
            dispatcher.compile(signature)
            compiled = dispatcher.overloads[signature]
            yield takes, _result(compiled.signature.return_type), compiled, dispatcher.targetctx


class _NoWordsError(Exception):
    """A type of Numba's that is not made of numbers and arrays."""


def _shape(of: Any) -> Shape:
    """The words of a type that a loop takes. Raises _NoWordsError."""
    plain = {types.int64: NUMBER, types.boolean: TRUTH, types.float64: REAL}
    if of in plain:
        return plain[of]
    if isinstance(of, types.Array) and of.layout == "C":
        if not isinstance(of.dtype, types.Record):
            return ARRAY
        found = numpy_support.as_dtype(of.dtype)
        return {
            RECORDS: {
                "names": list(found.names),
                "formats": [found[name].str for name in found.names],
                "offsets": [found.fields[name][1] for name in found.names],
                "itemsize": found.itemsize,
            }
        }
    if isinstance(of, types.BaseNamedTuple):
        return {NAMES: list(of.fields), HOLDS: [_shape(one) for one in of]}
    if isinstance(of, types.BaseTuple):
        return [_shape(one) for one in of]
    raise _NoWordsError


def _result(of: Any) -> Shape:
    """The words of a type that a loop gives. Raises _NoWordsError."""
    if of == types.none:
        return []
    if of in (types.int64, types.boolean) or (isinstance(of, types.UniTuple) and of.dtype == types.int64):
        return _shape(of)
    raise _NoWordsError


def _define(symbol: str, compiled: Any, context: Any) -> Any:
    """A module with the symbol of a compiled function."""
    module = context.create_module(symbol)
    callee = compiled.fndesc
    kind = context.call_conv.get_function_type(callee.restype, callee.argtypes)
    target = ir.Function(module, kind, callee.llvm_func_name)
    defined = ir.Function(module, ir.FunctionType(_WORD, [_WORD.as_pointer()]), symbol)
    builder = ir.IRBuilder(defined.append_basic_block())
    words = _Words(context, builder, defined.args[0])
    arguments = [words.take(one) for one in callee.argtypes]
    status, given = context.call_conv.call_function(
        builder, target, callee.restype, callee.argtypes, arguments
    )
    with cgutils.if_unlikely(builder, status.is_error):
        builder.ret(_WORD(FAILED))
    words.give(callee.restype, given)
    builder.ret(_WORD(DONE))
    return binding.parse_assembly(str(module))


class _Words:
    """The code that turns words into arguments, one after the other, and a result into words."""

    def __init__(self, context: Any, builder: Any, words: Any) -> None:
        self._context, self._builder, self._words = context, builder, words
        self._at = 0

    def take(self, kind: Any) -> Any:
        """The value of the next words. The code returns UNFIT where an array is of another type."""
        if isinstance(kind, types.BaseTuple):
            return self._context.make_tuple(self._builder, kind, [self.take(one) for one in kind])
        word = self._builder.load(self._next())
        if isinstance(kind, types.Array):
            return self._array(kind, word)
        if kind == types.boolean:
            return self._builder.trunc(word, ir.IntType(1))
        if kind == types.float64:
            return self._builder.bitcast(word, ir.DoubleType())
        return word

    def give(self, kind: Any, value: Any) -> None:
        """Store a result."""
        if isinstance(kind, types.BaseTuple):
            for one, held in zip(kind, cgutils.unpack_tuple(self._builder, value, len(kind)), strict=True):
                self.give(one, held)
        elif kind != types.none:
            self._builder.store(
                self._builder.zext(value, _WORD) if kind == types.boolean else value, self._next()
            )

    def _next(self) -> Any:
        self._at += 1
        return self._builder.gep(self._words, [_WORD(self._at - 1)])

    def _field(self, at: Any, offset: int, kind: Any) -> Any:
        return self._builder.load(
            self._builder.inttoptr(self._builder.add(at, _WORD(offset)), kind.as_pointer())
        )

    def _array(self, kind: Any, word: Any) -> Any:
        builder, dtype = self._builder, numpy_support.as_dtype(kind.dtype)
        described = self._field(word, _TYPE, _WORD)
        flags = _CONTIGUOUS | (kind.aligned and _ALIGNED) | (kind.mutable and _WRITEABLE)
        has = builder.and_(self._field(word, _FLAGS, _INT), _INT(flags))
        fits = builder.icmp_unsigned("==", has, _INT(flags))
        for found, wanted in (
            (self._field(word, _DIMENSIONS, _INT), _INT(kind.ndim)),
            (self._field(described, _NUMBER, _INT), _INT(dtype.num)),
            (self._field(described, _ITEM_BYTES, _WORD), _WORD(dtype.itemsize)),
        ):
            fits = builder.and_(fits, builder.icmp_unsigned("==", found, wanted))
        swapped = builder.icmp_unsigned("==", self._field(described, _ORDER, _BYTE), _BYTE(_SWAPPED))
        with cgutils.if_unlikely(builder, builder.or_(builder.not_(fits), swapped)):
            builder.ret(_WORD(UNFIT))
        return self._filled(kind, word, dtype.itemsize)

    def _filled(self, kind: Any, word: Any, item_bytes: int) -> Any:
        array = make_array(kind)(self._context, self._builder)
        lengths, steps = (
            [
                self._field(self._field(word, field, _WORD), place * _WORD_BYTES, _WORD)
                for place in range(kind.ndim)
            ]
            for field in (_SHAPE, _STRIDES)
        )
        data = self._builder.inttoptr(self._field(word, _DATA, _WORD), array.data.type)
        populate_array(array, data, lengths, steps, _WORD(item_bytes), meminfo=None)
        return array._getvalue()


def _emit(linked: Iterable[Any], codegen: Any, symbols: set[str]) -> bytes:
    """Object code of all modules, in which only `symbols` are visible."""
    whole = binding.parse_assembly(_RUNTIME)
    for module in linked:
        whole.link_in(module)
    for one in (*whole.functions, *whole.global_variables):
        if not one.is_declaration and one.name not in symbols:
            one.linkage = "internal"
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(whole, binding.create_pass_builder(codegen._tm, binding.create_pipeline_tuning_options()))
    return bytes(codegen._tm.emit_object(whole))
