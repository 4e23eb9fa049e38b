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
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cli.controls import CONTROLS
from cli.journal import JournalHandler, is_journal
from cli.log_options import AUTO, JSON
from cli.log_stream import STDERR, StreamHandler, keep_descriptors

VERSION = 1
MOST = 20
"""Lines of one cause within WINDOW_S."""
WINDOW_S = 60.0
_TEXT = "%(asctime)s %(name)s[%(process)d] %(levelname)s: %(message)s"


def begin(chosen: str = AUTO, environ: Mapping[str, str] = os.environ) -> None:
    """Log from here on in one of log_options.FORMATS, in this process and in those that it forks."""
    keep_descriptors()
    handler: logging.Handler = (
        JournalHandler() if chosen == AUTO and is_journal(STDERR, environ) else StreamHandler()
    )
    handler.setFormatter(JsonLines() if chosen == JSON else Lines(_TEXT))
    handler.addFilter(Sparing(handler.handle))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


class Lines(logging.Formatter):
    """A record as one line for people, and below it a traceback: topics are named by who sends."""

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


@dataclass(slots=True)
class _Cause:
    """What the same place has logged."""

    since: float
    """When its window began."""
    count: int = 0
    last: logging.LogRecord | None = None
    """The last that was left out; None when none was."""


class Sparing(logging.Filter):
    """Lets MOST records of one cause through in WINDOW_S, and then says how many there were more.

    A cause is a place in the code: a logger, a level and a text before its values are put in. Where the text
    is nothing but a value, that is the cause.
    """

    def __init__(
        self, write: Callable[[logging.LogRecord], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`write` takes the records that say what was left out."""
        super().__init__()
        self._write, self._clock = write, clock
        self._causes: dict[tuple[str, int, str], _Cause] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this one is to be written."""
        if hasattr(record, "left_out"):
            return True
        self._end_windows(self._clock() - WINDOW_S)
        text = str(record.msg)
        words = record.getMessage() if text.strip() == "%s" else text
        cause = self._causes.setdefault((record.name, record.levelno, words), _Cause(self._clock()))
        cause.count += 1
        if cause.count <= MOST:
            return True
        cause.last = record
        return False

    def flush(self) -> None:
        """Say what was left out up to now: nobody else will."""
        self._end_windows(self._clock())

    def _end_windows(self, since: float) -> None:
        """Forget the windows that began by then."""
        over = [key for key, cause in self._causes.items() if cause.since <= since]
        for key in over:
            cause = self._causes.pop(key)
            if cause.last is not None:
                self._tell(cause.last, cause.count - MOST)

    def _tell(self, last: logging.LogRecord, left_out: int) -> None:
        more = "line like this was" if left_out == 1 else "lines like this were"
        text = f"{left_out:,} more {more} left out; the last: {last.getMessage()}"
        record = logging.LogRecord(last.name, last.levelno, last.pathname, last.lineno, text, None, None)
        record.left_out = left_out
        self._write(record)


def to_the_end(run: Callable[[], None]) -> Callable[[], None]:
    """The same, and then it is said what was left out: for a process that ends with it."""

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
            if isinstance(one, Sparing):
                one.flush()
        handler.flush()
