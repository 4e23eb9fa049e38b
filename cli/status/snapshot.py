"""A look at a spool: at its files, and at the shared state if a daemon lives.

`take_snapshot` reads all of it. Three functions read the shared state alone: `list_workers`, `list_full`
(what has no room) and `status_line` (one sentence for the service manager).
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dispatch.tables import State
from ingest.buffers.connection_buffer import read_connections
from ingest.buffers.connection_buffers import read_all_staging
from ingest.buffers.staging import SUFFIX
from ingest.role import PATIENCE, waits_for_disk
from ingest.sockets.inputs import DATAGRAM
from spool.format.frame import SEQUENCE
from spool.format.wire import reason_name
from spool.index.committed import read_committed
from spool.index.identity import read_identity
from spool.layout import Layout
from spool.log.intake_totals import UNKNOWN, read_senders
from spool.log.quotas import ALLOWED, BACKLOG, NAME, NAME_BYTES, OVER, SINCE, row_at
from spool.log.recovery import boot_id
from spool.marks.lease import lent_to
from spool.marks.outcomes import count_pending
from spool.options import Full, WhenFull
from spool.read.overview import SpoolTotals, take_totals
from spool.shared.histogram import read_by_input
from spool.shared.runtime import find_shared_state
from spool.shared.state import (
    BROKER_TIME_WORDS,
    BROKER_WORDS,
    FORKED,
    FORMAT,
    QUOTA_ROW,
    WORKER_WORDS,
    Field,
    other_format,
    read_shared_state,
    read_text,
)
from spool.storage.disk import allocated_bytes
from spool.storage.lock import is_held, read_holder
from spool.storage.ownership import Owners, believed
from spool.words import agreeing, clipped, size_in_words, utc
from status.report import (
    AckView,
    BrokerView,
    ConnectionsView,
    FullView,
    InputView,
    KafkaView,
    LentView,
    OtherRelease,
    SenderView,
    Snapshot,
    SpoolView,
    TimesView,
    Watermarks,
    WorkerView,
)

_LOOKS = 5
"""At a text that may be being written."""
ROLES = ("supervisor", "ingest", "keeper", "delivery", "ack", "status", "stream", "kafka")
"""The roles, in the order of the shared state."""
_OPTIONAL = ("ack", "status", "stream", "kafka")
"""They are there if they were asked for."""
_WHAT = {
    Full.MAX_BYTES: ("max_bytes", "its segments have reached [spool] max_bytes"),
    Full.RESERVE: (
        "min_free_bytes",
        "one more segment would leave less than [spool] min_free_bytes on its filesystem",
    ),
    Full.DISK: ("disk", "its filesystem has no room for one more segment"),
}
_THEN = {
    WhenFull.DISCARD_NEWEST: "new messages are discarded",
    WhenFull.BLOCK: "senders wait",
    WhenFull.DISCARD_OLDEST: "new messages are discarded, since nothing older can be given up",
}


def take_snapshot(directory: Path) -> Snapshot:
    """Look at a spool, whether or not its daemon lives. Raises NoSpool, BadSpool."""
    layout = Layout(directory)
    spool = read_identity(layout)
    boot = boot_id()
    unadopted = count_pending(layout)
    # Before all that was received: so they never add up to more.
    senders = list_senders(layout)
    account = account_of(layout)
    path, owners = find_shared_state(directory, spool, boot), believed(directory)
    shared = read_shared_state(path, owners)
    workers = [] if shared is None else list_workers(shared)
    roles = {worker.role for worker in workers}
    written = int(account.tail[SEQUENCE])
    return Snapshot(
        spool=SpoolView(
            str(uuid.UUID(bytes=spool)),
            str(directory),
            sum(map(allocated_bytes, layout.segments.iterdir())),
            len(layout.list_segments()),
        ),
        watermarks=Watermarks(
            accepted=written + account.staged,
            written=written,
            synced=min(_synced(layout, written), written),
            delivered=min(account.low_watermark, written),
        ),
        received=account.received,
        delivered=account.delivered,
        discarded={reason_name(reason): count for reason, count in account.by_reason().items()},
        backlog=account.backlog,
        full=list(list_full(shared)) if shared is not None and workers else [],
        disk=(_disk(shared, path, owners) if shared is not None else None) or _strangers(layout),
        lost_inputs=_text(path, Field.LOST_INPUTS, owners) if workers else None,
        workers=workers,
        brokers=_brokers(shared) if shared is not None and workers else [],
        trouble=_text(path, Field.TROUBLE, owners) if workers else None,
        dead_lettered=account.dead_lettered,
        acknowledgements=_acknowledgements(shared) if shared is not None and "ack" in roles else None,
        kafka=_kafka(shared) if shared is not None and "kafka" in roles else None,
        lent=_lent(layout, boot),
        unadopted=unadopted,
        held=shared is not None and bool(workers) and bool(shared[Field.PAUSED]),
        other_release=find_other_release(layout, path),
        senders=senders,
        inputs=list(_inputs(shared, roles)) if shared is not None and workers else [],
    )


def find_other_release(layout: Layout, shared: Path) -> OtherRelease | None:
    """The daemon that has this spool and whose page is of another format; None where there is none.

    Behind a daemon that was killed its page stays: the lock tells whether one lives.
    """
    name = other_format(shared, believed(layout.directory))
    if name is None or is_held(layout.lock) is False:
        return None
    pid = read_holder(layout.lock).partition(" ")[0]
    return OtherRelease(int(pid) if pid.isdigit() else 0, name, FORMAT.decode())


def _inputs(shared: np.ndarray, roles: set[str]) -> Iterator[InputView]:
    """Those that take messages, with what the shared state has counted."""
    messages = read_by_input(shared[Field.SIZES :])
    yield InputView(DATAGRAM, *messages[DATAGRAM], None)
    for name, found in read_connections(shared[Field.CONNECTIONS :]).items():
        if ("kafka" if name == "kafka" else "stream") in roles:
            still = found.accepted - sum(found.closed.values())
            view = ConnectionsView(found.accepted, still, found.closed, found.errors)
            yield InputView(name, *messages[name], view)


def list_senders(layout: Layout) -> list[SenderView]:
    """Messages and discards by sender. Raises OSError."""
    return [
        SenderView(
            sender=_sender_name(one.uid),
            received=one.received,
            discarded={reason_name(reason): count for reason, count in sorted(one.refused.items())},
        )
        for one in read_senders(layout)
    ]


def _sender_name(uid: int | None) -> str:
    if uid is None:
        return "other"
    return "unknown" if uid == UNKNOWN else str(uid)


def account_of(layout: Layout) -> SpoolTotals:
    """The totals of a spool, what waits in staging included. Raises NoSpool, BadSpool."""
    spool, boot = read_identity(layout), boot_id()
    path = find_shared_state(layout.directory, spool, boot).with_suffix(SUFFIX)
    owners = believed(layout.directory)
    return take_totals(layout, lambda: read_all_staging(path, owners))


def _synced(layout: Layout, written: int) -> int:
    """The committed watermark; without an index everything that is written counts."""
    committed = read_committed(layout.index)
    return int(committed[1][SEQUENCE]) if committed else written


def _disk(shared: np.ndarray, path: Path, owners: Owners) -> str | None:
    """The disk errors of the keeper, or of the deliverer, in words."""
    suspect, error, renewed = (int(shared[f]) for f in (Field.SUSPECT, Field.SYNC_ERROR, Field.RENEWED))
    reason = os.strerror(error) if error > 0 else "an unknown error"
    if suspect:
        return (
            f"segment {suspect} could not be synced: {reason}; what is not synced waits to be written into a "
            "fresh file, and is not delivered before"
        )
    if error:
        return f"the disk refuses what the spool asks of it: {reason}"
    unread = _text(path, Field.UNREAD, owners) if list_workers(shared) else None
    if renewed and not unread:
        rewritten = agreeing(renewed, "segment", "was", "were")
        return f"syncs have failed since the start: {rewritten} rewritten; see to the disk"
    return unread


def _strangers(layout: Layout) -> str | None:
    """Files that have the name of a segment and are none, in words."""
    if not (found := layout.list_strangers()):
        return None
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return (
        f"{found[0]}{more} is called as a segment, and is no file: it is passed over; move it away, or the "
        "next start moves it to quarantine/"
    )


def list_workers(shared: np.ndarray) -> list[WorkerView]:
    """The workers on the shared state, if the supervisor lives."""
    if not _alive(int(shared[Field.WORKERS])):
        return []
    rows = (shared[Field.WORKERS + WORKER_WORDS * row :][: FORKED + 1].tolist() for row in range(len(ROLES)))
    workers = [_worker(role, *row) for role, row in zip(ROLES, rows, strict=True)]
    return [worker for worker in workers if worker.pid or worker.role not in _OPTIONAL]


def _worker(role: str, pid: int, restarts: int, beat: int, forked: int) -> WorkerView:
    """`beat`, `forked`: when its loop last turned, and when it was started, ns of CLOCK_MONOTONIC, or 0."""
    since = beat or forked
    silent = (time.monotonic_ns() - since) / 1e9 if since else 0.0
    patience = PATIENCE.silent + (PATIENCE.look if role == ROLES[0] else 0.0) if beat else PATIENCE.begin
    if silent < patience:
        return WorkerView(role, pid, restarts, _alive(pid))
    return WorkerView(role, pid, restarts, _alive(pid), silent, waits_for_disk(pid))


def _lent(layout: Layout, boot: bytes) -> LentView | None:
    """The job that delivers."""
    if found := lent_to(layout, boot):
        job, grant = found
        pid, host = (job.pid, job.host) if job else (0, "")
        return LentView(pid, host, utc(grant.since_ns), grant.end)
    return None


def _acknowledgements(shared: np.ndarray) -> AckView:
    """In the order of the acknowledger's words."""
    return AckView(*shared[Field.ACK :][:5].tolist())


def _kafka(shared: np.ndarray) -> KafkaView:
    """In the order of the Kafka worker's words."""
    return KafkaView(*shared[Field.KAFKA :][:5].tolist())


def _alive(pid: int) -> bool:
    try:
        return b"bruce" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _text(path: Path, field: Field, owners: Owners) -> str | None:
    """The text that the delivery worker wrote there; None if it is empty."""
    for _ in range(_LOOKS):
        shared = read_shared_state(path, owners)
        text = None if shared is None else read_text(shared, field)
        if text is not None:
            return text or None
    return None


def _brokers(shared: np.ndarray) -> list[BrokerView]:
    """By number; the delivery worker has them in the order in which it met them."""
    words = shared[Field.BROKERS + 1 :][: BROKER_WORDS * int(shared[Field.BROKERS])]
    rows = words.reshape(-1, BROKER_WORDS).tolist()
    times = shared[Field.BROKER_TIMES :][: BROKER_TIME_WORDS * len(rows)].reshape(-1, 3, 4).tolist()
    found = [
        BrokerView(number, State(state).name.lower(), *rest, *(_times(*row) for row in three))
        for (number, state, *rest), three in zip(rows, times, strict=True)
    ]
    return sorted(found, key=lambda broker: broker.id)


def _times(count: int, total: int, median: int, p99: int) -> TimesView:
    """Of µs; a quantile below 0 is none."""
    quantiles = (None if value < 0 else value / 1e6 for value in (median, p99))
    return TimesView(count, total / 1e6, *quantiles)


def list_full(shared: np.ndarray) -> Iterator[FullView]:
    """The spool, or topics by quota, that have no room, and since when; as the keeper's words say."""
    why = int(shared[Field.FULL])
    if why:
        what, because = _WHAT[Full(why)]
        then = _THEN[WhenFull(int(shared[Field.WHEN_FULL]))]
        since = utc(int(shared[Field.FULL_SINCE_NS]))
        yield FullView(
            what,
            None,
            since,
            f"the spool is full since {since}: {because}; {then} when the segment in use is full",
        )
    yield from _quotas(shared)


def _quotas(shared: np.ndarray) -> Iterator[FullView]:
    for number in range(int(shared[Field.QUOTA_TOPICS])):
        row = shared[row_at(number) :][:QUOTA_ROW]
        if not row[OVER]:
            continue
        topic = row[NAME:].tobytes()[: int(row[NAME_BYTES])].decode(errors="replace")
        shown = clipped(topic)
        since, held, allowed = utc(int(row[SINCE])), int(row[BACKLOG]), int(row[ALLOWED])
        yield FullView(
            "quota",
            topic,
            since,
            f"topic {shown} has used up its quota since {since}: {size_in_words(held)} of it are "
            f"undelivered, its quota is {size_in_words(allowed)}; new messages of it are discarded",
        )


def status_line(shared: np.ndarray) -> str:
    """The first trouble in one line; without one, the messages since the shared state was made."""
    if trouble := read_text(shared, Field.TROUBLE):
        return trouble
    if full := next(list_full(shared), None):
        return full.sentence
    if awaited := read_text(shared, Field.AWAITED):
        return awaited
    if shared[Field.PAUSED]:
        return "the intake is stopped by an operator: senders wait"
    delivered, discarded = int(shared[Field.DELIVERED]), int(shared[Field.DISCARDED])
    return f"messages are taken in; {delivered:,} delivered, {discarded:,} discarded"
