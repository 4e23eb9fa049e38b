"""Daemons that start after a job has delivered, and show that they have nothing to send."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from spool.format.wire import encode
from tools.bruce_process import Bruce
from tools.fleets.options import FleetOptions
from tools.storms.evidence import Evidence
from tools.waiting import wait_until

AT_ONCE = 4


class Daemons:
    """The daemons of all hosts, none of which runs."""

    def __init__(self, bruces: Sequence[Bruce], options: FleetOptions, evidence: Evidence) -> None:
        self._bruces, self._options, self._evidence = bruces, options, evidence

    def pass_all(self, stored: Mapping[int, int], damaged: Mapping[int, int]) -> None:
        """Start each, and end it when it has passed its whole log, including a last message.

        `stored` and `damaged` are messages by host. Raises TookTooLong, RuntimeError.
        """
        hosts = list(range(len(self._bruces)))
        for first in range(0, len(hosts), AT_ONCE):
            group = hosts[first : first + AT_ONCE]
            for host in group:
                self._bruces[host].start(wait=False)
            for host in group:
                self._bruces[host].await_workers()
                self._send_witness(self._bruces[host])
            for host in group:
                self._await(host, stored[host] + 1, damaged[host])
                self._bruces[host].stop()
            self._evidence.say(f"the daemons of hosts {group[0]} to {group[-1]} have nothing to send")

    def _send_witness(self, bruce: Bruce) -> None:
        """Send a message after all others."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(bruce.socket))
            sender.send(encode(self._options.witness.encode(), b"I was here"))

    def _await(self, host: int, received: int, damaged: int) -> None:
        bruce, status = self._bruces[host], {}

        def passed() -> bool:
            nonlocal status
            status = bruce.status()
            return bool(status["received"] == received and status["backlog"] == 0)

        wait_until(
            passed, self._options.patience_s, f"the daemon of host {host} to pass its log", pause_s=0.2
        )
        wanted = {"damaged": damaged} if damaged else {}
        self._evidence.expect(
            status["discarded"] == wanted,
            f"the daemon of host {host} discarded {status['discarded']}, not {wanted}",
        )
