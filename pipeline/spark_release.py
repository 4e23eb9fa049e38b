"""The Spark that is installed: whether it can run here, and what its release can do.

This is the one place that knows releases of PySpark by number:

    4.0   data sources in Python, batch and streaming; Arrow from a reader and into a batch writer
    4.1   hands filters to a source; functions over Arrow columns; Arrow into a streaming writer; counts the
          most frequent values in little memory
    4.2   asks a streaming source how much it wants to read

On an older release bruce, or Spark itself, does the same in another way: results are equal, and take longer.
Only `stats` needs 4.1. This module imports nothing that needs Spark, so that its absence is one sentence.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import MissingSpark

Release = tuple[int, int]

OLDEST: Release = (4, 0)
FILTERS: Release = (4, 1)
"""Spark hands the filters of a query to a source."""
ARROW_FUNCTIONS: Release = (4, 1)
ARROW_STREAM_WRITERS: Release = (4, 1)
READ_LIMITS: Release = (4, 2)
"""A batch of a stream takes no more than the source says."""

OLDEST_JAVA = 17
JAVA_S = 60.0
"""More than any Java takes to print its version."""
_COLUMNS: dict[str, Release] = {"pyarrow": (18, 0), "pandas": (2, 2)}
"""The bounds of the extra in pyproject.toml."""
_VERSION = re.compile(r"^__version__[^=\n]*= ['\"]([^'\"]+)", re.MULTILINE)
_CODE = re.compile(r"^\[\w+\] ")
"""The error class before the sentence, in an error of PySpark."""


def version() -> str:
    """The version of the PySpark that an import would find. Raises ImportError."""
    spec = None if "pyspark" in sys.modules else find_spec("pyspark")
    for place in (spec and spec.submodule_search_locations) or ():
        # Importing PySpark takes a second.
        with suppress(OSError):
            if found := _VERSION.search((Path(place) / "version.py").read_text(encoding="utf-8")):
                return found[1]
    return str(import_module("pyspark.version").__version__)


def has(ability: Release) -> bool:
    """Whether this PySpark is at least of that release. Raises ImportError."""
    return tuple(map(int, re.findall(r"\d+", version())[:2])) >= ability


def lacks() -> list[str]:
    """The abilities that this PySpark lacks, each in a few words. Raises ImportError."""
    known = {
        "pushFilters spares no segment": FILTERS,
        "a batch of a stream takes all there is": READ_LIMITS,
    }
    return [f"{words} before {since[0]}.{since[1]}" for words, since in known.items() if not has(since)]


class Requirement(NamedTuple):
    """One thing that Spark needs."""

    ok: bool
    sentence: str


def check_requirements() -> None:
    """Raise MissingSpark, in one sentence, when pyspark, Java, pyarrow or pandas is missing or too old."""
    for look in (pyspark_here, java_here, columns_here):
        if not (found := look()).ok:
            raise MissingSpark(found.sentence)


def pyspark_here() -> Requirement:
    """Whether the PySpark that an import would find is new enough."""
    if not find_spec("pyspark"):
        return Requirement(
            False, "pyspark is not installed; install bruce with its extra: bruce-spool[spark]"
        )
    try:
        found = version()
    except ImportError as error:
        return Requirement(False, f"pyspark cannot be imported: {error}")
    if not has(OLDEST):
        least = ".".join(map(str, OLDEST))
        return Requirement(False, f"pyspark {found} is too old: this needs {least} or newer")
    return Requirement(True, "; ".join([f"pyspark {found}", *lacks()]))


def java_here() -> Requirement:
    """Whether the Java that Spark would start can run it."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return Requirement(True, "Java runs: spark-submit has started it")
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    if not shutil.which(java):
        where = f"JAVA_HOME is {home}, and there is no bin/java" if home else "there is no Java on the PATH"
        return Requirement(False, f"{where}: Spark needs Java {OLDEST_JAVA} or newer")
    with suppress(OSError):  # a Java that runs takes a fifth of a second of a processor to say it
        release = Path(os.path.realpath(shutil.which(java) or java)).parents[1] / "release"
        if found := re.search(r'^JAVA_VERSION="((?:1\.)?(\d+)[^"]*)"', release.read_text(), re.MULTILINE):
            return _judge_java(java, found)
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=JAVA_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Requirement(False, f"{java} does not start: {error}")
    if not (found := re.search(r'version "((?:1\.)?(\d+)[^"]*)"', told.stderr)):
        return Requirement(False, f"{java} -version does not tell a version: it ends with {told.returncode}")
    return _judge_java(java, found)


def _judge_java(java: str, found: re.Match[str]) -> Requirement:
    if int(found[2]) < OLDEST_JAVA:
        return Requirement(
            False,
            f"{java} is Java {found[1]}: Spark needs {OLDEST_JAVA} or newer, on the PATH or as JAVA_HOME",
        )
    return Requirement(True, f"Java {found[1]}")


def columns_installed() -> Requirement:
    """As `columns_here`, by what is installed: nothing is imported, which would take seconds."""
    told = []
    for name, least in _COLUMNS.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            return Requirement(False, f"{name} is not installed: bruce-spool[spark] has all")
        if tuple(map(int, re.findall(r"\d+", found)[:2])) < least:
            wanted = ".".join(map(str, least))
            return Requirement(False, f"{name} {found} is too old: bruce-spool[spark] has {wanted} or newer")
        told.append(f"{name} {found}")
    return Requirement(True, ", ".join(told))


def columns_here() -> Requirement:
    """Whether pyarrow and pandas are installed, and new enough for this PySpark."""
    known: Any = import_module("pyspark.sql.pandas.utils")
    try:
        known.require_minimum_pyarrow_version()
        known.require_minimum_pandas_version()
    except ImportError as error:
        return Requirement(False, f"{_CODE.sub('', str(error)).rstrip('.')}: bruce-spool[spark] has all")
    names = [f"{name} {import_module(name).__version__}" for name in ("pyarrow", "pandas")]
    return Requirement(True, ", ".join(names))
