"""Delivering what spools hold, so that no daemon sends it again.

    stored ─► undelivered ─► route ─► arrange ─► deliver ─► outcomes

The spools are leased meanwhile: nobody else delivers from them, and what tasks wrote down goes into the
marks. A job that dies leaves what its tasks wrote down; the next one, or the daemon, takes that over and goes
on from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from dispatch.options import DispatchOptions
from pipeline.backlog import Runs, undelivered
from pipeline.lease import DeliveryLease, delivery_lease
from pipeline.outcomes import read_outcomes
from pipeline.plan import find_spools, plan_spool
from pipeline.route import Routes
from pipeline.route_plan import note_counts, plan_routes
from pipeline.schema import UNREAD
from pipeline.sending import Sent, check_mode, count_outcomes, count_stored, read_stored, send, tell
from pipeline.sink import Delivery
from pipeline.unrecorded import announce, find_starts, read_segments, recover
from router.job_discards import discard_file_of


def drain(stored: DataFrame, backlog: Mapping[str, Runs], routes: Routes, delivery: Delivery) -> DataFrame:
    """Deliver the rows of `stored` that are in the backlog (by spool); their outcomes."""
    return send(undelivered(stored, backlog), routes, delivery)


def run_drain(
    session: SparkSession,
    paths: Iterable[str],
    options: DispatchOptions,
    partitioners: Mapping[str, str],
    *,
    timeout_s: float | None = None,
) -> Sent:
    """Deliver what the spools at these paths (globs, too) hold, and write down what was.

    A live daemon goes on taking messages in; those are left to it. What the disk gives an error for is passed
    by, left as it is, and named. Raises NoSpool, SpoolBusy, NotLent,
    LeaseLost, Unreachable, BadProperty, BadPartitioner, JobFailed.
    """
    check_mode(options)
    started = time.monotonic()
    deadline = float("inf") if timeout_s is None else time.time() + timeout_s
    layouts = find_spools(paths)
    file = discard_file_of(options)
    with ExitStack() as stack:
        leases = [stack.enter_context(delivery_lease(layout, file=file)) for layout in layouts]
        backlog = {lease.spool.hex(): open_runs(lease, options) for lease in leases}
        stored = read_stored(session, layouts, UNREAD)
        topics, unread = count_stored(undelivered(stored, backlog))
        routes = plan_routes(options, list(topics), partitioners, layouts, deadline)
        note_counts(leases, routes, "drain")
        delivery = replace(delivery_from(leases, options, "drain", routes), deadline=deadline)
        messages = stored.where(f.col(UNREAD.name).isNull())
        reasons = count_outcomes(drain(messages, backlog, routes, delivery))
        for lease in leases:
            lease.check()
    return tell(sum(map(len, backlog.values())), topics, routes, reasons, started, unread)


def open_runs(lease: DeliveryLease, options: DispatchOptions) -> Runs:
    """What a leased spool has to deliver. Raises Unreachable, JobFailed."""
    runs = Runs.of(read_outcomes(plan_spool(lease.layout, passing=True)).backlog, lease.end)
    if options.mode != "exactly_once":
        return runs
    return runs.without(recover(options, lease, read_segments(lease.layout)))


def delivery_from(
    leases: Sequence[DeliveryLease], options: DispatchOptions, job: str, routes: Routes
) -> Delivery:
    """Delivery from these spools, written down where their owners look for it. Raises LeaseLost, OSError."""
    outcomes = {lease.spool.hex(): str(lease.outcomes) for lease in leases}
    segments = {lease.spool.hex(): read_segments(lease.layout) for lease in leases}
    delivery = Delivery(options, job, outcomes, segments=segments)
    if not delivery.in_transactions:
        return delivery
    epochs = {lease.spool.hex(): announce(lease, routes) for lease in leases}
    return replace(delivery, epochs=epochs, starts=find_starts(options))
