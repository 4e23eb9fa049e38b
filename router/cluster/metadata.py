"""Keeping the picture of the cluster fresh, in a thread of its own: asking waits for the network.

Any program may send any name, and where Kafka makes topics on demand, a question for a name makes a topic,
for good. The producer takes 60 KB of each, and all work grows with them. So IN_VAIN new names are asked for
at once, as the sender of a new topic wants it. Beyond that Kafka is asked whether it has them, without making
any, and makes no more than MADE_PER_S a second. A name counts as unknown once Kafka was to make it: its grace
time begins then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet

from dispatch.client import Cluster, Inquiry
from dispatch.errors import Code, DispatchError
from dispatch.topic_settings import Lateness
from router.cluster.wanted_topics import WantedTopics
from router.timing import LATENESS_S, LIST_ANSWER_S, METADATA_ANSWER_S, METADATA_RETRY_S, REFRESH_S
from spool.words import counted

log = logging.getLogger("bruce.router")

Fetch = Callable[[list[bytes], float], Cluster]

REST = 4
"""Times its duration, the pause after an answer: one about 5,000 topics takes 0.3 s of this process."""
STRANGERS_AT_ONCE = 500
"""In one question: to name them keeps this process from other work."""
IN_VAIN = 10
"""So many topics that Kafka does not have may be asked for as all others are."""
IN_VAIN_EVER = 200
"""So many different ones over time, once those before were forgotten: the producer keeps each, in 27 KB."""
MADE_PER_S = 1.0
"""Topics that Kafka may be made to make on demand, beyond IN_VAIN of them at a time. Ten a second keep small
brokers so busy that all other messages are late (decision 026)."""
MOST_SETTINGS = 200
"""Topics in one question for settings, of which Kafka has some fifty for each."""
MOST_REMEMBERED = 10_000
"""Topics whose lateness is kept, though they may be used no more."""


class LatenessWatch:
    """Learns how late messages of the used topics may come, to be known while Kafka is away."""

    def __init__(
        self,
        fetch: Callable[[Sequence[bytes], float], dict[bytes, Lateness]],
        known: Mapping[bytes, Lateness],
        keep: Callable[[Mapping[bytes, Lateness]], None],
    ) -> None:
        """`fetch`: KafkaClient.fetch_lateness. `known`: from before; `keep` gets all when some change."""
        self._fetch, self._known, self._keep = fetch, dict(known), keep
        self._asked: dict[bytes, float] = {}

    def look(self, topics: Collection[bytes]) -> None:
        """Ask about those of these that are due, MOST_SETTINGS at most."""
        now = time.monotonic()
        due = [name for name in topics if now - self._asked.get(name, -LATENESS_S) >= LATENESS_S]
        if not due:
            return
        self._asked = {name: at for name, at in self._asked.items() if name in topics}
        self._asked.update(dict.fromkeys(due[:MOST_SETTINGS], now))
        found = self._fetch(due[:MOST_SETTINGS], METADATA_ANSWER_S)
        if found.items() <= self._known.items():
            return
        self._known.update(found)
        if len(self._known) > MOST_REMEMBERED:
            self._known = {name: self._known[name] for name in topics if name in self._known}
        try:
            self._keep(self._known)
        except OSError as error:
            log.warning("the settings of topics cannot be noted, and brucectl does not know them: %s", error)


class Metadata:
    """Asks for metadata on a timer, for new topics, and when told to; the newest answer is picked up."""

    def __init__(  # noqa: PLR0913  (each is another part's)
        self,
        fetch: Fetch,
        wake: Callable[[], None],
        inquiry: Inquiry | None = None,
        fetch_all: Callable[[float], Cluster] | None = None,
        *,
        ours: Collection[bytes] = (),
        lateness: LatenessWatch | None = None,
        wanted: WantedTopics | None = None,
    ) -> None:
        """`fetch`: KafkaClient.fetch_cluster. `wake`: called when there is an answer.

        `inquiry` is asked for topics that Kafka may not have, beyond IN_VAIN of them and `ours`; without one
        `fetch` is. `fetch_all`: KafkaClient.fetch_all.
        """
        self._fetch, self._wake = fetch, wake
        self._inquiry, self._fetch_all, self._ours = inquiry, fetch_all, frozenset(ours)
        self._lateness, self._wanted = lateness, wanted
        self._topics: frozenset[bytes] = frozenset()
        """Those that `fetch` is asked for."""
        self._known: AbstractSet[bytes] = frozenset()
        """Of these, those that Kafka had last."""
        self._forgotten: set[bytes] = set()
        """Those that `fetch` was asked for in vain, and is asked for no longer."""
        self._strangers: dict[bytes, None] = {}
        self._of_clients: dict[bytes, None] = {}
        self._next = 0
        """Which stranger the inquiry goes on with."""
        self._tried: set[bytes] = set()
        """Strangers that Kafka was to make."""
        self._allowance, self._allowed_at = float(IN_VAIN), time.monotonic()
        """How many may be made, at that time."""
        self._lock = threading.Lock()
        """Over which names are asked for how, and the allowance."""
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
        with self._lock:
            self._add(topics)
        self._asked.set()

    def want_for_clients(self, topics: list[bytes]) -> None:
        """Ask soon about these topics, all that clients of the Kafka input want to see."""
        if self._wanted:
            self._wanted.add(topics)
        with self._lock:
            # Any client may make names up: each list takes the place of the one before.
            self._of_clients = dict.fromkeys(name for name in topics if name not in self._topics)
            self._tried.intersection_update({*self._strangers, *self._of_clients})
        self._asked.set()

    def look_for(self, topics: list[bytes]) -> None:
        """Ask about these, and no longer about others that Kafka does not have."""
        with self._lock:
            self._strangers = {}
            self._tried.intersection_update({*topics, *self._of_clients})
            self._add(topics)
        if topics:
            self._asked.set()

    def forget(self, topics: Collection[bytes]) -> None:
        """Ask no longer about these, but for those that Kafka has."""
        with self._lock:
            dropped = self._topics.intersection(topics) - self._known
            self._topics -= dropped
            self._forgotten |= dropped

    def _add(self, topics: list[bytes]) -> None:
        fresh = [name for name in topics if name not in self._topics]
        ours = [name for name in fresh if name in self._ours]
        others = [name for name in fresh if name not in self._ours]
        if self._inquiry and others:
            vain, ever = len(self._topics - self._known), len(self._forgotten)
            room = max(0, min(IN_VAIN - vain, IN_VAIN_EVER - ever))
            now = others[: self._allow(min(len(others), room))]
        else:
            now = others
        self._topics |= frozenset([*ours, *now])
        self._strangers.update(dict.fromkeys(others[len(now) :]))

    def _allow(self, most: int) -> int:
        """How many of these Kafka may be made to make; they are taken from the allowance."""
        now = time.monotonic()
        passed, self._allowed_at = now - self._allowed_at, now
        self._allowance = min(float(IN_VAIN), self._allowance + passed * MADE_PER_S)
        allowed = min(most, int(self._allowance))
        self._allowance -= allowed
        return allowed

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
        """The newest answer that was not taken yet. For one thread."""
        return self._newest.pop() if self._newest else None

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
        self._thread.join(METADATA_ANSWER_S + 1)
        if self._listing:
            self._listing.join(LIST_ANSWER_S + 1)

    def _note(self, found: Cluster, strangers: Mapping[bytes, int], asked_at: float) -> None:
        newest = Cluster(found.brokers, found.topics, {**strangers, **found.errors}, asked_at)
        self._newest.append(newest)
        if self._wanted:
            self._wanted.note(newest)
        self.fetched_ns = time.time_ns()
        self._answers += 1
        if self._last is None or not found.is_like(self._last):
            self.changed_ns = self.fetched_ns
        self._last = found

    def _fetch_known(self) -> Cluster:
        found = self._fetch(sorted(self._topics), METADATA_ANSWER_S)
        with self._lock:
            self._known = found.topics.keys()
            # The router may have forgotten one meanwhile, and sends to it now.
            self._topics |= self._known
        return found

    def _ask_strangers(self, found: Cluster) -> tuple[Cluster, Mapping[bytes, int]]:
        """Ask the inquiry for some of the strangers: the cluster with those that it has, errors of others."""
        with self._lock:
            names = list({**self._strangers, **self._of_clients})
        if self._inquiry is None or not names:
            if self._inquiry and not names:
                self._inquiry.close()
            return found, {}
        first = self._next % len(names)
        some = [*names[first:], *names[:first]][:STRANGERS_AT_ONCE]
        self._next = first + len(some)
        try:
            answer = self._inquiry.ask(some, METADATA_ANSWER_S)
            untried = self._make(self._inquiry, answer.errors)
        except DispatchError as error:
            log.warning("asking for %s that Kafka may not have: %s", counted(len(some), "topic"), error)
            return found, {}
        if answer.topics and not self._stopping:
            with self._lock:
                self._topics |= answer.topics.keys()
                for name in answer.topics:
                    self._strangers.pop(name, None)
                    self._of_clients.pop(name, None)
            found = self._fetch_known()
        return found, {name: code for name, code in answer.errors.items() if name not in untried}

    def _make(self, inquiry: Inquiry, errors: Mapping[bytes, int]) -> AbstractSet[bytes]:
        """Have Kafka make some of those that it does not have, each once; those that are still to be made."""
        if not inquiry.makes:
            return frozenset()
        missing = [name for name, code in errors.items() if code == Code.UNKNOWN_TOPIC_OR_PART]
        with self._lock:
            untried = [name for name in missing if name not in self._tried]
            chosen = untried[: self._allow(len(untried))]
        if chosen:
            inquiry.make(chosen, METADATA_ANSWER_S)
            with self._lock:
                self._tried.update(chosen)
        return frozenset(untried[len(chosen) :])

    def _fail(self, why: str) -> None:
        self._failures += 1
        if not self.error:
            self._failing_since = time.monotonic()
        if why != self.error:
            log.info("%s", why)
        self.error = why
        self._asked.set()

    def _list(self, fetch_all: Callable[[float], Cluster]) -> None:
        try:
            found = fetch_all(LIST_ANSWER_S)
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
            if self._stopping or not (self._topics or self._of_clients):
                continue
            pause, begun = METADATA_RETRY_S, time.monotonic()
            try:
                found = self._fetch_known()
                pause = max(METADATA_RETRY_S, min(METADATA_ANSWER_S, REST * (time.monotonic() - begun)))
                found, strangers = self._ask_strangers(found)
                self._note(found, strangers, begun)
                self.error = ""
                self._wake()
                if self._lateness and not self._stopping:
                    self._lateness.look(found.topics)
            except DispatchError as error:
                self._fail(str(error))
            except Exception as error:  # noqa: BLE001  (an answer may be anything; without this thread all waits)
                self._fail(f"Kafka's metadata cannot be used ({type(error).__name__}: {error})")
            time.sleep(pause)
        if self._inquiry:
            self._inquiry.close()
