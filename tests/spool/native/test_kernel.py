"""The decorator of compiled loops."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import spool
from spool.native.kernel import bind
from spool.shared.histogram import LATENCY_WORDS, add_latencies

NO_PLACE = "/proc/no/where"
PROGRAM = f"""
from spool.native.kernel import kernel
source = compile("def plus(a, b): return a + b", "{NO_PLACE}/loops.py", "exec")
exec(source)
print(kernel(plus)(40, 2))
"""


def test_no_place_for_a_cache() -> None:
    """If neither the source folder nor $HOME is writable, loops still work."""
    environ = {**os.environ, "HOME": NO_PLACE, "XDG_CACHE_HOME": NO_PLACE, "PYTHONPATH": os.getcwd()}
    environ.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environ, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "42\n"


TWO_WAYS = """
import ctypes, sys
from spool.native import kernel, library
from spool.format import wire
library.find()
word = ctypes.create_string_buffer(bytes([1, 2, 3, 4]))
address = ctypes.addressof(word)
if sys.argv[1:]:
    kernel.interpret_at_first()
print(wire.load_be32(address), kernel._is_loaded)
kernel._patience_ns = 0
print(wire.load_be32(address), kernel._is_loaded)
"""


@pytest.mark.parametrize(
    ("arguments", "loaded_at_first"), [([], True), (["at first"], False)], ids=["the daemon", "a look"]
)
def test_who_looks_at_little_waits_for_no_compiler(arguments: list[str], *, loaded_at_first: bool) -> None:
    """On request, a loop is plain Python until patience ends; otherwise compiled from the first call."""
    done = subprocess.run(
        [sys.executable, "-c", TWO_WAYS, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{0x01020304} {loaded_at_first}\n{0x01020304} True\n"


def test_a_bound_call_sees_what_its_arguments_hold() -> None:
    """It is a call with the same objects each time, whatever they hold by then."""
    latency, received = np.zeros(LATENCY_WORDS, np.int64), np.zeros(2, np.int64)
    call = bind(add_latencies, latency, received, 1_000_000)
    call()
    assert latency[:-1].tolist().index(2) == 0
    received[:] = -900_000_000_000
    call()
    call()
    assert latency[:-1].sum() == 6
    assert latency[0] == 2


PACKAGES = ("bruce_client", "cli", "dispatch", "ingest", "pipeline", "router", "spool", "status")


def loops_of(tree: ast.Module) -> dict[str, tuple[str, ast.FunctionDef]]:
    """(decorator, function) of each loop of a module, by name."""
    return {
        node.name: (decorator.id, node)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Name) and decorator.id in {"kernel", "subkernel"}
    }


def imports_of(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """(module, name) of everything that a module imports from others, by the name it has there."""
    return {
        one.asname or one.name: (node.module, one.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for one in node.names
    }


def called_by_python(module: str, tree: ast.Module) -> set[tuple[str, str]]:
    """(module, name) of whatever code of a module names that is no loop."""
    own, imports = loops_of(tree), imports_of(tree)
    known = imports | {name: (module, name) for name in own}
    inside = {id(part) for _, loop in own.values() for part in ast.walk(loop)}
    outside = [node for node in ast.walk(tree) if id(node) not in inside]
    names = {known[node.id] for node in outside if isinstance(node, ast.Name) and node.id in known}
    members = {
        (".".join(imports[node.value.id]), node.attr)
        for node in outside
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imports
    }
    return names | members


def test_python_calls_kernels_and_no_subkernels() -> None:
    """Each kernel has a caller in Python, so that its place in the library is used; no subkernel has one."""
    root = Path(spool.__file__).parents[1]
    trees = {
        ".".join(path.relative_to(root).with_suffix("").parts): ast.parse(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in (root / package).rglob("*.py")
    }
    called = set[tuple[str, str]]().union(*(called_by_python(*one) for one in trees.items()))
    loops = {(module, name): of for module, tree in trees.items() for name, (of, _) in loops_of(tree).items()}
    assert len(loops) > 150
    assert {loop for loop, of in loops.items() if (loop in called) is not (of == "kernel")} == set()
