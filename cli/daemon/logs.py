"""The daemon's log: lines for people, objects for programs, or the journal; few of each cause.

An object a line, with these keys, and more where they are said; keys may be added, `version` changes when one
goes or means something else:

    {"version": 1, "time": TIME, "level": "info" | "warning" | "error" | "critical" | "debug",
     "logger": "bruce.delivery", "pid": n, "message": TEXT}

    "left_out": n       so many lines of this cause were not written; the message has the last of them
    "traceback": TEXT   of a defect

TIME is UTC, as 2026-11-21T17:00:00.123456Z. The journal gets MESSAGE, PRIORITY, SYSLOG_IDENTIFIER=bruce,
BRUCE_LOGGER, and BRUCE_LEFT_OUT or BRUCE_TRACEBACK where there is one.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cli.config.settings import AUTO, JSON
from spool.throttle import Throttle
from spool.words import CONTROLS

VERSION = 1
MOST = 20
"""Lines of one cause within WINDOW_S."""
WINDOW_S = 60.0
_TEXT = "%(asctime)s %(name)s[%(process)d] %(levelname)s: %(message)s"
STDERR = 2
PATIENCE_MS = 50
"""For a reader that is slow."""
JOURNAL = Path("/run/systemd/journal/socket")
_MOST_CHARACTERS = 32_000
"""Of one value: the datagram then fits into any socket."""
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


def begin(chosen: str = AUTO, environ: Mapping[str, str] = os.environ) -> None:
    """Log in one of cli.config.config.FORMATS from now on, in this process and its children."""
    keep_descriptors()
    handler: logging.Handler = (
        JournalHandler() if chosen == AUTO and is_journal(STDERR, environ) else StreamHandler()
    )
    handler.setFormatter(JsonLines() if chosen == JSON else Lines(_TEXT))
    handler.addFilter(LogThrottle(handler.handle))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


class Lines(logging.Formatter):
    """A record as one line for people, and below it a traceback; control characters are shown.

    Its time is UTC, as 2026-11-21T17:00:00.123Z.
    """

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's own name)
        return super().formatMessage(record).translate(CONTROLS)


class JsonLines(logging.Formatter):
    """A record as one line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        document: dict[str, Any] = {
            "version": VERSION,
            "time": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if left_out := getattr(record, "left_out", 0):
            document["left_out"] = left_out
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document)


class LogThrottle(logging.Filter):
    """Lets MOST records of one cause through in WINDOW_S, and then says how many there were more.

    A cause is a place in the code: a logger, a level and a text before its values are put in. If the text
    is nothing but a value, that is the cause.
    """

    def __init__(
        self, write: Callable[[logging.LogRecord], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`write` takes the records that say what was left out."""
        super().__init__()
        self._write, self._throttle = write, Throttle(WINDOW_S, lines=MOST, clock=clock)
        self._left_out: dict[tuple[str, int, str], tuple[int, logging.LogRecord]] = {}
        """By cause, how many were left out since its last line, and the last of them."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this one is to be written."""
        if hasattr(record, "left_out"):
            return True
        for one in list(self._left_out):
            if self._throttle.due(one):
                self._tell(one)
        text = str(record.msg)
        words = record.getMessage() if text.strip() == "%s" else text
        cause = (record.name, record.levelno, words)
        if self._throttle.due(cause):
            return True
        self._left_out[cause] = self._left_out.get(cause, (0, record))[0] + 1, record
        return False

    def flush(self) -> None:
        """Say what was left out up to now."""
        for cause in list(self._left_out):
            self._tell(cause)

    def _tell(self, cause: tuple[str, int, str]) -> None:
        left_out, last = self._left_out.pop(cause)
        more = "line like this was" if left_out == 1 else "lines like this were"
        text = f"{left_out:,} more {more} left out; the last: {last.getMessage()}"
        record = logging.LogRecord(last.name, last.levelno, last.pathname, last.lineno, text, None, None)
        record.left_out = left_out
        self._write(record)


def to_the_end(run: Callable[[], None]) -> Callable[[], None]:
    """The same function, which says at its end what was left out: for a process that ends with it."""

    def run_and_tell() -> None:
        try:
            run()
        finally:
            end()

    return run_and_tell


def end() -> None:
    """Say what was left out, for a process that ends here."""
    for handler in logging.getLogger().handlers:
        for one in handler.filters:
            if isinstance(one, LogThrottle):
                one.flush()
        handler.flush()


class StreamHandler(logging.Handler):
    """Writes records to a descriptor, one line each; no process waits for it, or ends because of it.

    A line is one write, so that those of several processes stay apart. A line that is not taken (the disk is
    full, the reader is gone or does not read) is left out; before the next line that is taken, a line says
    how many were. None is kept for another try: a worker that is forked would write it a second time.
    """

    def __init__(self, fd: int = STDERR) -> None:
        super().__init__()
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._left_out, self._why, self._cut = 0, "", False
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001  (a line that cannot be made ends no worker)
            self.handleError(record)
            return
        if self._pid != os.getpid():
            # The parent itself tells what it could not write.
            self._pid, self._left_out = os.getpid(), 0
        if self._left_out and self._write(self.format(self._gap())):
            self._left_out = 0
        self._left_out += not self._write(line)

    def _gap(self) -> logging.LogRecord:
        lines = "line" if self._left_out == 1 else "lines"
        text = f"{self._left_out:,} {lines} of this log could not be written: {self._why}"
        record = logging.LogRecord("bruce", logging.WARNING, __file__, 0, text, None, None)
        record.left_out = self._left_out
        return record

    def _write(self, line: str) -> bool:
        """Whether the line was taken. A line that a full disk cut is ended first."""
        data = b"\n" * self._cut + line.encode(errors="backslashreplace") + b"\n"
        try:
            if not self._poll.poll(PATIENCE_MS):
                self._why = "no process reads them"
                return False
            taken = os.write(self._fd, data)
        except OSError as error:
            self._why = error.strerror or str(error)
            return False
        self._cut = taken < len(data)
        if self._cut:
            self._why = "there was room for a part of one"
        return not self._cut


def keep_descriptors() -> None:
    """Open /dev/null for each of 0, 1 and 2 that is closed: a segment would get that number, and the log."""
    for fd in range(STDERR + 1):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest number that is free.
            os.open(os.devnull, os.O_RDWR)


def is_journal(fd: int, environ: Mapping[str, str]) -> bool:
    """Whether a descriptor leads to the journal, as $JOURNAL_STREAM of systemd says."""
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))


class JournalHandler(StreamHandler):
    """Sends records to the journal; a record that it does not take goes to the descriptor, as a line."""

    def __init__(self, fd: int = STDERR, path: Path = JOURNAL) -> None:
        super().__init__(fd)
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        # No worker waits for the journal.
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
    """A record in the journal's native protocol: a datagram, of fields one behind the other.

    NAME=value, a line break                                                     a value without line breaks
    NAME, a line break, length:u64 little-endian, the value, a line break        any value
    """
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
