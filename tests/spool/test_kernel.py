"""The decorator of compiled loops."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NO_PLACE = "/proc/nowhere"
PROGRAM = f"""
from spool.intrinsics import kept_nowhere
from spool.kernel import kernel
source = compile("def plus(a, b): return a + b", "{NO_PLACE}/loops.py", "exec")
exec(source)
print(kernel(plus)(40, 2), kept_nowhere())
"""


def test_no_place_for_a_cache() -> None:
    """Who may write neither beside the source nor at home has loops all the same; whose they are is known."""
    environ = {**os.environ, "HOME": NO_PLACE, "XDG_CACHE_HOME": NO_PLACE, "PYTHONPATH": os.getcwd()}
    environ.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environ, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"42 ['{NO_PLACE}/loops.py']\n"


TWO_WAYS = """
import ctypes, sys
from spool import kernel, wire
word = ctypes.create_string_buffer(bytes([1, 2, 3, 4]))
address = ctypes.addressof(word)
if sys.argv[1:]:
    kernel.interpret_at_first()
print(wire.load_be32(address), "numba" in sys.modules)
kernel._patience_ns = 0
print(wire.load_be32(address), "numba" in sys.modules)
"""


@pytest.mark.parametrize(
    ("arguments", "numba_at_first"), [([], True), (["at first"], False)], ids=["the daemon", "a look"]
)
def test_who_looks_at_little_waits_for_no_compiler(arguments: list[str], *, numba_at_first: bool) -> None:
    """Asked to, a loop is plain Python until patience is at its end; else compiled from the first call."""
    done = subprocess.run(
        [sys.executable, "-c", TWO_WAYS, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{0x01020304} {numba_at_first}\n{0x01020304} True\n"
