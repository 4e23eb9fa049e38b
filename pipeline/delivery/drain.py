"""Deliver the messages of spools, so that no daemon sends them again.

    stored ─► undelivered ─► route ─► arrange ─► deliver ─► outcomes

The spools are leased meanwhile: no other process delivers from them. Tasks write outcome files, which go into
the marks. A job that dies leaves these files; the next job, or the daemon, takes them over and continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from pyspark.sql import SparkSession

from dispatch.options import DispatchOptions
from pipeline.delivery.backlog import read_backlog
from pipeline.delivery.choice import Routes
from pipeline.delivery.lease import DeliveryLease, delivery_lease
from pipeline.delivery.route_plan import (
    announce,
    find_starts,
    note_counts,
    plan_routes,
    read_segments,
    spare_task,
)
from pipeline.delivery.sending import Sent, check_mode, count_outcomes, send, tell
from pipeline.delivery.sink import Delivery
from pipeline.source.plan import find_spools
from router.outcomes.rejects import discard_file_of


def run_drain(
    start: Callable[[], SparkSession],
    paths: Iterable[str],
    options: DispatchOptions,
    partitioners: Mapping[str, str],
    *,
    timeout_s: float | None = None,
) -> Sent:
    """Deliver the messages of the spools at these paths (globs, too), and record the outcomes.

    `start` gives a session; it is not called when there is nothing to deliver. A live daemon goes on taking
    messages in, and delivers those itself. The job skips ranges that the disk cannot read, leaves them
    undelivered, and names them. Raises NoSpool, SpoolBusy, NotLent, LeaseLost, Unreachable, BadProperty,
    BadPartitioner, JobFailed.
    """
    check_mode(options)
    started = time.monotonic()
    deadline = float("inf") if timeout_s is None else time.time() + timeout_s
    layouts = find_spools(paths)
    file = discard_file_of(options)
    with ExitStack() as stack:
        leases = [stack.enter_context(delivery_lease(layout, file=file)) for layout in layouts]
        backlog = read_backlog(leases, options)
        if not len(backlog):
            return tell(0, {}, Routes({}), {}, started, backlog.unread)
        session = start()
        topics = backlog.count(session)
        routes = plan_routes(options, list(topics), partitioners, layouts, deadline)
        note_counts(leases, routes, "drain")
        delivery = replace(delivery_from(leases, options, "drain", routes), deadline=deadline)
        reasons = count_outcomes(send(backlog.read(session), routes, delivery))
        for lease in leases:
            lease.check()
        sent = tell(len(backlog), topics, routes, reasons, started)
        hidden = sent.left > sum(sent.unknown_messages.values())
        more = backlog.name_unread(session) if hidden else []
        return replace(sent, unread=sorted(backlog.unread + more))


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
