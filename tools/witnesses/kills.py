"""SIGKILL for the witness, daemons, keepers and brokers, at random moments; each comes back."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from spool.layout import Layout
from tools.bruce_process import Bruce
from tools.fleets.records import Recorded, read_recorded
from tools.kafka_cluster import KafkaCluster
from tools.storms.evidence import Evidence
from tools.witnesses.options import WitnessOptions
from tools.witnesses.watcher import Watcher

MOST_PAUSE_S, DEAD_S = 4.0, 2.0
"""Longest time before a kill, and between it and the start after it."""
WAITED = 0.6
"""Share of the witness's starts that are waited for: others may be killed before their first look."""
TOGETHER = 0.5
"""Share of the brokers' deaths during which the witness dies, too, and starts beside a dead broker."""


class Kills:
    """The kills of one run, one after the other."""

    def __init__(
        self,
        options: WitnessOptions,
        evidence: Evidence,
        watcher: Watcher,
        bruces: Sequence[Bruce],
        clusters: Mapping[str, KafkaCluster],
    ) -> None:
        self._evidence, self._watcher, self._bruces, self._clusters = evidence, watcher, bruces, clusters
        self._rng = random.Random(f"kills {options.seed}")  # noqa: S311  (a load, not a secret)
        self._kinds = options.kinds
        self._rng.shuffle(self._kinds)
        self.recorded: dict[Path, list[dict[Path, Recorded]]] = {bruce.spool: [] for bruce in bruces}
        """By spool, for each kill of its daemon, the messages that were recorded as delivered."""
        self.cut_off: dict[Path, list[dict[Path, Recorded]]] = {bruce.spool: [] for bruce in bruces}
        """The same for each kill of the broker that it delivers to. After a message that Kafka refuses the
        producer has a new id, under which Kafka does not know what it has of a request without an answer."""
        self.done: Counter[str] = Counter()

    def run(self) -> None:
        """All of them. Raises KafkaError, RuntimeError, TookTooLong."""
        for kind in self._kinds:
            time.sleep(self._rng.uniform(0.0, MOST_PAUSE_S))
            dead_s = self._rng.uniform(0.0, DEAD_S)
            self._evidence.say(f"kill {kind}")
            self._evidence.record("events", {"verb": "kill", "kind": kind})
            if kind == "witness":
                self._kill_witness(dead_s, wait=self._rng.random() < WAITED)
            elif kind == "daemon":
                self._kill_daemon(self._rng.choice(self._bruces), dead_s)
            elif kind == "keeper":
                self._rng.choice(self._bruces).kill("keeper")
            else:
                self._kill_broker(kind, dead_s)
            self.done[kind] += 1

    def _kill_witness(self, dead_s: float, *, wait: bool) -> None:
        code = self._watcher.end(signal.SIGKILL)
        self._evidence.expect(code == -signal.SIGKILL, f"the witness had ended by itself, with {code}")
        time.sleep(dead_s)
        self._watcher.start(wait=wait)

    def _kill_broker(self, name: str, dead_s: float) -> None:
        if name == "east":
            for bruce in self._bruces:
                self.cut_off[bruce.spool].append({bruce.spool: read_recorded(Layout(bruce.spool))})
        cluster = self._clusters[name]
        broker = self._rng.randint(1, cluster.size)
        cluster.kill(broker)
        time.sleep(dead_s)
        if self._rng.random() < TOGETHER:
            self._evidence.say(f"kill witness, while broker {broker} of {name} is away")
            self._kill_witness(0.0, wait=False)
            time.sleep(dead_s)
            self.done["witness"] += 1
        cluster.start(broker)

    def _kill_daemon(self, bruce: Bruce, dead_s: float) -> None:
        bruce.kill_all()
        self.recorded[bruce.spool].append({bruce.spool: read_recorded(Layout(bruce.spool))})
        time.sleep(dead_s)
        bruce.start()
