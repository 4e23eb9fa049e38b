"""Datagrams that the kernel took from the socket and could not copy to us: they are gone, and are counted.

recvmmsg takes a datagram from the queue before it copies it. When it cannot have a page of the target then,
it says EFAULT (behind datagrams that it could copy: at the next call), and the datagram is freed. So each
EFAULT is one datagram. Pages of staging are reserved before anything is received into them: a full tmpfs is
no cause, and no process punches the first receive buffer. What is left is a page that was swapped out, and
finds no memory on its way back, be it the host's or a cgroup's. So the supervisor locks the overflow of the
first buffer (Staging.lock_overflow), once for all workers; each worker locks headers, slots and control
buffers. The reserve is not locked: it is allocated just before the guard receives into it.

What remains: where RLIMIT_MEMLOCK allows less than the overflow takes, a large datagram in a slot behind
what is locked can be lost on a host that swaps and has no memory. The thread that has the socket counts it
in the turn (FAULTS), and the worker stores the count in the ledger; a SIGKILL between the two takes the
count along.
"""

from __future__ import annotations

import errno
import logging
import time

from ingest.turn import FAULTS, Turn
from spool.kernel import call, kernel, load_acquire, load_u32, publish_i64
from spool.ledger import Ledger, add
from spool.scan import digest_address
from spool.wire import Reason

log = logging.getLogger("bruce.ingest")

_EFAULT = errno.EFAULT


@kernel
def note_fault(turn: int, error: int) -> bool:
    """Count in the turn if errno, whose location function is at address `error`, is EFAULT: whether it is."""
    if load_u32(call(error)) != _EFAULT:
        return False
    publish_i64(turn + FAULTS, load_acquire(turn + FAULTS) + 1)
    return True


class Faults:
    """Those that a worker and its guard have met."""

    def __init__(self, turn: Turn) -> None:
        self._turn, self._counted = turn, 0

    def count(self, ledger: Ledger, burst: int) -> bool:
        """Count new ones in the ledger, as this burst, which no datagram is in; False without any."""
        lost = self._turn.load(FAULTS) - self._counted
        if not lost:
            return False
        self._counted += lost
        log.error(
            "the kernel had no memory for %d datagrams that it had taken from the socket: they are lost, and "
            "counted as truncated; give this host memory, or raise RLIMIT_MEMLOCK so that staging is locked",
            lost,
        )
        add(ledger.begin(), 0, 0, int(Reason.TRUNCATED), time.time_ns(), digest_address(), lost)
        ledger.commit(burst)
        return True


def compile_kernels() -> None:
    """Compile, or load from the cache."""
    turn = Turn()
    turn.publish(FAULTS, turn.load(FAULTS))
