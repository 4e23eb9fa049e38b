"""Where `status` gets its figures: the spool's files, and the shared page if a daemon lives."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cli.room import list_full, utc
from dispatch.brokers import State
from ingest.connections import read_connections
from ingest.inputs import DATAGRAM
from ingest.lines import lines_path, read_lines
from ingest.staging import SUFFIX, read_staging
from spool.account import Account, take_account
from spool.disk import allocated_bytes
from spool.frame import SEQUENCE
from spool.histogram import read_by_input
from spool.identity import read_identity
from spool.index import read_committed
from spool.layout import Layout
from spool.lease import lent_to
from spool.lock import is_held, read_holder
from spool.own import Owners, believed
from spool.page import (
    BROKER_TIME_WORDS,
    BROKER_WORDS,
    FORMAT,
    WORKER_WORDS,
    Field,
    other_format,
    read_page,
    read_text,
)
from spool.recovery import boot_id
from spool.runtime import find_page
from spool.senders import UNKNOWN, read_senders
from spool.unadopted import count_unadopted
from spool.wire import reason_name
from status.snapshot import (
    AckView,
    BrokerView,
    ConnectionsView,
    InputView,
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
ROLES = ("supervisor", "ingest", "keeper", "delivery", "ack", "status", "stream")
"""In the order of the page."""
_OPTIONAL = ("ack", "status", "stream")
"""They are there if they were asked for."""


def take_snapshot(directory: Path) -> Snapshot:
    """Look at a spool, whether or not its daemon lives. Raises NoSpool, BadSpool."""
    layout = Layout(directory)
    spool = read_identity(layout)
    boot = boot_id()
    unadopted = count_unadopted(layout)
    # Before all that was received: so they never add up to more.
    senders = list_senders(layout)
    account = account_of(layout)
    path, owners = find_page(directory, spool, boot), believed(directory)
    page = read_page(path, owners)
    workers = [] if page is None else list_workers(page)
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
            delivered=min(account.floor, written),
        ),
        received=account.received,
        delivered=account.delivered,
        discarded={reason_name(reason): count for reason, count in account.by_reason().items()},
        backlog=account.backlog,
        full=list(list_full(page)) if page is not None and workers else [],
        disk=(_disk(page, path, owners) if page is not None else None) or _strangers(layout),
        workers=workers,
        brokers=_brokers(page) if page is not None and workers else [],
        trouble=_text(path, Field.TROUBLE, owners) if workers else None,
        dead_lettered=account.dead_lettered,
        acknowledgements=_acknowledgements(page) if page is not None and "ack" in roles else None,
        lent=_lent(layout, boot),
        unadopted=unadopted,
        held=page is not None and bool(workers) and bool(page[Field.HELD]),
        other_release=find_other_release(layout, path),
        senders=senders,
        inputs=list(_inputs(page, roles)) if page is not None and workers else [],
    )


def find_other_release(layout: Layout, page: Path) -> OtherRelease | None:
    """The daemon that has this spool and whose page is of another format; None where there is none.

    Behind a daemon that was killed its page stays: the lock tells whether one lives.
    """
    name = other_format(page, believed(layout.directory))
    if name is None or not is_held(layout.lock):
        return None
    pid = read_holder(layout.lock).partition(" ")[0]
    return OtherRelease(int(pid) if pid.isdigit() else 0, name, FORMAT.decode())


def _inputs(page: np.ndarray, roles: set[str]) -> Iterator[InputView]:
    """Those that take messages, with what the page has counted."""
    messages = read_by_input(page[Field.SIZES :])
    yield InputView(DATAGRAM, *messages[DATAGRAM], None)
    if "stream" in roles:
        for name, found in read_connections(page[Field.CONNECTIONS :]).items():
            still = found.accepted - sum(found.closed.values())
            view = ConnectionsView(found.accepted, still, found.closed, found.errors)
            yield InputView(name, *messages[name], view)


def list_senders(layout: Layout) -> list[SenderView]:
    """Who sent how much. Raises OSError."""
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


def account_of(layout: Layout) -> Account:
    """The books of a spool, what waits in staging included. Raises NoSpool, BadSpool."""
    spool, boot = read_identity(layout), boot_id()
    path = find_page(layout.directory, spool, boot).with_suffix(SUFFIX)
    owners = believed(layout.directory)
    return take_account(layout, lambda: read_staging(path, owners) + read_lines(lines_path(path), owners))


def _synced(layout: Layout, written: int) -> int:
    """The committed watermark; without an index everything that is written counts."""
    committed = read_committed(layout.index)
    return int(committed[1][SEQUENCE]) if committed else written


def _disk(page: np.ndarray, path: Path, owners: Owners) -> str | None:
    """What the keeper met with, or the deliverer, in words."""
    suspect, error, renewed = (int(page[f]) for f in (Field.SUSPECT, Field.SYNC_ERROR, Field.RENEWED))
    reason = os.strerror(error) if error > 0 else "an unknown error"
    if suspect:
        return (
            f"segment {suspect} could not be synced: {reason}; what is not synced waits to be written into a "
            "fresh file, and is not delivered before"
        )
    if error:
        return f"the disk refuses what the spool asks of it: {reason}"
    unread = _text(path, Field.UNREAD, owners) if list_workers(page) else None
    if renewed and not unread:
        return f"syncs have failed since the start: {renewed} segments were written anew; see to the disk"
    return unread


def _strangers(layout: Layout) -> str | None:
    """What stands where segments should, in words."""
    if not (found := layout.list_strangers()):
        return None
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return (
        f"{found[0]}{more} is called as a segment, and is no file: it is passed over; move it away, or the "
        "next start moves it to quarantine/"
    )


def list_workers(page: np.ndarray) -> list[WorkerView]:
    """The workers on the page, if the supervisor lives."""
    if not _alive(int(page[Field.WORKERS])):
        return []
    rows = (page[Field.WORKERS + WORKER_WORDS * row :][:2].tolist() for row in range(len(ROLES)))
    workers = [
        WorkerView(role, pid, restarts, _alive(pid))
        for role, (pid, restarts) in zip(ROLES, rows, strict=True)
    ]
    return [worker for worker in workers if worker.pid or worker.role not in _OPTIONAL]


def _lent(layout: Layout, boot: bytes) -> LentView | None:
    """The job that delivers."""
    if found := lent_to(layout, boot):
        job, grant = found
        return LentView(job.pid, job.host, utc(grant.since_ns), grant.end)
    return None


def _acknowledgements(page: np.ndarray) -> AckView:
    """In the order of the acknowledger's words."""
    return AckView(*page[Field.ACK :][:5].tolist())


def _alive(pid: int) -> bool:
    try:
        return b"bruce" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _text(path: Path, field: Field, owners: Owners) -> str | None:
    """What the delivery worker says there; None for nothing."""
    for _ in range(_LOOKS):
        page = read_page(path, owners)
        text = None if page is None else read_text(page, field)
        if text is not None:
            return text or None
    return None


def _brokers(page: np.ndarray) -> list[BrokerView]:
    words = page[Field.BROKERS + 1 :][: BROKER_WORDS * int(page[Field.BROKERS])]
    rows = words.reshape(-1, BROKER_WORDS).tolist()
    times = page[Field.BROKER_TIMES :][: BROKER_TIME_WORDS * len(rows)].reshape(-1, 3, 4).tolist()
    return [
        BrokerView(number, State(state).name.lower(), *rest, *(_times(*row) for row in three))
        for (number, state, *rest), three in zip(rows, times, strict=True)
    ]


def _times(count: int, total: int, median: int, p99: int) -> TimesView:
    """Of µs; a quantile below 0 is none."""
    quantiles = (None if value < 0 else value / 1e6 for value in (median, p99))
    return TimesView(count, total / 1e6, *quantiles)
