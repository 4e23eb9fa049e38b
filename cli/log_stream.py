"""Standard error, as the daemon's log goes there: nobody waits for it, and nobody ends by it.

A line is one write, so that those of several processes stay apart. What is not taken (a full disk, a reader
that is gone, or stands still) is left out, and the next line that is taken comes behind one that says how
many were. Nothing is kept to be tried again: a worker that is forked would write it a second time.
"""

from __future__ import annotations

import logging
import os
import select

STDERR = 2
PATIENCE_MS = 50
"""For a reader that is slow."""


class StreamHandler(logging.Handler):
    """Writes records to a descriptor, one line each."""

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
        except Exception:  # noqa: BLE001  (a line that cannot be made ends nobody)
            self.handleError(record)
            return
        if self._pid != os.getpid():
            # Of what the parent could not write that one tells.
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
        """Whether it was taken. What a full disk took of one before is ended first."""
        data = b"\n" * self._cut + line.encode(errors="backslashreplace") + b"\n"
        try:
            if not self._poll.poll(PATIENCE_MS):
                self._why = "nobody reads them"
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
    """Open to nowhere what of 0, 1 and 2 is closed: a segment would get that number, and be written to."""
    for fd in range(STDERR + 1):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest number that is free.
            os.open(os.devnull, os.O_RDWR)
