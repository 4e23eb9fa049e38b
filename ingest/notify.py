"""What a service manager is told: datagrams to its socket, as sd_notify(3) describes them."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import MutableMapping

log = logging.getLogger("bruce.supervisor")

_TIMEOUT_S = 1.0
"""For a manager whose queue is full; it is told again later."""


class ServiceManager:
    """Who started us, if that is somebody who wants to be told. For one process, and not for its workers."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Take the variables of sd_notify(3) and sd_watchdog_enabled(3) out of `environ`."""
        self._address = environ.pop("NOTIFY_SOCKET", "")
        wanted, of = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        ours = not of or of == str(os.getpid())
        self.watchdog_s = int(wanted) / 1e6 if self._address and ours and wanted.isdecimal() else 0.0
        """It restarts us when it was not told WATCHDOG=1 for so long; 0: it does not look."""
        self._said = ""

    @property
    def listens(self) -> bool:
        """Whether there is somebody to tell."""
        return bool(self._address)

    def tell(self, *assignments: str) -> None:
        """Say something, such as READY=1. That it cannot be told is logged once, and no error."""
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(_TIMEOUT_S)
                sender.sendto("\n".join(assignments).encode(), address)
        except OSError as error:
            if self._said != str(error):
                log.warning("the service manager cannot be told at %s: %s", self._address, error)
            self._said = str(error)

    def tell_reloading(self) -> None:
        """Settings are read again; READY=1 says when that is over."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
