"""The host: what the kernel lets bruce have, and its clock."""

from __future__ import annotations

import ctypes
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from cli.doctor.finding import Finding, Level
from ingest.bank import OVERFLOW_BYTES, overflow_at
from spool.format import MAX_BURST
from spool.runtime import memory

QUEUE_LENGTH = Path("/proc/sys/net/unix/max_dgram_qlen")
ENOUGH_QUEUED = 512
"""A burst of the intake."""
MEMORY_BYTES = overflow_at(MAX_BURST) + MAX_BURST * OVERFLOW_BYTES
"""What staging reserves of its tmpfs."""
LOCKED_BYTES = MEMORY_BYTES
"""Staging locks all of it in memory."""
UNSYNCHRONISED = 5
"""TIME_ERROR of adjtimex(2): nobody keeps the clock."""
_CAP_IPC_LOCK = 1 << 14
_UNLIMITED = "unlimited"
_MIB = 1 << 20


def look(pid: int | None) -> Iterator[Finding]:
    """All checks of this host. `pid`: of the ingest worker, whose limits count; None for those from here."""
    yield check_queue(read_queue_length())
    yield check_locking(*read_locking(pid))
    directory = memory()
    room = os.statvfs(directory)
    # A daemon that runs has its share already.
    yield check_memory(directory, room.f_bavail * room.f_frsize + (MEMORY_BYTES if pid else 0))
    yield check_clock(clock_state())


def read_queue_length() -> int | None:
    """Datagrams that a socket made here can queue; None when the kernel does not tell."""
    try:
        return int(QUEUE_LENGTH.read_text())
    except (OSError, ValueError):
        return None


def check_queue(length: int | None) -> Finding:
    """Whether a burst of datagrams finds room in the socket while bruce is busy, or starts again."""
    name = "socket queue"
    if length is None:
        return Finding(name, Level.UNKNOWN, f"{QUEUE_LENGTH} cannot be read")
    if length < ENOUGH_QUEUED:
        return Finding(
            name,
            Level.ADVICE,
            f"net.unix.max_dgram_qlen is {length}: a sender waits once so many datagrams are in the socket",
            f"sysctl -w net.unix.max_dgram_qlen={ENOUGH_QUEUED}, the same in /etc/sysctl.d; start bruce anew",
        )
    return Finding(name, Level.OK, f"net.unix.max_dgram_qlen is {length}")


def read_locking(pid: int | None) -> tuple[int | None, bool]:
    """(bytes that a process may lock, whether it has the right to lock more); None for any number.

    `pid`: None for this process.
    """
    try:
        process = Path("/proc", str(pid or "self"))
        limits, status = (process / "limits").read_text(), (process / "status").read_text()
    except OSError:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        return (None if soft == resource.RLIM_INFINITY else soft), False
    soft_text = re.search(r"^Max locked memory +(\S+)", limits, re.MULTILINE)
    rights = re.search(r"^CapEff:\s+([0-9a-f]+)", status, re.MULTILINE)
    told = soft_text[1] if soft_text else _UNLIMITED
    return (
        None if told == _UNLIMITED else int(told),
        bool(rights and int(rights[1], 16) & _CAP_IPC_LOCK),
    )


def check_locking(limit: int | None, privileged: bool) -> Finding:  # noqa: FBT001  (as read)
    """Whether staging stays in memory when the host swaps."""
    name = "locked memory"
    if privileged or limit is None or limit >= LOCKED_BYTES:
        return Finding(name, Level.OK, f"the {LOCKED_BYTES:,} bytes of staging can be locked in memory")
    return Finding(
        name,
        Level.ADVICE,
        f"only {limit:,} of the {LOCKED_BYTES:,} bytes of staging can be locked in memory: "
        "a host that swaps makes senders wait, and one without memory can lose large datagrams",
        "raise the limit, for systemd by LimitMEMLOCK=64M",
    )


def check_memory(directory: Path, free: int) -> Finding:
    """Whether the tmpfs has room for what staging reserves."""
    name = "staging"
    if free < MEMORY_BYTES:
        return Finding(
            name,
            Level.ADVICE,
            f"{directory} has {free // _MIB} MiB free of {MEMORY_BYTES // _MIB} MiB that staging reserves: "
            "bursts are smaller, and none are taken while the disk stands still",
            "make this tmpfs larger (for a container, --shm-size)",
        )
    return Finding(name, Level.OK, f"{directory} has room for staging")


def clock_state() -> int:
    """What adjtimex(2) says of the clock; -1 when it may not be asked."""
    unchanged = ctypes.create_string_buffer(512)  # struct timex: with modes = 0 nothing is set
    return int(ctypes.CDLL(None).adjtimex(unchanged))


def check_clock(state: int) -> Finding:
    """Whether somebody keeps the clock right: times of reception, and of Kafka's retention, go by it."""
    name = "clock"
    if state < 0:
        return Finding(name, Level.UNKNOWN, "the kernel does not say whether the clock is kept right")
    if state == UNSYNCHRONISED:
        return Finding(
            name,
            Level.ADVICE,
            "nobody keeps the clock right: times of reception, --from and --to are as wrong as it is",
            "start chronyd, ntpd or systemd-timesyncd",
        )
    return Finding(name, Level.OK, "the clock is kept right")
