"""How far Spark is, asked of Spark itself while a job runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

EVERY_S = 0.25


@contextmanager
def watch(session: SparkSession, tell: Callable[[int, int], None]) -> Iterator[None]:
    """Call `tell` with tasks done and tasks known, of all jobs so far, from a thread, until the context ends.

    More tasks become known as Spark goes on from one stage to the next.
    """
    ended = Event()
    thread = Thread(target=_look, args=(session, tell, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _look(session: SparkSession, tell: Callable[[int, int], None], ended: Event) -> None:
    # Its store keeps a thousand finished stages: what a stage was is remembered here.
    seen: dict[int, tuple[int, int]] = {}
    tracker = session.sparkContext.statusTracker()
    while not ended.wait(EVERY_S):
        try:
            running = set(tracker.getActiveStageIds())
            for stage in running | {stage for stage, (done, of) in seen.items() if done < of}:
                if info := tracker.getStageInfo(stage):
                    seen[stage] = (info.numCompletedTasks, info.numTasks)
        except (Py4JError, OSError):
            return  # the JVM is gone; the job itself will say so
        if seen:
            tell(sum(done for done, _ in seen.values()), sum(of for _, of in seen.values()))
