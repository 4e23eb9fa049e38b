"""Handing datagrams to a daemon, in order: through its datagram socket, and what is larger by stream."""

from __future__ import annotations

import errno
import math
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from bruce_client.deadline import Deadline
from bruce_client.errors import ClientError
from bruce_client.message import MAX_DATAGRAM_BYTES
from bruce_client.streams import deliver
from bruce_client.unread import unread_bytes
from cli.errors import BadArgument, CliError, NobodyListens

Address = str | tuple[str, int]
"""Of a stream: a path, or host and port."""
STORED_S = 60.0
"""By stream a message is sent when it is stored: a daemon that does not come to it is waited for so long."""
_LOOK_S = 0.001


def send_all(
    path: Path, datagrams: Iterable[bytes], stream: Address | None = None, *, until: float = math.inf
) -> int:
    """Send each datagram, and wait for room where there is none; how many were sent.

    `stream`: where those go that are too large for the socket at `path`. `until`: an instant of
    time.monotonic() at which it ends. Raises NobodyListens; BadArgument for one that is too large; CliError.
    """
    sent = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.connect(str(path))
        except OSError as error:
            raise _unreachable(path, error, 0) from None
        for datagram in datagrams:
            try:
                if len(datagram) <= MAX_DATAGRAM_BYTES:
                    taken = _send(sender, datagram, until)
                else:
                    taken = _send_large(sender, datagram, stream, until)
            except OSError as error:
                raise _unreachable(path, error, sent) from None
            if not taken:
                break
            sent += 1
    return sent


def _send(sender: socket.socket, datagram: bytes, until: float) -> bool:
    """Whether there was room in time. Raises OSError."""
    if until < math.inf:
        left = until - time.monotonic()
        if left <= 0:
            return False
        sender.settimeout(left)
    try:
        sender.send(datagram)
    except TimeoutError:
        return False
    return True


def _send_large(sender: socket.socket, datagram: bytes, stream: Address | None, until: float) -> bool:
    """Whether it was stored in time. Raises BadArgument, CliError."""
    if stream is None:
        raise BadArgument(
            f"the message takes {len(datagram)} bytes; a datagram has {MAX_DATAGRAM_BYTES}, and no "
            "[ingest] stream_socket or tcp_port is configured"
        )
    # What goes through another socket does not overtake.
    while unread_bytes(sender) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    left = until - time.monotonic()
    if left <= 0:
        return False
    try:
        deliver(datagram, stream, Deadline(min(left, STORED_S)))
    except ClientError as error:
        if time.monotonic() >= until:
            return False
        raise CliError(str(error)) from None
    return True


def _unreachable(path: Path, error: OSError, sent: int) -> CliError:
    if error.errno == errno.EMSGSIZE:
        return BadArgument("the message is larger than a datagram may be on this host")
    after = f" after {sent} messages" if sent else ""
    reason = error.strerror or str(error)
    return NobodyListens(f"cannot reach bruce on {path}{after}: {reason}; is `bruce run` up?", sent)
