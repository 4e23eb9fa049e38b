"""Parts of a job that delivers exactly once, without Spark; each a process that stops at a given point.

    python -m tests.real_kafka.transactional_task SPOOL SERVERS TOPIC driver
    python -m tests.real_kafka.transactional_task SPOOL SERVERS TOPIC task NUMBER EPOCH WHEN

The driver takes delivery, prints the epoch of its transactional tasks, and holds them until it is killed. The
task carries messages whose numbers give NUMBER, modulo PARTITIONS, and prints what came of it. `before` it
begins, or with a transaction `open`, it stops by SIGSTOP, and then goes on; once all is `committed` it dies
by SIGKILL, without having written it down. Else, `now`, nothing keeps it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from dispatch.options import DispatchOptions
from dispatch.transactions.exactly_once import Phase
from dispatch.transactions.progress import task_transactional_id
from pipeline.delivery.backlog import open_runs
from pipeline.delivery.carrier import Carrier, TransactionalTask
from pipeline.delivery.choice import Routes
from pipeline.delivery.drain import delivery_from
from pipeline.delivery.lease import delivery_lease
from pipeline.delivery.route_plan import read_segments
from pipeline.delivery.task_book import TaskBook
from pipeline.errors import JobFailed
from pipeline.source.columns import to_batch
from spool.index.identity import read_identity
from spool.layout import Layout
from tests.daemon import ROOT

PARTITIONS = 6
MESSAGES = 600


def start(environ: Mapping[str, str], spool: Path, *words: object) -> subprocess.Popen[str]:
    """Start one of them."""
    command = [sys.executable, "-m", "tests.real_kafka.transactional_task", str(spool), *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=dict(environ), stdin=pipe, stdout=pipe, text=True)


def _say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def _drive(layout: Layout, options: DispatchOptions, topic: str) -> None:
    with delivery_lease(layout) as lease:
        open_runs(lease, options)
        routes = Routes({topic: np.ones(PARTITIONS, np.bool_)})
        _say(delivery_from([lease], options, "job", routes).epochs[lease.spool.hex()])
        sys.stdin.read()


def _carry(layout: Layout, options: DispatchOptions, topic: str, number: int, epoch: int, when: str) -> None:
    numbers = np.arange(number, MESSAGES, PARTITIONS)
    columns = {
        "sequence": pa.array(numbers),
        "topic": pa.array([topic] * len(numbers)),
        "value": pa.array([b"%d:%d:" % (n % 12, n) for n in numbers.tolist()]),
    }
    if when == "before":
        os.kill(os.getpid(), signal.SIGSTOP)
    spool = read_identity(layout)
    book = TaskBook(read_segments(layout), epoch)
    carrier = Carrier(options, spool, task=TransactionalTask(task_transactional_id(spool, number), book))
    try:
        carrier.load(to_batch(columns, carrier.topics), (numbers % PARTITIONS).astype(np.int32))
        while when == "open" and carrier._pool.phase is not Phase.OPEN:  # type: ignore[attr-defined]
            carrier.step()
        if when == "open":
            os.kill(os.getpid(), signal.SIGSTOP)
        carrier.finish()
        if when == "committed":
            os.kill(os.getpid(), signal.SIGKILL)
        carrier.close_task()
        _say(f"settled {len(carrier.settled().sequences)}")
    except JobFailed as error:
        _say(f"refused: {error}")
    finally:
        carrier.close()


def _main(spool: str, servers: str, topic: str, role: str, *rest: str) -> None:
    options = DispatchOptions(kafka={"bootstrap.servers": servers}, mode="exactly_once")
    if role == "driver":
        _drive(Layout(Path(spool)), options, topic)
    else:
        number, epoch, when = rest
        _carry(Layout(Path(spool)), options, topic, int(number), int(epoch), when)


if __name__ == "__main__":
    _main(*sys.argv[1:])
