"""Log records as messages."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable

from bruce_client.client import DEFAULT_SOCKET, Client
from bruce_client.errors import (
    BadMessage,
    ClientError,
    NobodyListens,
    NotPermitted,
    QueueFull,
    TooLarge,
    Unconfirmed,
)
from bruce_client.message import MAX_BATCH, Message


class BruceHandler(logging.Handler):
    """Sends each record, formatted, to one topic. The record's time is that of the message.

    A record that cannot be sent is dropped: counted in `dropped`, and reported by `handleError`, as logging's
    own handlers do; the program that logs sees no exception. It is held up by `timeout_s` at most for the
    first record that no daemon takes, and not at all for those after it, until one is taken again.

    With the API of OpenTelemetry installed, a record that is logged within a span has the headers
    `traceparent` and `tracestate`, as W3C's trace context has them. They need a daemon that knows headers.
    """

    def __init__(
        self,
        topic: str,
        socket: str | os.PathLike[str] | None = DEFAULT_SOCKET,
        *,
        key: str | None = None,
        stream: str | os.PathLike[str] | tuple[str, int] | None = None,
        timeout_s: float = 0.1,
        linger_s: float = 0.0,
    ) -> None:
        """`socket`, `stream` and `timeout_s` as `Client` has them.

        `key`: the attribute of a record that is the key of its message: `name`, or one that the program gives
        by `extra`. A record without it has no key. `linger_s`: how long a record may wait for others, to be
        sent together with them; an error takes those before it along at once. A program that is killed
        meanwhile loses those that wait.
        """
        super().__init__()
        self._client = Client(socket, stream=stream, timeout_s=timeout_s)
        self._topic, self._key, self._timeout_s, self._linger_s = topic, key, timeout_s, linger_s
        self._failing = False
        self._trace = _trace_context()
        self._waiting: list[tuple[logging.LogRecord, Message]] = []
        self._timer: threading.Timer | None = None
        self.dropped = 0
        """Records that were not sent."""
        _handlers.add(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._waiting.append((record, self._message(record)))
            if not self._linger_s or record.levelno >= logging.ERROR or len(self._waiting) == MAX_BATCH:
                self._send()
            elif self._timer is None:
                self._timer = threading.Timer(self._linger_s, self._send_late)
                self._timer.daemon = True
                self._timer.start()
        except RecursionError:
            # Too deep to say so.
            self.dropped += 1
        except Exception:  # noqa: BLE001  (a formatter may raise anything)
            self.dropped += 1
            self.handleError(record)

    def _message(self, record: logging.LogRecord) -> Message:
        key = getattr(record, self._key, None) if self._key else None
        return Message(
            self._topic,
            self.format(record).encode(errors="backslashreplace"),
            None if key is None else str(key).encode(errors="backslashreplace"),
            self._trace(),
            timestamp_ms=int(record.created * 1000),
        )

    def _send_late(self) -> None:
        with self.lock or contextlib.nullcontext():
            self._send()

    def _send(self) -> None:
        """Send those that wait; the lock is held."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        while waiting:
            waiting = waiting[self._send_some(waiting) :]

    def _send_some(self, waiting: list[tuple[logging.LogRecord, Message]]) -> int:
        """Send records up to the first that is refused: how many are done with."""
        timeout_s = 0 if self._failing else self._timeout_s
        try:
            self._client.send_many((message for _, message in waiting), timeout_s=timeout_s)
            self._failing = False
        except Unconfirmed as error:
            # It is with the daemon. One that was not waited for says no more than that: the next one is.
            self._failing = timeout_s > 0
            return error.sent
        except (BadMessage, TooLarge) as error:
            # The daemon is not to blame, and may take the others.
            self._drop(waiting[error.sent : error.sent + 1])
            return error.sent + 1
        except Exception as error:  # noqa: BLE001  (each record is sent, or counted)
            self._failing |= isinstance(error, NobodyListens | QueueFull | NotPermitted)
            self._drop(waiting[error.sent if isinstance(error, ClientError) else 0 :])
        return len(waiting)

    def _drop(self, refused: list[tuple[logging.LogRecord, Message]]) -> None:
        for record, _ in refused:
            self.dropped += 1
            self.handleError(record)

    def _begin_anew(self) -> None:
        """In a forked child: the parent sends those that wait."""
        self._waiting, self._timer = [], None

    def flush(self) -> None:
        """Send those that wait; return when the daemon has read what was sent, or after `timeout_s`."""
        with contextlib.suppress(Exception), self.lock or contextlib.nullcontext():
            self._send()
            self._client.flush(0 if self._failing else self._timeout_s)

    def close(self) -> None:
        with contextlib.suppress(Exception), self.lock or contextlib.nullcontext():
            self._send()
            self._client.close()
        super().close()


def _trace_context() -> Callable[[], list[tuple[str, str]]]:
    """A function: the headers of the span that is current, if there is one."""
    try:
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415  (it may not be installed)
            TraceContextTextMapPropagator,
        )
    except ImportError:
        return list
    propagator = TraceContextTextMapPropagator()

    def headers() -> list[tuple[str, str]]:
        carrier: dict[str, str] = {}
        propagator.inject(carrier)
        return list(carrier.items())

    return headers


_handlers: weakref.WeakSet[BruceHandler] = weakref.WeakSet()


def _begin_anew() -> None:
    for handler in list(_handlers):
        handler._begin_anew()  # noqa: SLF001  (private to this file)


os.register_at_fork(after_in_child=_begin_anew)
