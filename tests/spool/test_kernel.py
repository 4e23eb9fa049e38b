"""The decorator of compiled loops."""

from __future__ import annotations

import os
import subprocess
import sys

NO_PLACE = "/proc/nowhere"
PROGRAM = f"""
from spool.kernel import kernel, unkept
source = compile("def plus(a, b): return a + b", "{NO_PLACE}/loops.py", "exec")
exec(source)
print(kernel(plus)(40, 2), unkept)
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
