"""How much of what was sent on a UNIX socket its reader has not read."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios

_INT = struct.Struct("i")
_NOTHING = _INT.pack(0)


def unread_bytes(sock: socket.socket) -> int:
    """Bytes of the kernel's memory, more than those of the messages; 0 where the kernel does not tell.

    For a UNIX socket SIOCOUTQ (the same number as TIOCOUTQ) is what the sender's buffers hold, and they are
    freed when the reader has them; or when it dies.
    """
    try:
        return int(_INT.unpack(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, _NOTHING))[0])
    except OSError:
        return 0
