"""The pipeline as a stream: one query delivers what spools hold, and what they take in from then on.

    readStream("bruce") ─► undelivered ─► route ─► arrange ─► deliver      a batch at a time, whole

The spools are leased for as long as it runs. What was delivered stands in the marks, whoever dies: a query
that starts again asks them, and its checkpoint holds nothing that is worth keeping. A batch is delivered
before the next one begins, so that order holds across batches.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from dispatch.options import DispatchOptions
from pipeline.backlog import undelivered
from pipeline.drain import delivery_from, open_runs
from pipeline.failure import explained
from pipeline.lease import DeliveryLease, delivery_lease
from pipeline.plan import find_spools
from pipeline.route_plan import plan_routes
from pipeline.schema import SCHEMA
from pipeline.sending import Sent, count_outcomes, count_topics, refuse_at_most_once, send, tell
from pipeline.sink import COLUMNS

BATCH_BYTES = 256 << 20
"""Read for one batch, about: it is delivered as a whole before the next one."""
LOOK_S = 1

Told = Callable[[Sent], None]


def run_stream(
    session: SparkSession,
    paths: Iterable[str],
    options: DispatchOptions,
    partitioners: Mapping[str, str],
    told: Told,
    *,
    once: bool = False,
) -> None:
    """Deliver until it is interrupted; `once`: until all that is there now is delivered.

    `told` learns what came of each batch. Raises NoSpool, SpoolBusy, NotLent, BadPartitioner, JobFailed,
    which the loss of a lease is, too.
    """
    refuse_at_most_once(options)
    layouts = find_spools(paths)
    with ExitStack() as stack:
        leases = [stack.enter_context(delivery_lease(layout)) for layout in layouts]
        batches = Batches(leases, options, partitioners, told)
        checkpoint = stack.enter_context(tempfile.TemporaryDirectory(prefix="bruce-run-"))
        schema = StructType([SCHEMA[name] for name in COLUMNS if name != "partition"])
        stored = (
            session.readStream.format("bruce")
            .schema(schema)
            .option("maxBytesPerTrigger", BATCH_BYTES)
            .option("paths", json.dumps([str(layout.directory) for layout in layouts]))
            .load()
        )
        writer = stored.writeStream.foreachBatch(batches.carry).option("checkpointLocation", checkpoint)
        with explained():
            query = (writer.trigger(availableNow=True) if once else writer).start()
            try:
                while not query.awaitTermination(LOOK_S):
                    for lease in leases:
                        lease.check()
            finally:
                query.stop()


class Batches:
    """Delivers one batch after the other."""

    def __init__(
        self,
        leases: Sequence[DeliveryLease],
        options: DispatchOptions,
        partitioners: Mapping[str, str],
        told: Told,
    ) -> None:
        self._leases, self._options, self._partitioners, self._told = leases, options, partitioners, told
        self._backlog = {lease.spool.hex(): open_runs(lease, options).and_from(lease.end) for lease in leases}

    def carry(self, batch: DataFrame, number: int) -> None:
        """Deliver a batch, and write down what was."""
        started = time.monotonic()
        # It is asked twice, for its topics and for its messages.
        wanted = undelivered(batch, self._backlog).persist()
        try:
            topics = count_topics(wanted)
            if not topics:
                return
            layouts = [lease.layout for lease in self._leases]
            routes = plan_routes(self._options, list(topics), self._partitioners, layouts)
            delivery = delivery_from(self._leases, self._options, f"run-{number}", routes)
            reasons = count_outcomes(send(wanted, routes, delivery))
        finally:
            wanted.unpersist()
        for lease in self._leases:
            lease.settle()
        self._told(tell(topics.total(), topics, routes, reasons, started))
