"""Log records as messages."""

from __future__ import annotations

import contextlib
import logging
import os

from bruce_client.client import DEFAULT_SOCKET, Client
from bruce_client.errors import NobodyListens, NotPermitted, QueueFull, Unconfirmed


class BruceHandler(logging.Handler):
    """Sends each record, formatted, to one topic. The record's time is that of the message.

    A record that cannot be sent is dropped: counted in `dropped`, and reported by `handleError`, as logging's
    own handlers do; the program that logs sees no exception. It is held up by `timeout_s` at most for the
    first record that no daemon takes, and not at all for those after it, until one is taken again.
    """

    def __init__(
        self,
        topic: str,
        socket: str | os.PathLike[str] | None = DEFAULT_SOCKET,
        *,
        key: str | None = None,
        stream: str | os.PathLike[str] | tuple[str, int] | None = None,
        timeout_s: float = 0.1,
    ) -> None:
        """`socket`, `stream` and `timeout_s` as `Client` has them.

        `key`: the attribute of a record that is the key of its message: `name`, or one that the program gives
        by `extra`. A record without it has no key.
        """
        super().__init__()
        self._client = Client(socket, stream=stream, timeout_s=timeout_s)
        self._topic, self._key, self._timeout_s = topic, key, timeout_s
        self._failing = False
        self.dropped = 0
        """Records that were not sent."""

    def emit(self, record: logging.LogRecord) -> None:
        timeout_s = 0 if self._failing else self._timeout_s
        try:
            key = getattr(record, self._key, None) if self._key else None
            self._client.send(
                self._topic,
                self.format(record).encode(errors="backslashreplace"),
                key=None if key is None else str(key).encode(errors="backslashreplace"),
                timestamp_ms=int(record.created * 1000),
                timeout_s=timeout_s,
            )
            self._failing = False
        except Unconfirmed:
            # It is with the daemon. One that was not waited for says no more than that: the next one is.
            self._failing = timeout_s > 0
        except RecursionError:
            # Too deep to say so.
            self.dropped += 1
        except Exception as error:  # noqa: BLE001  (a formatter may raise anything)
            self.dropped += 1
            # Of the others the daemon is not to blame.
            self._failing |= isinstance(error, NobodyListens | QueueFull | NotPermitted)
            self.handleError(record)

    def flush(self) -> None:
        """Wait until the daemon has read what was sent, for `timeout_s` at most."""
        with contextlib.suppress(Exception):
            self._client.flush(0 if self._failing else self._timeout_s)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._client.close()
        super().close()
