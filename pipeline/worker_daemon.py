"""The process from which Spark forks its Python workers, with all that they need loaded: `python -m` runs it.

Spark ends the worker of a task that it wants no more rows of (`limit`, `isEmpty`), and forks another one for
the next. With Spark's own daemon each of them imports PySpark's worker, our reader and the compiled loops
again: half a second, for a task of some milliseconds.

It imports PySpark from its folder. Spark puts an archive of the same code before it in the path; of an
archive Python compiles each module again, and reads its whole directory again for each task.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder

from spool.native.kernel import load_all

_LOADED = ("pyspark.worker", "pipeline.source.reader", "pipeline.delivery.route")
"""By name: the path must be in order first."""


def leave_archives(path: list[str]) -> list[str]:
    """The path without PySpark's own archives, if it leads to the folder of the same PySpark, too."""
    folders = [entry for entry in path if not entry.endswith(".zip")]
    specs = [PathFinder.find_spec(name, folders) for name in ("pyspark", "py4j")]
    if not all(specs) or specs[0] is None or not specs[0].origin:
        return path
    home = os.path.realpath(os.path.dirname(specs[0].origin))
    return [one for one in path if not (one.endswith(".zip") and _is_below(os.path.realpath(one), home))]


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder + os.sep)


def run() -> None:
    """Load everything, and fork workers until Spark ends."""
    sys.path[:] = leave_archives(sys.path)
    for name in _LOADED:
        import_module(name)
    load_all()
    # Workers share these pages with it, unless a collection of theirs writes to them.
    gc.freeze()
    import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    run()
