"""Whether Spark can run here at all, asked before anything is imported that needs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from pipeline.errors import MissingSpark
from pipeline.spark_release import OLDEST, has, lacks, version

OLDEST_JAVA = 17
JAVA_S = 60.0
"""More than any Java takes to say its version."""

_CODE = re.compile(r"^\[\w+\] ")
"""What stands before the sentence of an error of PySpark."""


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
    """Whether there is a PySpark that is new enough: the one that would be imported."""
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
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=JAVA_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Requirement(False, f"{java} does not start: {error}")
    if not (found := re.search(r'version "((?:1\.)?(\d+)[^"]*)"', told.stderr)):
        return Requirement(False, f"{java} -version does not tell a version: it ends with {told.returncode}")
    if int(found[2]) < OLDEST_JAVA:
        return Requirement(
            False,
            f"{java} is Java {found[1]}: Spark needs {OLDEST_JAVA} or newer, on the PATH or as JAVA_HOME",
        )
    return Requirement(True, f"Java {found[1]}")


def columns_here() -> Requirement:
    """Whether pyarrow and pandas are there, as new as this PySpark wants them."""
    known: Any = import_module("pyspark.sql.pandas.utils")
    try:
        known.require_minimum_pyarrow_version()
        known.require_minimum_pandas_version()
    except ImportError as error:
        return Requirement(False, f"{_CODE.sub('', str(error)).rstrip('.')}: bruce-spool[spark] has all")
    names = [f"{name} {import_module(name).__version__}" for name in ("pyarrow", "pandas")]
    return Requirement(True, ", ".join(names))
