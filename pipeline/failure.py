"""What Spark says when a job fails, as one sentence where it can be one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from pipeline.errors import JobFailed

_OUR_ERROR = re.compile(r"^(?:pipeline|dispatch|spool)\.errors\.\w+: (.+)$", re.MULTILINE)
_LOST = re.compile(r"ExecutorLostFailure \(.+?\)(?: Reason: .+)?|Python worker exited unexpectedly")
_REFUSED = re.compile(
    r"(?:java\.io\.FileNotFoundException|java\.nio\.file\.AccessDeniedException|java\.net\.\w+Exception"
    r"|org\.apache\.hadoop\.[\w.]+Exception|java\.io\.IOException): (.+)"
)


@contextmanager
def explained() -> Iterator[None]:
    """Raise JobFailed for what an executor said in a sentence of ours, for one that is lost, and for files.

    Spark hands on an error of ours with the whole traceback of a worker around it.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        if found := _OUR_ERROR.findall(text):
            raise JobFailed(found[-1]) from error
        if lost := _LOST.search(text):
            raise JobFailed(
                f"Spark lost the process of a task each time it tried ({lost[0].strip()}): see whether its "
                "host has memory for it; the same command may be given again"
            ) from error
        if refused := _REFUSED.search(text):
            raise JobFailed(f"Spark: {refused[1]}") from error
        raise
