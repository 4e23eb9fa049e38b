"""Compiled loops are those of this release, and kept on disk; words between processes are published."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import spool
from spool.native import kernel, memory
from spool.native.intrinsics import stamp
from spool.native.memory import Address

CALLEE = """
from spool.native.kernel import kernel
PLACE = {}

@kernel
def step(value: int) -> int:
    return value + {}
"""


CALLER = """
from spool.native.kernel import kernel
from spool.callee import (
    PLACE,
    step,
)
AT = 100 * PLACE

@kernel
def leap(value: int) -> int:
    return AT + step(value)
"""


@pytest.mark.sample(one_of=2)
@pytest.mark.parametrize("given", [False, True], ids=["beside the source", "NUMBA_CACHE_DIR"])
def test_what_comes_from_other_files_is_of_this_release(tmp_path: Path, *, given: bool) -> None:
    """Loops and constants of changed files are the current ones; other files are not compiled again."""
    package = tmp_path / "spool"
    shutil.copytree(Path(spool.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "caller.py").write_text(CALLER)
    # Python itself would confuse a file that was changed within a second with its former version.
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    environ.pop("NUMBA_CACHE_DIR", None)
    if given:
        environ["NUMBA_CACHE_DIR"] = str(tmp_path / "cache")
    said = []
    for place, more in ((1, 1), (1, 1), (2, 1), (2, 5)):
        (package / "callee.py").write_text(CALLEE.format(place, more))
        done = subprocess.run(
            [sys.executable, "-c", PRINT],
            capture_output=True,
            text=True,
            env=environ,
            check=True,
            cwd=tmp_path,
        )
        said.append(done.stdout)
    assert said == ["108 0\n", "108 1\n", "208 0\n", "212 0\n"]


PRINT = """
from spool.caller import leap
print(leap(7), sum(leap.compiled.stats.cache_hits.values()))
"""


def test_a_stamp_is_that_of_all_that_is_imported(tmp_path: Path) -> None:
    """Over several files, by each way to import; foreign modules and unimported files do not count."""
    files = {
        "spool/one.py": "from spool import two, four\nimport spool.three as x\nimport numpy\n",
        "spool/two.py": "from ingest.five import (\n    A,\n    B,\n)\n",
        "spool/three.py": "",
        "spool/four/__init__.py": "",
        "ingest/five.py": "import spool.one\n",
        "spool/apart.py": "",
        "numpy.py": "",
    }
    for name in files:
        stamps = []
        for text in ("", "# changed"):
            home = tmp_path / f"{name.replace('/', '-')}-{len(text)}"
            for path, source in files.items():
                (home / path).parent.mkdir(parents=True, exist_ok=True)
                (home / path).write_text(source + (text if path == name else ""))
            stamps.append(stamp(home / "spool/one.py", home))
        assert (stamps[0] == stamps[1]) == (name in ("spool/apart.py", "numpy.py")), name


LINKED = """
import callees
print(callees.step(1))
print(len(callees.step.compiled.stats.cache_hits))
import callers
print(callers.leap(2))
print(callees.step(1))
"""


SEEN_BY = """
from spool.native import kernel, memory
@kernel.kernel
def acquire(address):
    return memory.load_acquire(address)
@kernel.kernel
def publish(address, value):
    memory.publish_i64(address, value)
import numpy as np
word = np.zeros(1, np.int64)
publish(memory.address_of(word), -5)
print(acquire(memory.address_of(word)))
for loop in (acquire, publish):
    for made in loop.compiled.inspect_llvm().values() if hasattr(loop, "compiled") else ():
        print(*(line for line in made.splitlines() if " atomic " in line), sep="\\n")
"""


@pytest.mark.parametrize("interpreted", [False, True])
def test_what_is_published_is_acquired(tmp_path: Path, *, interpreted: bool) -> None:
    """Words between processes are stored by a release and loaded by an acquire, on each processor."""
    program = tmp_path / "loops.py"
    program.write_text(SEEN_BY)
    environ = {**os.environ, "NUMBA_DISABLE_JIT": str(int(interpreted)), "PYTHONPATH": os.getcwd()}
    environ["NUMBA_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True, env=environ)
    value, _, code = done.stdout.partition("\n")
    assert value == "-5"
    assert interpreted or ("load atomic" in code and "acquire, align 8" in code)
    assert interpreted or ("store atomic" in code and "release, align 8" in code)


def test_a_cached_loop_in_one_that_is_not_cached(tmp_path: Path) -> None:
    """A loop from the cache is linked into a caller that is compiled later, and works by itself, too."""
    (tmp_path / "callees.py").write_text(CALLEE.format(1, 5))
    (tmp_path / "callers.py").write_text(CALLER.replace("spool.callee", "callees"))
    environ = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    environ["PYTHONPATH"] = f"{tmp_path}:{Path(spool.__file__).parents[1]}"
    said = [
        subprocess.run(
            [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
        ).stdout.split()
        for program in ("import callees; print(callees.step(1))", LINKED)
    ]
    assert said == [["6"], ["6", "1", "107", "6"]]


CACHED = """
import numpy as np
from cached_loops import total
print(total(np.arange(5)), sum(total.compiled.stats.cache_hits.values()))
"""
LOOPS = """
from spool.native.kernel import kernel

@kernel
def total(numbers):
    found = 0
    for i in range(len(numbers)):
        found += numbers[i]
    return found
"""


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_torn_file_of_the_cache(tmp_path: Path, suffix: str) -> None:
    """A power cut may leave an empty file, or zeros: the loop is compiled again, and kept again."""
    (tmp_path / "cached_loops.py").write_text(LOOPS)
    environ = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    environ["PYTHONPATH"] = f"{tmp_path}:{Path(spool.__file__).parents[1]}"
    said = []
    for torn in (None, b"", bytes(4096), None):
        for file in (tmp_path / "cache").rglob(f"*.{suffix}"):
            if torn is not None:
                file.write_bytes(torn)
        done = subprocess.run(
            [sys.executable, "-c", CACHED], env=environ, capture_output=True, text=True, check=True
        )
        said.append(done.stdout.split())
    assert said == [["10", "0"], ["10", "0"], ["10", "0"], ["10", "1"]]


@kernel.kernel
def places(address: Address, byte: int) -> int:
    """The compiled form of the operation."""
    return memory.places_of(address, byte)


def test_places_of_a_byte() -> None:
    """A bit for each of 64 bytes, compiled and as plain Python; the last is the sign."""
    data = np.frombuffer(b"-" + b"ab\xff" * 21 + b"a-", np.uint8)
    at = memory.address_of(data)
    for byte in (*b"abc-", 255):
        for start in (0, 1):
            held = data[start : start + 64].tolist()
            wanted = sum((one == byte) << place for place, one in enumerate(held))
            signed = wanted - (wanted >> 63 << 64)
            assert places(Address(at + start), byte) == signed == memory.places_of(at + start, byte)
