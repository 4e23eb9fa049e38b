"""The witness on Spark: executors read Kafka and hash, and this process keeps what was seen.

    Kafka ─► tasks: format("bruce-stamps") ─► pieces, 40 bytes a record ─► Feed ─► SparkTier ─► WitnessState

One streaming query reads all partitions of a cluster. It gives whole batches to a queue, while the witness
looks at the spools and judges in a thread of its own, as it does without Spark.

The state of the witness is the only checkpoint. A piece of a batch says which offsets it has. It is taken in
if it begins at the positions of the state, which then move to its end, and a checkpoint writes both together.
So whatever was not written is read again, and counts once; what Spark gives twice, or leaves out, is noticed.
Another query begins at the positions when there are other partitions to read, when this one has failed, and
when its pieces do not fit. Its own checkpoint goes with it.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Event
from typing import NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pipeline.errors import JobFailed
from pipeline.job import explained
from pipeline.kafka.stamps import BATCH_OFFSETS, NAME, Piece, StampSource, pieces_of, to_offsets
from pipeline.witness.kafka_tier import KafkaTier, Place
from pipeline.witness.tier import Position, TierState

FAILURES = 3
"""Queries that fail one after the other, with nothing read and Kafka there: then a person has to look."""
POLL_S = 0.2


class SparkPlace(NamedTuple):
    """A cluster that Spark reads."""

    place: Place
    session: SparkSession
    stop: Event
    """Once it is set no query begins."""
    most: int = BATCH_OFFSETS
    """Offsets of one batch."""

    def tier(self, state: TierState) -> SparkTier:
        """Its tier. Raises BadProperty."""
        self.session.dataSource.register(StampSource)
        return SparkTier(state, self)


class Feed:
    """A running query, and the batches that it has given."""

    def __init__(self, where: SparkPlace, positions: Mapping[Position, int]) -> None:
        """Read these partitions, from these offsets on."""
        self._ended = Event()
        self._batches: Queue[pa.Table] = Queue(1)
        self._checkpoint = tempfile.TemporaryDirectory(prefix="bruce-witness-", ignore_cleanup_errors=True)
        options = {
            **where.place.properties,
            "startingOffsets": json.dumps(to_offsets(positions)),
            "maxOffsetsPerTrigger": str(where.most),
            "tasks": str(where.session.sparkContext.defaultParallelism),
            "prefix": where.place.prefix,
        }
        pieces = where.session.readStream.format(NAME).options(**options).load()
        writer = pieces.writeStream.foreachBatch(self._give)
        checkpoint = Path(self._checkpoint.name).as_uri()
        self._query = writer.option("checkpointLocation", checkpoint).start()

    def _give(self, batch: DataFrame, number: int) -> None:  # noqa: ARG002
        """Collect a batch, in Spark's thread, and wait until there is room for it."""
        table = batch.toArrow()
        while not self._ended.is_set():
            with suppress(Full):
                self._batches.put(table, timeout=POLL_S)
                return

    def take(self, timeout_s: float) -> pa.Table | None:
        """The next batch, if one comes in time."""
        try:
            return self._batches.get(timeout=timeout_s) if timeout_s else self._batches.get_nowait()
        except Empty:
            return None

    def failure(self) -> str | None:
        """The sentence for why the query has ended; None: it goes on, or what it gave is not yet taken."""
        if not self._batches.empty() or self._query.isActive:
            return None
        try:
            with explained():
                if error := self._query.exception():
                    raise error
        except JobFailed as error:
            return str(error)
        except PySparkException as error:
            return f"Spark: {str(error).strip().partition(chr(10))[0]}"
        return "Spark: the query has ended"

    def close(self) -> None:
        """End the query; what it gave is forgotten."""
        self._ended.set()
        with suppress(PySparkException, Py4JError, ConnectionError):
            self._query.stop()
        self._checkpoint.cleanup()


class SparkTier(KafkaTier):
    """Reads one cluster by Spark. `state` has what was seen."""

    def __init__(self, state: TierState, where: SparkPlace) -> None:
        """Raises BadProperty."""
        super().__init__(state, where.place)
        self._where = where
        self._feed: Feed | None = None
        self._fits = True
        self._failures = 0

    def look(self, topics: AbstractSet[str] | None) -> None:
        """As a KafkaTier does; also begin another query where needed. Raises JobFailed if that fails."""
        with living():
            failure = self._feed and self._feed.failure()
        if failure or not self._fits:
            self._end_feed()
            # All partitions are to be assigned again.
            self._assigned = frozenset()
        super().look(topics)
        if failure and not self._where.stop.is_set():
            self._failures += bool(self._feed)
            if self._failures >= FAILURES:
                raise JobFailed(failure)
            self.error = self.error or failure

    def _read_from(self, offsets: Mapping[Position, int]) -> None:
        self._end_feed()
        if offsets and not self._where.stop.is_set():
            with living():
                self._feed = Feed(self._where, offsets)

    def _end_feed(self) -> None:
        self._fits = True
        if self._feed:
            self._feed.close()
            self._feed = None

    def read(self, timeout_s: float) -> int:
        """Take in a batch, or wait so long for one; how many records it had."""
        if self._feed is None:
            time.sleep(timeout_s)
            return 0
        batch = self._feed.take(timeout_s)
        return 0 if batch is None else sum(self._absorb(piece) for piece in pieces_of(batch))

    def _absorb(self, piece: Piece) -> int:
        """Take in a piece that begins at our positions, and move these; others call for another query."""
        positions = self.state.positions
        if any(positions.get((one.topic, one.partition)) != one.start for one in piece.ranges):
            self._fits = False
            return 0
        self.state.absorb(piece.spools, piece.sequences, piece.contents, piece.sent_ms)
        positions.update({(one.topic, one.partition): one.end for one in piece.ranges})
        self._failures = 0
        return len(piece.sequences)

    def note_positions(self) -> None:
        """They move as pieces are taken in."""

    def close(self) -> None:
        """End the query and the consumers."""
        self._end_feed()
        super().close()


@contextmanager
def living() -> Iterator[None]:
    """Raise JobFailed when Spark's JVM is gone."""
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        raise JobFailed(
            "Spark's process has ended: see whether this host has memory for it; the same command goes on "
            "from here"
        ) from error
