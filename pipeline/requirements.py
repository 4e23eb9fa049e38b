"""Whether Spark can run here at all, asked before anything is imported that needs it."""

from __future__ import annotations

import os
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pipeline.errors import MissingSpark

OLDEST = 4
"""The major version of PySpark that brought the Python Data Source API."""


def check_requirements() -> None:
    """Raise MissingSpark, in one sentence, when pyspark, pyarrow, pandas or Java is not there."""
    for package in ("pyspark", "pyarrow", "pandas"):
        if (found := _version(package)) is None:
            raise MissingSpark(
                f"{package} is not installed; install bruce with its extra: bruce-spool[spark]"
            )
        if package == "pyspark" and int(found.partition(".")[0]) < OLDEST:
            raise MissingSpark(f"pyspark {found} is too old for bruce: it needs {OLDEST}.0 or newer")
    if not find_java():
        raise MissingSpark("there is no Java: Spark needs 17 or newer, on the PATH or in JAVA_HOME")


def find_java() -> Path | None:
    """The java that Spark would start."""
    if home := os.environ.get("JAVA_HOME"):
        java = Path(home, "bin", "java")
        return java if os.access(java, os.X_OK) else None
    found = shutil.which("java")
    return Path(found) if found else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
