"""Cut a broker off: drop every packet to its port, like a pulled cable.

Neither side is notified: no answer, no reset, no end of the connection. This attaches a filter that keeps
nothing to the broker's own sockets, connections and listeners alike, through copies of their descriptors
(pidfd_getfd: Linux 5.6, as root or as a user that may trace the broker). It needs no namespace and no
firewall, and affects no other packets.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress

from tools.kafka_install import KafkaError

_PIDFD_GETFD = 438
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_libc = ctypes.CDLL(None, use_errno=True)


def cut(pid: int, port: int) -> int:
    """Drop packets to this port of a process; returns the number of sockets. Raises KafkaError."""
    # struct sock_filter: RET of the constant 0, which keeps no byte.
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    filters = struct.pack("HxxxxxxQ", 1, ctypes.addressof(program))
    return _on_each(pid, port, _SO_ATTACH_FILTER, filters)


def mend(pid: int, port: int) -> int:
    """Let packets through again; returns the number of sockets. Raises KafkaError."""
    return _on_each(pid, port, _SO_DETACH_FILTER, bytes(4))


def _on_each(pid: int, port: int, option: int, value: bytes) -> int:
    count = 0
    for one in _sockets(pid):
        with one:
            if one.family not in (socket.AF_INET, socket.AF_INET6) or one.getsockname()[1] != port:
                continue
            count += 1
            # One without a filter has none to detach.
            with suppress(FileNotFoundError):
                one.setsockopt(socket.SOL_SOCKET, option, value)
    if not count:
        raise KafkaError(f"process {pid} has no socket at port {port}")
    return count


def _sockets(pid: int) -> Iterator[socket.socket]:
    """Copies of a process's sockets."""
    process = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                    continue
                copy = _libc.syscall(_PIDFD_GETFD, process, int(name), 0)
                if copy < 0 and ctypes.get_errno() != errno.EBADF:
                    raise KafkaError(f"process {pid} cannot be cut off: {os.strerror(ctypes.get_errno())}")
                # It may have been closed since it was listed, and its number reused.
                if copy >= 0 and stat.S_ISSOCK(os.fstat(copy).st_mode):
                    yield socket.socket(fileno=copy)
                elif copy >= 0:
                    os.close(copy)
    finally:
        os.close(process)
