"""The pipeline as a stream: one query delivers what spools hold, and what they take in from then on.

    readStream("bruce") ─► undelivered ─► route ─► arrange ─► deliver      a batch at a time, whole

The spools are leased for as long as it runs. What was delivered stands in the marks, whoever dies: a query
that starts again asks them, and its checkpoint holds nothing that is worth keeping. A batch is delivered
before the next one begins, so that order holds across batches.

Messages of topics that Kafka does not have are passed by. They are read again when the topic is there, before
anything later of it goes, and discarded when nobody has made it in time.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from dispatch.options import DispatchOptions
from pipeline.carrying import Batches
from pipeline.failure import explained
from pipeline.lease import DeliveryLease, delivery_lease
from pipeline.plan import find_spools
from pipeline.routing import Routing
from pipeline.schema import SCHEMA
from pipeline.sending import Sent, check_mode
from pipeline.sink import COLUMNS
from pipeline.spark_release import READ_LIMITS, has
from router.job_discards import discard_file_of

BATCH_BYTES = 256 << 20
"""Read for one batch, about, where Spark can: it is delivered as a whole before the next one."""
_LIMIT = {"maxBytesPerTrigger": BATCH_BYTES} if has(READ_LIMITS) else {}
LOOK_S = 1
LAST_LOOK_S = 5.0
"""Kafka may say only at the end that it does not have a topic: the grace time begins then."""


def run_stream(
    session: SparkSession,
    paths: Iterable[str],
    options: DispatchOptions,
    partitioners: Mapping[str, str],
    told: Callable[[Sent], None],
    *,
    once: bool = False,
) -> None:
    """Deliver until it is interrupted; `once`: until all that is there now is delivered, or given up.

    `told` learns what came of each batch. Raises NoSpool, SpoolBusy, NotLent, BadPartitioner, Unreachable,
    JobFailed, which the loss of a lease is, too.
    """
    check_mode(options)
    layouts = find_spools(paths)
    file = discard_file_of(options)
    with ExitStack() as stack:
        leases = [stack.enter_context(delivery_lease(layout, file=file)) for layout in layouts]
        routing = stack.enter_context(closing(Routing(options, partitioners, leases)))
        batches = Batches(session, leases, options, routing, told)
        checkpoint = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bruce-run-"))).as_uri()
        schema = StructType([SCHEMA[name] for name in COLUMNS if name != "partition"])
        stored = (
            session.readStream.format("bruce")
            .schema(schema)
            .options(**_LIMIT)
            .option("paths", json.dumps([str(layout.directory) for layout in layouts]))
            .load()
        )
        writer = stored.writeStream.foreachBatch(batches.carry).option("checkpointLocation", checkpoint)
        with explained():
            query = (writer.trigger(availableNow=True) if once else writer).start()
            try:
                while not query.awaitTermination(LOOK_S):
                    _look_after(leases, batches)
                end = time.monotonic() + options.unknown_topic_seconds + LAST_LOOK_S
                while batches.hopeful and time.monotonic() < end:
                    time.sleep(LOOK_S)
                    _look_after(leases, batches)
            finally:
                query.stop()


def _look_after(leases: Iterable[DeliveryLease], batches: Batches) -> None:
    for lease in leases:
        lease.check()
    batches.come_by()
