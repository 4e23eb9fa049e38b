"""Spark's rows with what executors compute of them: the undelivered ones, and the partition of each.

The driver finds the backlog of each spool, and the inputs of the choice (`pipeline.delivery.choice`).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from pipeline.delivery.choice import Routes, Runs, hold_by, partition_by
from pipeline.job import with_column


def undelivered(stored: DataFrame, backlog: Mapping[str, Runs]) -> DataFrame:
    """The rows of `stored` that their spool's backlog holds, and those without a message."""
    held = hold_by(backlog)
    return with_column(stored, held).where(held.name).drop(held.name)


def route(frame: DataFrame, routes: Routes) -> DataFrame:
    """`frame` with a column `partition` (int); NOWHERE for messages of topics that Kafka does not have.

    ABSENT for messages whose sender names a partition that their topic does not have, by these routes. It
    needs the columns spool, sequence, topic, partition_key and key, and uses to_partition. Raises
    BadPartitioner.
    """
    named = "to_partition" in frame.columns
    return with_column(frame, partition_by(routes, names_partition=named))
