"""Deliver the messages of spools, so that no daemon sends them again.

    stored ─► undelivered ─► route ─► arrange ─► deliver ─► outcomes

The spools are leased meanwhile: no other process delivers from them. Tasks write outcome files, which go into
the marks. A job that dies leaves these files; the next job, or the daemon, takes them over and continues.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from dispatch.options import DispatchOptions
from pipeline.delivery.lease import DeliveryLease, delivery_lease
from pipeline.delivery.route import Routes, Runs, undelivered
from pipeline.delivery.route_plan import (
    announce,
    find_starts,
    note_counts,
    plan_routes,
    read_segments,
    recover,
    spare_task,
)
from pipeline.delivery.sending import Sent, check_mode, count_outcomes, count_stored, read_stored, send, tell
from pipeline.delivery.sink import Delivery
from pipeline.source.outcomes import read_outcomes
from pipeline.source.plan import find_spools, plan_spool
from pipeline.source.schema import UNREAD
from router.outcomes.rejects import discard_file_of


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
    """Deliver the messages of the spools at these paths (globs, too), and record the outcomes.

    A live daemon goes on taking messages in, and delivers those itself. The job skips ranges that the disk
    cannot read, leaves them undelivered, and names them. Raises NoSpool, SpoolBusy, NotLent, LeaseLost,
    Unreachable, BadProperty, BadPartitioner, JobFailed.
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
    """The undelivered messages of a leased spool. Raises Unreachable, JobFailed."""
    runs = Runs.of(read_outcomes(plan_spool(lease.layout, skip_read_errors=True)).backlog, lease.end)
    if options.mode != "exactly_once":
        return runs
    return runs.without(recover(options, lease, read_segments(lease.layout)))


def delivery_from(
    leases: Sequence[DeliveryLease], options: DispatchOptions, job: str, routes: Routes
) -> Delivery:
    """Delivery from these spools; their owners read the outcome files. Raises LeaseLost, OSError."""
    outcomes = {lease.spool.hex(): str(lease.outcomes) for lease in leases}
    segments = {lease.spool.hex(): read_segments(lease.layout) for lease in leases}
    delivery = Delivery(options, job, outcomes, segments=segments)
    if not delivery.in_transactions:
        return delivery
    epochs = {lease.spool.hex(): announce(lease, routes) for lease in leases}
    return replace(delivery, epochs=epochs, spare=spare_task(routes), starts=find_starts(options))
