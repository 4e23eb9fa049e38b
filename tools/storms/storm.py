"""The storm: senders that count, processes and brokers that are killed at random, and a count at the end."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

from dispatch.errors import DispatchError
from spool.shared.state import Field
from tools.bruce_process import START_S
from tools.kafka_cluster import KafkaError
from tools.load_process import RunningLoad
from tools.storms.evidence import Evidence
from tools.storms.options import StormOptions
from tools.storms.run import StormRun, storm_run
from tools.storms.timeline import Action, duration_s, kills, troubles
from tools.storms.watcher import Watcher
from tools.waiting import wait_until

WATCH_S = 0.1
LUMP_MS = 200
"""Senders send the due messages five times a second, all at once: bursts for a kill to hit."""
AIM_S = 0.5
UNDO = {"kill": "start", "freeze": "thaw"}
MOST_SENDING_S = 3600.0


class Storm:
    """One storm over one storm_run."""

    def __init__(self, parts: StormRun) -> None:
        self._storm_run, self._options, self._evidence = parts, parts.options, parts.evidence
        self._begun = 0.0
        self.done: Counter[str] = Counter()

    def run(self) -> dict[str, Any]:
        """Run the storm, and judge the result; the summary."""
        parts, options = self._storm_run, self._options
        parts.bruce.start()
        watcher = Watcher(parts.bruce, self._evidence, WATCH_S)
        rate = int(1.1 * options.messages / (duration_s(options) + 1)) + options.senders
        self._evidence.say(
            f"seed {options.seed}: {duration_s(options):.0f} s of kills, {rate} messages a second"
        )
        load_options = parts.load(rate=rate, lump_ms=LUMP_MS)
        with RunningLoad(load_options) as load, parts.kafka_clients() as clients:
            try:
                watcher.start()
                self._pass(watcher)
                enough = f"{options.messages} messages to be received; the load {load.running=}"
                wait_until(
                    lambda: watcher.last["received"] >= options.messages, MOST_SENDING_S, enough, pause_s=0.5
                )
                report = load.stop()
                for client in clients:
                    ended = client.stop()
                    report["senders"].append(ended)
                    report["sent"] += ended["sent"]
            finally:
                watcher.stop()
        self._evidence.say(f"{report['sent']} sent; waiting for the backlog")
        status = parts.settle(watcher)
        parts.bruce.stop()
        return {**parts.judge(report, status), "statuses": watcher.taken, "done": dict(self.done)}

    def _pass(self, watcher: Watcher) -> None:
        """Run the timeline, the brokers' part in parallel with ours."""
        wait_until(lambda: watcher.last["received"] > 0, START_S, "the first messages")
        self._begun = time.monotonic()
        brokers = threading.Thread(target=self._trouble_brokers, name="brokers", daemon=True)
        brokers.start()
        for action in kills(self._options):
            self._await(action)
            self._kill(action)
        # Kafka's own starts have deadlines.
        brokers.join()

    def _await(self, action: Action) -> None:
        time.sleep(max(0.0, self._begun + action.at_s - time.monotonic()))

    def _trouble_brokers(self) -> None:
        """Run the brokers' troubles; a broker that comes back late delays the next, and shortens none."""
        for action in troubles(self._options):
            self._await(action)
            self._do(action.verb, int(action.target))
            time.sleep(action.pause_s)
            self._do(UNDO[action.verb], int(action.target))

    def _do(self, verb: str, broker: int) -> None:
        self._evidence.say(f"{verb} broker {broker}")
        self._evidence.record("events", {"verb": verb, "broker": broker})
        try:
            getattr(self._storm_run.target, verb)(broker)
        except (KafkaError, DispatchError) as error:
            self._evidence.violation(f"cannot {verb} broker {broker}: {error}")
        self.done[f"broker {verb}"] += 1

    def _kill(self, action: Action) -> None:
        if action.aimed:
            self._await_burst()
        if action.target == "all":
            self._kill_all(action)
        else:
            time.sleep(action.pause_s)
            pid = self._storm_run.kill_worker(str(action.target))
            shared = self._storm_run.bruce.shared()
            words = (
                {}
                if shared is None
                else {f.name: int(shared[f]) for f in (Field.WRITTEN_SEQUENCE, Field.LOW_WATERMARK)}
            )
            row = {"verb": "kill", "role": action.target, "pid": pid, "aimed": action.aimed}
            self._evidence.record("events", {**row, **words})
        self.done[str(action.target)] += 1

    def _kill_all(self, action: Action) -> None:
        self._evidence.say("kill every process")
        self._storm_run.kill_all()
        self._evidence.record("events", {"verb": "kill", "role": "all"})
        time.sleep(action.pause_s)
        self._storm_run.bruce.start()

    def _await_burst(self) -> None:
        """Return right after a write, or AIM_S later."""
        before, end = self._storm_run.bruce.word(Field.WRITTEN_SEQUENCE), time.monotonic() + AIM_S
        while time.monotonic() < end and self._storm_run.bruce.word(Field.WRITTEN_SEQUENCE) == before:
            time.sleep(0.0002)


def run_storm(options: StormOptions, evidence: Evidence) -> dict[str, Any]:
    """A storm from beginning to end; its summary."""
    with storm_run(options, evidence) as parts:
        return Storm(parts).run()
