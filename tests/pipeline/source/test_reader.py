"""The batches that the source hands to Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.spark_release import READ_LIMITS, has
from tests.spool.fixture import SpoolFixture
from tools.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

LIMIT = {"maxBytesPerTrigger": "3000"} if has(READ_LIMITS) else {}
QUERY = """
import sys
from pipeline.session import open_session
from tests.pipeline.source.test_reader import start

with open_session("local[2]") as session:
    start(session, sys.argv[1], sys.argv[2]).awaitTermination()
"""


def start(
    session: SparkSession, spool: object, target: object, *, now: bool = False, **options: str
) -> object:
    """A stream of small batches from a spool to Parquet; `now`: it ends with what is there."""
    stream = session.readStream.format("bruce").options(**LIMIT, **options)
    rows = stream.load(str(spool)).select("sequence", "topic", "value")
    writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{target}.checkpoint")
    return (writer.trigger(availableNow=True) if now else writer).start(str(target))


def written(session: SparkSession, target: Path) -> list[int]:
    """Every sequence number in the files that were committed, in order."""
    return sorted(row.sequence for row in session.read.parquet(str(target)).select("sequence").collect())


def batches(target: Path) -> int:
    """How many the sink has committed."""
    return len(list((target / "_spark_metadata").glob("[0-9]*")))


@pytest.mark.oldest_spark
def test_available_now_goes_on_where_it_stopped(
    spark: SparkSession, spool: SpoolFixture, tmp_path: Path
) -> None:
    """A query that wants what is there ends, in several batches if limited; the next one goes on."""
    target = tmp_path / "out"
    for total in (240, 240, 300):
        more = total - spool.synced
        spool.fill(more // 3)
        spool.step()
        start(spark, spool.layout.directory, target, now=True).awaitTermination()  # type: ignore[attr-defined]
        assert written(spark, target) == list(range(total))
    # Without a limit the query in the middle had nothing to do.
    assert batches(target) > 3 if LIMIT else batches(target) == 2


@pytest.mark.skipif(not has(READ_LIMITS), reason="an older PySpark does not ask")
def test_how_far_a_stream_is_behind(spark: SparkSession, spool: SpoolFixture, tmp_path: Path) -> None:
    """The progress of each batch has the end of what was committed, which batches approach."""
    spool.fill(80)
    spool.step()
    query: Any = start(spark, spool.layout.directory, tmp_path / "out", now=True)
    query.awaitTermination()
    found = [progress["sources"][0] for progress in query.recentProgress]
    assert len(found) > 3
    ends = {str(one["latestOffset"]) for one in found}
    assert ends == {str(found[-1]["endOffset"])}
    assert str(found[0]["endOffset"]) not in ends


@pytest.mark.long
@pytest.mark.oldest_spark
def test_retention_ahead_ends_the_stream(spark: SparkSession, spool: SpoolFixture, tmp_path: Path) -> None:
    """A stream that lost messages says so in one sentence, and goes on with failOnDataLoss = false."""
    target = tmp_path / "out"
    spool.fill(3)
    spool.step()
    start(spark, spool.layout.directory, target, now=True).awaitTermination()  # type: ignore[attr-defined]
    spool.fill(100)
    spool.step()
    spool.layout.segment(*spool.layout.list_segments()[0]).unlink()
    first = spool.layout.list_segments()[0][0]
    query = start(spark, spool.layout.directory, target, now=True)
    with pytest.raises(Exception, match=f"{first - 9} messages from 9 on were removed"):
        query.awaitTermination()  # type: ignore[attr-defined]
    start(spark, spool.layout.directory, target, now=True, failOnDataLoss="false").awaitTermination()  # type: ignore[attr-defined]
    assert written(spark, target) == [*range(9), *range(first, 309)]


@pytest.mark.long
@pytest.mark.crash
def test_killed_and_started_again(spark: SparkSession, spool: SpoolFixture, tmp_path: Path) -> None:
    """A driver that is killed between batches leaves a checkpoint from which each message comes once."""
    target = tmp_path / "out"
    spool.fill(400, messages=5)
    spool.step()
    command = [sys.executable, "-c", QUERY, str(spool.layout.directory), str(target)]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
        )
        try:
            wait_until(lambda: batches(target) > 2, 180, "a few batches")
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the JVM, too
            process.wait()
    assert 0 < len(written(spark, target)) < 2000
    spool.fill(3)
    spool.step()
    start(spark, spool.layout.directory, target, now=True).awaitTermination()  # type: ignore[attr-defined]
    assert written(spark, target) == list(range(2009))
