"""An environment for executors in one file, of what is installed here: bruce by its wheel, and its needs."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.daemon import ROOT

BRUCE = "bruce-spool"


def pack(directory: Path) -> Path:
    """As `pip install` and `tar` would make it, without pyspark, which is Spark's own there."""
    environment, unpacked = directory / "packed", directory / "wheel"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(directory), versions=["standard"])
    with zipfile.ZipFile(wheel) as found:
        found.extractall(unpacked)
    (site,) = environment.glob("lib/python3*/site-packages")
    into = site.relative_to(environment)
    # Spark refuses a plain .tar's link to the interpreter, which leads out of it.
    archive = directory / "bruce.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(environment, ".")
        packed.add(unpacked, into)
        for name in sorted(needed([BRUCE, "pyarrow", "pandas"]) - {BRUCE}):
            for path in distribution(name).files or ():
                if not {"..", "__pycache__"} & set(path.parts):
                    packed.add(path.locate(), into / path)
    return archive


def needed(names: list[str]) -> set[str]:
    """These distributions and all that they need, as they are installed here."""
    found = set[str]()
    while names:
        name = canonicalize_name(names.pop())
        if name not in found:
            found.add(name)
            names += _requirements(name)
    return found


def _requirements(name: str) -> Iterator[str]:
    for text in distribution(name).requires or ():
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            yield wanted.name
