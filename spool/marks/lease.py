"""The lease of delivery: how a job asks to deliver from a spool, and how the owner of `delivery/` lends it.

    delivery/lease   written by the job, in place; a job that asks for nothing leaves no such bytes
        lease := holder:32 magic:"bruceask" version:u32=1 pid:u32 pids:u64 boot:16 bytes machine:16 bytes
                 token:16 bytes since_ns:u64 beat:u64 host:64 bytes check:u64
    delivery/grant   written by the owner, each time whole
        grant := magic:"brucelnt" version:u32=1 state:u32 token:16 bytes since_ns:u64 end:u64 check:u64

Little-endian; `check` is the xxh3 of the bytes before it, from the magic on. spool.storage.lock writes
`holder`. `boot` is the boot id of the job's host, `machine` its machine id (zeros: it has none), `pids` the
namespace of `pid`. `state` is 1 while delivery is lent, and 0 when the owner has taken it back; `end` is the
sequence number up to which the log was committed at that time. Times are in ns since the epoch.

A job holds a flock on the lease, and increments `beat`. The owner sees at once that a job is dead if it was
started on this host and no process holds the flock, in this boot or, after a power loss, in another; or if
its pid does not exist, and only a child has the flock. Otherwise the job is dead when the beat stops for
LEASE_S: it may be on another host, or frozen. Each job chooses a token, and a token whose lease was taken
back is never lent to again: a job that wakes up sees this in the grant. The outcomes of its tasks are in
`delivery/outcomes/TOKEN/` (spool.marks.outcome_file).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spool.errors import NotAFile
from spool.layout import Layout
from spool.native.digest import digest
from spool.storage.disk import make_directory, open_to_write, read_bytes, read_text, write_at, write_file
from spool.storage.lock import HOLDER_BYTES, Lock, is_held

RENEW_S = 1.0
"""Between two beats."""
LEASE_S = 30.0
"""A job whose beat stops for this long has lost the lease; no busy host keeps a thread waiting like that."""
_ASK_MAGIC, _GRANT_MAGIC, _VERSION = b"bruceask", b"brucelnt", 1
_ASK = struct.Struct("<8sIIQ16s16s16sQQ64s")
_GRANT = struct.Struct("<8sII16sQQ")
_CHECK_BYTES = 8
_MACHINE_ID = Path("/etc/machine-id")
_LOOKS, _PAUSE_S = 5, 0.002
"""To read a lease request that the job may be writing."""


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """A job that asks for delivery, or has it."""

    pid: int
    pids: int
    """The namespace of `pid`."""
    boot: bytes
    machine: bytes
    """16 bytes; zeros when the host has no machine id."""
    token: str
    """32 hexadecimal digits."""
    since_ns: int
    beat: int
    host: str


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """The owner's last answer."""

    token: str
    lent: bool
    """False: taken back, for good."""
    since_ns: int
    end: int
    """Messages below this sequence number were committed when it was lent."""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _checked(data: bytes) -> bytes:
    return data + digest(data).to_bytes(_CHECK_BYTES, "little")


def _read(path: Path, shape: struct.Struct, magic: bytes, at: int = 0) -> tuple[object, ...] | None:
    """The fields behind magic and version; None without a file, or when it holds something else."""
    try:
        data = read_bytes(path, at + shape.size + _CHECK_BYTES)[at:][: shape.size + _CHECK_BYTES]
    except (FileNotFoundError, PermissionError, NotAFile):
        return None
    if data != _checked(data[: shape.size]) or data[: len(magic)] != magic:
        return None
    found = shape.unpack(data[: shape.size])
    return found[2:] if found[1] == _VERSION else None


def read_ask(layout: Layout) -> LeaseRequest | None:
    """The job that asks for delivery; it may be dead. None when no job asks."""
    for _ in range(_LOOKS):
        found = _read(layout.lease, _ASK, _ASK_MAGIC, HOLDER_BYTES)
        if found is not None or not _size(layout.lease):
            break
        time.sleep(_PAUSE_S)
    if found is None:
        return None
    *rest, token, since_ns, beat, host = found
    pid, pids, boot, machine = rest
    name = host.rstrip(b"\0").decode(errors="replace")  # type: ignore[attr-defined]
    return LeaseRequest(pid, pids, boot, machine, token.hex(), since_ns, beat, name)  # type: ignore[arg-type, attr-defined]


def read_grant(layout: Layout) -> LeaseGrant | None:
    """The owner's last answer; None when there is none, or it cannot be read."""
    found = _read(layout.grant, _GRANT, _GRANT_MAGIC)
    if found is None:
        return None
    state, token, since_ns, end = found
    return LeaseGrant(token.hex(), state == 1, since_ns, end)  # type: ignore[attr-defined, arg-type]


def write_grant(layout: Layout, grant: LeaseGrant) -> None:
    """Write the owner's answer. Raises OSError."""
    row = _GRANT.pack(
        _GRANT_MAGIC, _VERSION, int(grant.lent), bytes.fromhex(grant.token), grant.since_ns, grant.end
    )
    write_file(layout.grant, _checked(row))


def lent_to(layout: Layout, boot: bytes) -> tuple[LeaseRequest | None, LeaseGrant] | None:
    """The job that delivers, and its grant, as far as one look shows; `boot`: of this host.

    (None, grant) for a user who may read the grant and not the lease, unless nothing holds the lease.
    """
    grant, ask = read_grant(layout), read_ask(layout)
    if grant is None or not grant.lent:
        return None
    if ask is None and _is_hidden(layout):
        return None if is_held(layout.lease) is False else (None, grant)
    if ask is None or grant.token != ask.token:
        return None
    return None if _is_gone(layout, ask, boot) else (ask, grant)


def _is_hidden(layout: Layout) -> bool:
    """Whether there is a lease that this user may not read."""
    return layout.lease.is_file() and not os.access(layout.lease, os.R_OK)


def machine_id() -> bytes:
    """The id of this host through all its boots; zeros when it has none."""
    try:
        return bytes.fromhex(read_text(_MACHINE_ID, 64, links=True).strip()).ljust(16, b"\0")[:16]
    except (OSError, ValueError):
        return bytes(16)


def _host_name() -> str:
    return socket.gethostname().encode()[:64].decode(errors="replace")


def _namespace() -> int:
    """The pid namespace of this process."""
    return os.stat("/proc/self/ns/pid").st_ino


def _is_gone(layout: Layout, ask: LeaseRequest, boot: bytes) -> bool:
    """Whether it is certain that a job is dead; `boot`: of this host."""
    same_boot = ask.boot == boot
    known = any(ask.machine) and (ask.machine, ask.host) == (machine_id(), _host_name())
    if not (same_boot or known):
        # The job runs on another host, whose locks may not be visible here.
        return False
    if is_held(layout.lease) is False:
        return True
    return same_boot and ask.pids == _namespace() and not _exists(ask.pid)


def _exists(pid: int) -> bool:
    """Whether there is a process with this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class Claim:
    """The job's side: asks for delivery from its creation until `release`, or until the process dies."""

    def __init__(self, layout: Layout, boot: bytes, *, renew_s: float = RENEW_S) -> None:
        """`renew_s`: between two signs of life.

        Raises SpoolBusy when another job asks for this spool, or has it; OSError.
        """
        self._renew_s = renew_s
        self._layout, self._boot = layout, boot
        make_directory(layout.delivery)
        self._lock = Lock(layout.lease, "delivering by a job")
        self._since_ns, self._beat = time.time_ns(), 0
        self.token = secrets.token_hex(16)
        self._renew()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(self._renew_s):
            # A job that cannot write its beat loses the lease, and sees that in the grant.
            with contextlib.suppress(OSError):
                self._renew()

    def _renew(self) -> None:
        self._beat += 1
        row = _ASK.pack(
            _ASK_MAGIC,
            _VERSION,
            os.getpid(),
            _namespace(),
            self._boot,
            machine_id(),
            bytes.fromhex(self.token),
            self._since_ns,
            self._beat,
            _host_name().encode(),
        )
        # Open the file again each time: on a network filesystem other hosts see a write once the file is
        # closed.
        fd = open_to_write(self._layout.lease)
        try:
            write_at(fd, _checked(row), HOLDER_BYTES)
        finally:
            os.close(fd)

    def grant(self) -> LeaseGrant | None:
        """The owner's grant; None before it lends delivery, and when it has taken it back."""
        grant = read_grant(self._layout)
        return grant if grant and grant.token == self.token and grant.lent else None

    def release(self) -> None:
        """Withdraw the request."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(FileNotFoundError, NotAFile):
            fd = open_to_write(self._layout.lease)
            os.ftruncate(fd, 0)
            os.close(fd)
        self._lock.release()


class Claims:
    """The owner's side: which job asks, and whether it is alive."""

    def __init__(
        self,
        layout: Layout,
        boot: bytes,
        *,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layout, self._boot, self._lease_s, self._clock = layout, boot, lease_s, clock
        self._seen = ("", 0)
        self._moved_at = 0.0
        """When the beat was last seen to have moved."""
        self._refused: set[str] = set()

    def current(self) -> LeaseRequest | None:
        """The job that is to deliver; None when none asks, or it is dead, or has lost the lease before."""
        ask = read_ask(self._layout)
        if ask is None:
            return None
        now = self._clock()
        if (ask.token, ask.beat) != self._seen:
            self._seen, self._moved_at = (ask.token, ask.beat), now
        if _is_gone(self._layout, ask, self._boot):
            return None
        grant = read_grant(self._layout)
        ended = grant and grant.token == ask.token and not grant.lent
        if ended or ask.token in self._refused:
            return None
        return ask if now - self._moved_at <= self._lease_s else None

    def refuse(self, token: str) -> None:
        """Ignore this job from now on, even if a full disk does not take the answer that ends its lease."""
        self._refused.add(token)
