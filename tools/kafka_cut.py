"""Cutting a broker off: every packet that comes for its port is dropped, as by a cable that is pulled.

Nobody is told: no answer, no reset, no end of the connection. A filter that keeps nothing is attached to the
broker's own sockets, connections and listening one alike, through copies of their descriptors (pidfd_getfd:
Linux 5.6, as root or as whoever may trace the broker). No namespace, no firewall, nobody else's packets.
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
    """Drop what comes for this port of a process; how many sockets that are. Raises KafkaError."""
    # struct sock_filter: RET of the constant 0, which keeps no byte.
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    filters = struct.pack("HxxxxxxQ", 1, ctypes.addressof(program))
    return _on_each(pid, port, _SO_ATTACH_FILTER, filters)


def mend(pid: int, port: int) -> int:
    """Let packets through again; for how many sockets. Raises KafkaError."""
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
                # It may have been closed since it was listed, and its number be another's.
                if copy >= 0 and stat.S_ISSOCK(os.fstat(copy).st_mode):
                    yield socket.socket(fileno=copy)
                elif copy >= 0:
                    os.close(copy)
    finally:
        os.close(process)
