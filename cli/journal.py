"""The journal, by its native protocol: a record is a datagram, of fields one behind the other.

NAME=value, a line break                                                     a value without line breaks
NAME, a line break, length:u64 little-endian, the value, a line break        any value
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from cli.log_stream import STDERR, StreamHandler

SOCKET = Path("/run/systemd/journal/socket")
_MOST_CHARACTERS = 32_000
"""Of one value: the datagram then fits into any socket."""
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


def is_journal(fd: int, environ: Mapping[str, str]) -> bool:
    """Whether what is written to a descriptor goes to the journal: systemd says so by $JOURNAL_STREAM."""
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))


class JournalHandler(StreamHandler):
    """Sends records to the journal; where that does not take one, it goes to the descriptor, as a line."""

    def __init__(self, fd: int = STDERR, path: Path = SOCKET) -> None:
        super().__init__(fd)
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        # Nobody waits for the journal.
        self._socket.setblocking(False)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._socket.sendto(encode(record), self._path)
        except OSError:
            super().emit(record)

    def close(self) -> None:
        self._socket.close()
        super().close()


def encode(record: logging.LogRecord) -> bytes:
    """A record as the journal takes it."""
    fields = {
        "MESSAGE": record.getMessage(),
        "PRIORITY": str(next((code for level, code in _PRIORITIES if record.levelno >= level), 7)),
        "SYSLOG_IDENTIFIER": "bruce",
        "BRUCE_LOGGER": record.name,
    }
    if left_out := getattr(record, "left_out", 0):
        fields["BRUCE_LEFT_OUT"] = str(left_out)
    if record.exc_info:
        fields["BRUCE_TRACEBACK"] = logging.Formatter().formatException(record.exc_info)
    return b"".join(_field(name, value) for name, value in fields.items())


def _field(name: str, value: str) -> bytes:
    data = value[:_MOST_CHARACTERS].encode(errors="backslashreplace")
    if b"\n" not in data:
        return b"%s=%s\n" % (name.encode(), data)
    return b"%s\n%s%s\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
