"""Waiting until a spool is empty: a daemon's work is watched; without a daemon the work is done here."""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack
from pathlib import Path

from cli.config import EMBEDDED, Config
from cli.drain_alone import Alone
from cli.drain_watch import Watch
from cli.drained import Drained
from cli.errors import BadArgument
from cli.progress import Show
from cli.snapshot import list_workers, take_snapshot
from dispatch.client import check
from ingest.hold import Hold
from router.partition import Partitioners
from spool.errors import SpoolBusy
from spool.identity import read_identity
from spool.layout import Layout
from spool.lock import Lock, read_holder
from spool.own import believed
from spool.page import read_page
from spool.recovery import OpenSpool, boot_id, open_spool
from spool.runtime import page_path, runtime_of

_DRAINING = "(brucectl drain)"


def drain(
    config: Config,
    show: Show,
    timeout_s: float | None,
    topics: frozenset[bytes] = frozenset(),
    *,
    stop_intake: bool = False,
) -> Drained:
    """Wait until everything is delivered, or the time is over. `topics`: only theirs; none: all.

    `stop_intake`: a daemon receives nothing meanwhile, and what it had received until then counts, too.
    Raises NoSpool, BadArgument when only a daemon could deliver, NobodyListens when it ends meanwhile,
    SpoolBusy when another drain is at it.
    """
    started = time.monotonic()
    deadline = started + timeout_s if timeout_s is not None else float("inf")
    drained = _drain(config, show, deadline, topics, stop_intake=stop_intake)
    # To find out who delivers takes a while, too.
    return dataclasses.replace(drained, seconds=time.monotonic() - started)


def _drain(
    config: Config, show: Show, deadline: float, topics: frozenset[bytes], *, stop_intake: bool
) -> Drained:
    layout = Layout(config.spool.directory)
    spool = read_identity(layout)
    before = take_snapshot(layout.directory)
    try:
        own = _own(config)
    except SpoolBusy:
        _refuse_second(layout)
        with ExitStack() as stack:
            page = _page_of_daemon(layout, spool)
            hold = stack.enter_context(Hold(layout, page)) if stop_intake else None
            return Watch(layout, show, deadline, topics, hold).run(before)
    try:
        _refuse_copy(layout, spool)
        return Alone(config, own, show, deadline, topics).run()
    finally:
        own.lock.release()


def _own(config: Config) -> OpenSpool:
    """Take the daemon's place. Raises SpoolBusy when there is one."""
    if config.dispatch.kafka.get("bootstrap.servers") == EMBEDDED:
        Lock(Layout(config.spool.directory).lock, "draining").release()
        raise BadArgument(
            "the embedded Kafka lives and dies with `bruce run`: start that, "
            'or name brokers in [kafka] "bootstrap.servers"'
        )
    Partitioners(config.partitioners)
    check(config.dispatch)
    return open_spool(config.spool, _DRAINING)


def _refuse_second(layout: Layout) -> None:
    """Raises SpoolBusy when it is no daemon that has the spool."""
    if (holder := read_holder(layout.lock)).endswith(_DRAINING):
        raise SpoolBusy(f"process {holder} drains {layout.directory} already: wait for it")


def _refuse_copy(layout: Layout, spool: bytes) -> None:
    """Raises SpoolBusy beside the daemon of the original, whose page is found by the spool's identity."""
    page = read_page(_page_of_daemon(layout, spool), believed(layout.directory))
    if page is not None and (workers := list_workers(page)):
        raise SpoolBusy(
            f"{layout.directory} is a copy of a spool whose daemon lives on this host (process "
            f"{workers[0].pid}), which delivers the same: stop that first, or drain the original"
        )


def _page_of_daemon(layout: Layout, spool: bytes) -> Path:
    """That of the original, for a copy too."""
    boot = boot_id()
    return page_path(runtime_of(layout.directory, spool, boot), spool, boot)
