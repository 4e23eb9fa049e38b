"""Why a message was not sent.

    ClientError
      BadMessage      what was given makes no message
      TooLarge        more bytes than the daemon takes
      NotPermitted    this user may not write to the socket
      NobodyListens   no daemon within the time given
      QueueFull       the daemon did not take it in time
      Unconfirmed     handed over, but the daemon has not read it in time

After each but Unconfirmed the message is not on its way, and may be sent again.
"""

from __future__ import annotations

import errno


class ClientError(Exception):
    """Something that keeps a message from being sent."""

    sent = 0
    """Of `send_many`: how many messages before it were sent; of Unconfirmed with those that may arrive."""


class BadMessage(ClientError, ValueError):
    """The topic is empty or too long, or a number does not fit into its field."""


class TooLarge(ClientError, ValueError):
    """More bytes than a datagram has, without a stream socket; or more than the daemon takes by stream."""


class NotPermitted(ClientError):
    """The mode of the socket keeps this user out."""


class NobodyListens(ClientError):
    """No daemon has the socket, or it ended the connection."""


class QueueFull(ClientError, TimeoutError):
    """The daemon is there, and had no room within the time given."""


class Unconfirmed(ClientError, TimeoutError):
    """The message is with the daemon's socket, which has not read it within the time given."""


_FULL = (QueueFull, "the queue of {} is full: is bruce busy, or held?")
_SHUT = (NotPermitted, "this user may not write to {}: [ingest] socket_mode and socket_group of bruce decide")
_NO_MEMORY = (QueueFull, "the kernel has no memory to send to {}")
_NOBODY = (NobodyListens, "no program listens at {}: is bruce up?")
_MEANING: dict[int | None, tuple[type[ClientError], str]] = {
    errno.EAGAIN: _FULL,
    errno.EACCES: _SHUT,
    errno.EPERM: _SHUT,
    errno.ENOBUFS: _NO_MEMORY,
    errno.ENOMEM: _NO_MEMORY,
    errno.EMSGSIZE: (TooLarge, "the message is larger than a datagram to {} may be on this host"),
    errno.ECONNREFUSED: _NOBODY,
    errno.ENOENT: _NOBODY,
    errno.EPIPE: (NobodyListens, "the daemon at {} is about to end"),
}


def explain(error: OSError, where: str) -> ClientError:
    """The error for a message that a system error causes; `where`: the address."""
    # Python's own, when time is over, has no number.
    number = errno.EAGAIN if isinstance(error, TimeoutError) else error.errno
    kind, words = _MEANING.get(number, (NobodyListens, f"cannot send to {{}}: {error.strerror or error}"))
    return kind(words.format(where))
