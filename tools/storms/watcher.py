"""Reads `brucectl status --json` all the time: at every moment it must add up."""

from __future__ import annotations

import subprocess
import threading
from typing import Any

from tools.bruce_process import Bruce
from tools.storms.evidence import Evidence

COUNTS = ("received", "delivered")


class Watcher(threading.Thread):
    """Takes one status after the other until it is stopped."""

    def __init__(self, bruce: Bruce, evidence: Evidence, pause_s: float) -> None:
        super().__init__(name="watcher", daemon=True)
        self.last: dict[str, Any] = dict.fromkeys(COUNTS, 0)
        self.taken = 0
        self._bruce, self._evidence, self._pause_s = bruce, evidence, pause_s
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(self._pause_s):
            self.look()

    def look(self) -> dict[str, Any] | None:
        """Take a status and check it; None when there was none."""
        try:
            status = self._bruce.status()
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            self._evidence.violation(f"no status: {error}")
            return None
        self._evidence.record("status", status)
        self._evidence.expect(
            adds_up(status), "received is not delivered + discarded + backlog", {"status": status}
        )
        for count in COUNTS:
            self._evidence.expect(
                status[count] >= self.last[count],
                f"{count} went back from {self.last[count]} to {status[count]}",
                {"status": status},
            )
        self.last = status
        self.taken += 1
        return status

    def stop(self) -> None:
        """Stop."""
        self._stopped.set()
        if self.is_alive():
            self.join()


def adds_up(status: dict[str, Any]) -> bool:
    """Whether the counts of a status meet its equation."""
    accounted = status["delivered"] + sum(status["discarded"].values()) + status["backlog"]
    return bool(status["received"] == accounted and status["backlog"] >= 0)
