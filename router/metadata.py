"""Keeping the picture of the cluster fresh, in a thread of its own: asking waits for the network."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet

from dispatch.cluster import Cluster
from dispatch.errors import DispatchError
from dispatch.inquiry import Inquiry

log = logging.getLogger("bruce.router")

Fetch = Callable[[list[bytes], float], Cluster]

REFRESH_S = 10.0
"""Between two looks when nobody asks."""
RETRY_S = 0.25
LIST_TIMEOUT_S = 5.0
STRANGERS_AT_ONCE = 500
"""In one question: to name them keeps this process from other work."""
IN_VAIN = 100
"""So many topics that Kafka does not have may be asked for as all others are."""
TIMEOUT_S = 2.0
"""Short: each attempt asks another broker, and a frozen one never answers."""


class Metadata:
    """Asks for metadata on a timer, for new topics, and when told to; the newest answer is picked up."""

    def __init__(
        self,
        fetch: Fetch,
        wake: Callable[[], None],
        inquiry: Inquiry | None = None,
        fetch_all: Callable[[float], Cluster] | None = None,
        *,
        ours: Collection[bytes] = (),
    ) -> None:
        """`fetch`: KafkaClient.fetch_cluster. `wake`: called when there is an answer.

        `inquiry` is asked for topics that Kafka may not have, beyond IN_VAIN of them and `ours`; without one
        `fetch` is. `fetch_all`: KafkaClient.fetch_all.
        """
        self._fetch, self._wake = fetch, wake
        self._inquiry, self._fetch_all, self._ours = inquiry, fetch_all, frozenset(ours)
        self._topics: frozenset[bytes] = frozenset()
        """Those that `fetch` is asked for."""
        self._known: AbstractSet[bytes] = frozenset()
        """Of these, those that Kafka had last."""
        self._strangers: dict[bytes, None] = {}
        self._next = 0
        """Which stranger the inquiry goes on with."""
        self._listing: threading.Thread | None = None
        self._names: deque[frozenset[bytes]] = deque(maxlen=1)
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
        fresh = [name for name in topics if name not in self._topics]
        ours = [name for name in fresh if name in self._ours]
        others = [name for name in fresh if name not in self._ours]
        room = max(0, IN_VAIN - len(self._topics - self._known)) if self._inquiry else len(others)
        self._topics |= frozenset([*ours, *others[:room]])
        self._strangers = {**self._strangers, **dict.fromkeys(others[room:])}
        self._asked.set()

    def look_for(self, topics: list[bytes]) -> None:
        """Ask about these, and no longer about others that Kafka does not have."""
        self._strangers = {}
        if topics:
            self.want(topics)

    def list_all(self) -> None:
        """Ask which topics there are, beside all other questions: somebody waits for it."""
        if self._fetch_all is None:
            self._names.append(frozenset())
        elif not (self._listing and self._listing.is_alive()):
            self._listing = threading.Thread(target=self._list, args=(self._fetch_all,), daemon=True)
            self._listing.start()

    def take_names(self) -> frozenset[bytes] | None:
        """The answer to that, when it is there; empty when Kafka gives none, though it answers others."""
        try:
            return self._names.pop()
        except IndexError:
            return None

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
        if self._listing:
            self._listing.join(LIST_TIMEOUT_S + 1)

    def _note(self, found: Cluster, strangers: Mapping[bytes, int]) -> None:
        self._newest.append(Cluster(found.brokers, found.topics, {**strangers, **found.errors}))
        self.fetched_ns = time.time_ns()
        self._answers += 1
        if self._last is None or not found.is_like(self._last):
            self.changed_ns = self.fetched_ns
        self._last = found

    def _ask_strangers(self, found: Cluster) -> tuple[Cluster, Mapping[bytes, int]]:
        """Ask the inquiry for some of the strangers: the cluster with those that it has, errors of others."""
        names = list(self._strangers)
        if self._inquiry is None or not names:
            if self._inquiry and not names:
                self._inquiry.close()
            return found, {}
        first = self._next % len(names)
        some = [*names[first:], *names[:first]][:STRANGERS_AT_ONCE]
        self._next = first + len(some)
        try:
            answer = self._inquiry.ask(some, TIMEOUT_S)
        except DispatchError as error:
            log.warning("asking for %d topics that Kafka may not have: %s", len(some), error)
            return found, {}
        if answer.topics:
            self._topics |= answer.topics.keys()
            found = self._fetch(sorted(self._topics), TIMEOUT_S)
            self._known = found.topics.keys()
        return found, answer.errors

    def _list(self, fetch_all: Callable[[float], Cluster]) -> None:
        try:
            found = fetch_all(LIST_TIMEOUT_S)
            self._names.append(frozenset([*found.topics, *found.errors]))
        except DispatchError as error:
            log.warning("asking for all topics of Kafka: %s", error)
            if not self.error:
                self._names.append(frozenset())
        self._wake()

    def _run(self) -> None:
        while not self._stopping:
            self._asked.wait(REFRESH_S)
            self._asked.clear()
            if self._stopping or not self._topics:
                continue
            try:
                found = self._fetch(sorted(self._topics), TIMEOUT_S)
                self._known = found.topics.keys()
                found, strangers = self._ask_strangers(found)
                self._note(found, strangers)
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
        if self._inquiry:
            self._inquiry.close()
