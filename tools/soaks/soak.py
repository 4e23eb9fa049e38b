"""The soak: minutes of traffic and trouble, with a check of the totals after each, and of all at the end."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np

from tools.benches.filesystem import mounted
from tools.load_process import RunningLoad
from tools.soaks.balloon import Balloon
from tools.soaks.options import SoakOptions
from tools.soaks.plan import Trouble, plan
from tools.soaks.plot import draw
from tools.soaks.samples import Sampler, judge_growth
from tools.storms.evidence import Evidence
from tools.storms.run import StormRun, storm_run
from tools.storms.watcher import Watcher
from tools.verify import counts_of, read_topics
from tools.verify_judge import judge
from tools.waiting import wait_until

WATCH_S = 5.0
MINUTE_S = 60.0
COUNT_S = 120.0
"""The time for everything sent to be received: a kill of all processes may delay it."""
FULL = "spool_full"


class Soak:
    """One soak over one storm_run."""

    def __init__(self, parts: StormRun, options: SoakOptions) -> None:
        self._storm_run, self._options, self._evidence = parts, options, parts.evidence
        self._report: dict[str, Any] = {"senders": [], "sent": 0}
        self.done: Counter[str] = Counter()
        self.minutes: list[dict[str, int]] = []

    def run(self) -> dict[str, Any]:
        """All of it; the summary."""
        parts = self._storm_run
        parts.bruce.start()
        watcher, sampler = Watcher(parts.bruce, self._evidence, WATCH_S), Sampler(parts.bruce)
        watcher.start()
        sampler.start()
        try:
            for number, troubles in enumerate(
                plan(self._options.minutes, parts.target.size, self._options.seed)
            ):
                self._minute(number, troubles, watcher)
        finally:
            sampler.stop()
            watcher.stop()
        status = parts.settle(watcher)
        parts.bruce.stop()
        growth = judge_growth(sampler.samples)
        for row in growth:
            self._evidence.record("growth", row)
            held = row["flat"] or not row["judged"]
            self._evidence.expect(held, f"{row['measure']} of {row['role']} grows", row)
        for sample in sampler.samples:
            self._evidence.record("samples", {name: getattr(sample, name) for name in sample.__slots__})
        picture = self._evidence.directory / "soak.png"
        draw(picture, sampler.samples, self.minutes)
        summary = {**self._judge(status), "statuses": watcher.taken, "done": dict(self.done)}
        return {**summary, "growth": growth, "picture": str(picture)}

    def _minute(self, number: int, troubles: list[Trouble], watcher: Watcher) -> None:
        """Send, cause troubles meanwhile, and compare the totals with the messages sent."""
        begun, options = time.monotonic(), self._options
        senders = self._storm_run.load().senders
        mix = {"rate": options.rate, "seconds": float(options.sending_s), "first_sender": number * senders}
        with RunningLoad(self._storm_run.load(**mix)) as load:
            wait_until(lambda: watcher.last["received"] > 0 or number, COUNT_S, "the first datagrams")
            for trouble in troubles:
                self._do(trouble)
            report = load.wait(options.sending_s + COUNT_S)
        self._report["senders"] += report["senders"]
        self._report["sent"] += report["sent"]
        sent = self._report["sent"]
        wait_until(
            lambda: (watcher.look() or {"received": 0})["received"] >= sent,
            COUNT_S,
            f"{sent} messages to be received; the last status: {watcher.last}",
            pause_s=0.5,
        )
        status = watcher.last
        self._evidence.expect(
            status["received"] == sent, f"received {status['received']}, but {sent} were sent"
        )
        discarded = sum(status["discarded"].values())
        row = {
            "sent": sent,
            "delivered": status["delivered"],
            "discarded": discarded,
            "backlog": status["backlog"],
        }
        self.minutes.append(row)
        self._evidence.record("minutes", row)
        self._evidence.say(f"minute {number + 1}: {row}")
        time.sleep(max(0.0, begun + MINUTE_S - time.monotonic()))

    def _do(self, trouble: Trouble) -> None:
        self._evidence.say(f"{trouble.verb} {trouble.target} {trouble.seconds:.0f} s".replace("  ", " "))
        self._evidence.record(
            "events", {"verb": trouble.verb, "target": trouble.target, "s": trouble.seconds}
        )
        self.done[f"{trouble.verb} {trouble.target}".strip()] += 1
        if trouble.verb != "rest":
            getattr(self, f"_{trouble.verb}")(trouble)

    def _kill(self, trouble: Trouble) -> None:
        if trouble.target == "all":
            self._storm_run.kill_all()
            self._storm_run.bruce.start()
        else:
            self._storm_run.kill_worker(str(trouble.target))

    def _break(self, trouble: Trouble) -> None:
        self._storm_run.target.kill(int(trouble.target))
        time.sleep(trouble.seconds)
        self._storm_run.target.start(int(trouble.target))

    def _freeze(self, trouble: Trouble) -> None:
        self._storm_run.target.freeze(int(trouble.target))
        time.sleep(trouble.seconds)
        self._storm_run.target.thaw(int(trouble.target))

    def _fill(self, trouble: Trouble) -> None:
        with Balloon(self._storm_run.bruce.spool / "balloon"):
            time.sleep(trouble.seconds)

    def _starve(self, trouble: Trouble) -> None:
        """Block delivery, so that nothing makes room: bruce discards messages, and counts them."""
        brokers = range(1, self._storm_run.target.size + 1)
        for broker in brokers:
            self._storm_run.target.freeze(broker)
        self._fill(trouble)
        for broker in brokers:
            self._storm_run.target.thaw(broker)

    def _judge(self, status: dict[str, Any]) -> dict[str, Any]:
        """Compare senders, totals and Kafka."""
        evidence, discarded = self._evidence, status["discarded"]
        evidence.expect(set(discarded) == {FULL}, f"discarded: {discarded}")
        evidence.say("reading everything back from Kafka")
        records, dropped = read_topics(self._storm_run.target.bootstrap, self._storm_run.options.topic_names)
        findings = judge(records, counts_of(self._report), dropped=dropped)
        evidence.record("findings", findings.as_dict())
        lost, findings.missing = findings.missing, 0
        evidence.expect(lost == discarded.get(FULL, 0), f"{lost} are not in Kafka, but {discarded} discarded")
        if not findings.clean:
            np.save(evidence.directory / "records.npy", records)
        evidence.expect(findings.clean, "Kafka has other messages than were sent", findings.as_dict())
        return {
            "seed": self._options.seed,
            "sent": self._report["sent"],
            "received": status["received"],
            "in_kafka": findings.messages,
            "discarded": discarded.get(FULL, 0),
            "not_in_kafka": lost,
            "duplicates": findings.duplicates,
            "out_of_order": findings.out_of_order,
        }


def run_soak(options: SoakOptions, evidence: Evidence) -> dict[str, Any]:
    """A soak from beginning to end; its summary."""
    image, spool = evidence.directory / "disk.img", evidence.directory / "spool"
    with mounted(image, spool, options.disk_mib << 20), storm_run(options.storm(), evidence) as parts:
        return Soak(parts, options).run()
