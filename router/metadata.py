"""Keeping the picture of the cluster fresh, in a thread of its own: asking waits for the network."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from dispatch.cluster import Cluster
from dispatch.errors import DispatchError

log = logging.getLogger("bruce.router")

REFRESH_S = 10.0
"""Between two looks when nobody asks."""
RETRY_S = 0.25
TIMEOUT_S = 2.0
"""Short: each attempt asks another broker, and a frozen one never answers."""


class Metadata:
    """Asks for metadata on a timer, for new topics, and when told to; the newest answer is picked up."""

    def __init__(self, fetch: Callable[[list[bytes], float], Cluster], wake: Callable[[], None]) -> None:
        """`fetch`: KafkaClient.fetch_cluster. `wake`: called when there is an answer."""
        self._fetch, self._wake = fetch, wake
        self._topics: frozenset[bytes] = frozenset()
        self._newest: deque[Cluster] = deque(maxlen=1)
        self._asked = threading.Event()
        self._stopping = False
        self.error = ""
        """Why the last attempt failed, in words; empty after a good one."""
        self.fetched_ns = self.changed_ns = 0
        """When an answer came last, and when it was not like the one before; ns since the epoch."""
        self._answers = self._failures = self._told_answers = self._told_failures = 0
        """Attempts by how they ended, and how many of each `take_counts` has told of."""
        self._last: Cluster | None = None
        self._failing_since = 0.0
        self._thread = threading.Thread(target=self._run, name="metadata", daemon=True)
        self._thread.start()

    def want(self, topics: list[bytes]) -> None:
        """Ask about these topics, and all before, soon."""
        self._topics |= frozenset(topics)
        self._asked.set()

    def take(self) -> Cluster | None:
        """The newest answer that was not taken yet."""
        try:
            return self._newest.pop()
        except IndexError:
            return None

    def take_counts(self) -> tuple[int, int]:
        """How often they came, and how often they did not, since the last call."""
        answers, failures = self._answers, self._failures
        fresh = answers - self._told_answers, failures - self._told_failures
        self._told_answers, self._told_failures = answers, failures
        return fresh

    def failing_s(self) -> float:
        """For how long every attempt has failed; 0 after a good one."""
        return time.monotonic() - self._failing_since if self.error else 0.0

    def stop(self) -> None:
        """End the thread after the answer that it waits for."""
        self._stopping = True
        self._asked.set()
        self._thread.join(TIMEOUT_S + 1)

    def _note(self, found: Cluster) -> None:
        self._newest.append(found)
        self.fetched_ns = time.time_ns()
        self._answers += 1
        if self._last is None or not found.is_like(self._last):
            self.changed_ns = self.fetched_ns
        self._last = found

    def _run(self) -> None:
        while not self._stopping:
            self._asked.wait(REFRESH_S)
            self._asked.clear()
            if self._stopping or not self._topics:
                continue
            try:
                self._note(self._fetch(sorted(self._topics), TIMEOUT_S))
                self.error = ""
                self._wake()
            except DispatchError as error:
                self._failures += 1
                if not self.error:
                    self._failing_since = time.monotonic()
                if str(error) != self.error:
                    log.warning("%s", error)
                self.error = str(error)
                self._asked.set()
            time.sleep(RETRY_S)
