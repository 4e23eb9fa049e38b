"""A producer that is finished, and the one that takes its place."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from dispatch.client import KafkaClient
from dispatch.pool import Outcomes, Pool

_log = logging.getLogger("bruce.router")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0
"""Between two new producers, neither of which delivered anything; it doubles. The first comes at once."""


class Renewal:
    """Waits for the last reports, then builds the new one."""

    def __init__(
        self, client: KafkaClient, pool: Pool, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._pool, self._clock = client, pool, clock
        self._since: float | None = None
        self._renewed_at, self._pause_s = 0.0, 0.0

    def note_delivered(self) -> None:
        """A producer delivers: should it be finished, another takes its place at once."""
        self._pause_s = 0.0

    def attempt(self, in_flight: int) -> Outcomes | None:
        """Once it is time: what was in flight, to be sent again in order by the new producer.

        A message without a report may be in Kafka all the same: it is waited for, for a while. Hand nothing
        over meanwhile.
        """
        assert self._client.fatal
        if self._since is None:
            self._since = self._clock()
            _log.error("the producer is finished, and a new one will be built: %s", self._client.fatal.text)
        now = self._clock()
        if self._pool.busy or (in_flight and now - self._since < self._pool.last_reports_s):
            return None
        if now - self._renewed_at < self._pause_s:
            return None
        self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
        lost = self._pool.rebuild()
        self._since, self._renewed_at = None, self._clock()
        _log.warning("a new producer goes on; %d messages had no report", len(lost.sequence))
        return lost
