"""What a task on Spark does for those that the same Python worker runs after it.

A worker that is kept collects garbage after each task (`pyspark.daemon`). That looks at every object there
is, and with the libraries that are imported it took more time than to read a segment and make its columns.
"""

from __future__ import annotations

import gc
from functools import cache


@cache
def freeze_imports(kind: str) -> None:  # noqa: ARG001  (another kind of task has imported more)
    """At the end of a task: from now on the collector passes over what is there.

    Done once for each `kind` of task in a process. What is freed later is freed as ever; only cycles among
    what was there stay.
    """
    gc.collect()
    gc.freeze()
