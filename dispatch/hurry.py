"""Haste: a thread that has a producer send what it was handed, without lingering."""

from __future__ import annotations

import os
import threading
from typing import Any

from dispatch.timing import HURRY_ENDS_S, HURRY_MS


class Hurry:
    """That thread.

    librdkafka does not linger while a thread waits in rd_kafka_flush. That wait is by the time of day: when
    the time is set back meanwhile, it lasts for as much longer. So no thread that has other work waits there.
    """

    def __init__(self, library: Any, handle: int) -> None:
        self._library, self._handle, self._ended = library, handle, False
        self.fd = os.eventfd(0, os.EFD_CLOEXEC)
        """An eventfd that compiled loops write to, in place of `ask`."""
        self._thread = threading.Thread(target=self._run, name="hurry", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Begin, if only when it is done with what it was asked for before."""
        os.eventfd_write(self.fd, 1)

    def end(self) -> bool:
        """End the thread; False when it is still in librdkafka, which may not be destroyed then."""
        self._ended = True
        self.ask()
        self._thread.join(HURRY_ENDS_S)
        if self._thread.is_alive():
            return False
        os.close(self.fd)
        return True

    def _run(self) -> None:
        while os.eventfd_read(self.fd) and not self._ended:
            self._library.flush(self._handle, HURRY_MS)
