"""Handing datagrams to a daemon, in order: through its datagram socket, and larger ones by stream."""

from __future__ import annotations

import errno
import math
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from bruce_client.errors import ClientError, TooLarge
from bruce_client.errors import NobodyListens as Unreached
from bruce_client.message import MAX_DATAGRAM_BYTES
from bruce_client.sockets import Deadline, deliver, unread_bytes
from cli.terminal.errors import BadArgument, CliError, NobodyListens
from spool.words import counted

Address = str | tuple[str, int]
"""Of a stream: a path, or host and port."""
STORED_S = 60.0
"""A message by stream is sent once it is stored; the time to wait for a daemon to do so."""
_LOOK_S = 0.001
_KINDS: dict[type[ClientError], type[CliError]] = {Unreached: NobodyListens, TooLarge: BadArgument}


def send_all(
    path: Path,
    datagrams: Iterable[bytes],
    stream: Address | None = None,
    *,
    most_bytes: int | None = None,
    no_stream: str = "no [ingest] stream_socket or tcp_port is configured",
    until: float = math.inf,
    stored_s: float = STORED_S,
) -> int:
    """Send each datagram, and wait for room where there is none; how many were sent.

    `stream`: where those go that are too large for the socket at `path`; `no_stream`: why there is none.
    `most_bytes`: [ingest] max_stream_message_bytes, beyond which the daemon would discard a message at each
    try. `until`: an instant of time.monotonic() at which it ends. `stored_s`: how long a message by stream
    may take to be stored. Raises NobodyListens; BadArgument for one that is too large; CliError.
    """
    sent = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.connect(str(path))
        except OSError as error:
            raise _unreachable(path, error, 0) from None
        for datagram in datagrams:
            size = len(datagram)
            try:
                if size <= MAX_DATAGRAM_BYTES:
                    taken = _send(sender, datagram, until)
                elif stream is None:
                    raise _too_large(size, f"a datagram has {MAX_DATAGRAM_BYTES}, and {no_stream}", sent)
                elif most_bytes is not None and size > most_bytes:
                    raise _too_large(size, f"[ingest] max_stream_message_bytes is {most_bytes}", sent)
                else:
                    taken = _send_large(sender, datagram, stream, until, stored_s)
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


def _send_large(
    sender: socket.socket, datagram: bytes, stream: Address, until: float, stored_s: float
) -> bool:
    """Whether it was stored in time. Raises NobodyListens, BadArgument, CliError."""
    # A message that goes through another socket must not overtake.
    while unread_bytes(sender) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    left = until - time.monotonic()
    if left <= 0:
        return False
    try:
        deliver(datagram, stream, Deadline(min(left, stored_s)))
    except ClientError as error:
        if time.monotonic() >= until:
            return False
        raise _KINDS.get(type(error), CliError)(str(error)) from None
    return True


def _too_large(size: int, limit: str, sent: int) -> BadArgument:
    before = f"; {counted(sent, 'message')} before it went out" if sent else ""
    return BadArgument(f"the message takes {size} bytes; {limit}{before}")


def _unreachable(path: Path, error: OSError, sent: int) -> CliError:
    if error.errno == errno.EMSGSIZE:
        return BadArgument("the message is larger than a datagram may be on this host")
    after = f" after {counted(sent, 'message')}" if sent else ""
    reason = error.strerror or str(error)
    return NobodyListens(f"cannot reach bruce on {path}{after}: {reason}; is `bruce run` up?", sent)
